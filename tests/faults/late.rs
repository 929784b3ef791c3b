use std::time::Duration;

use nix::sys::signal::Signal;
use rlock::clock::Boot;
use serde_json::Value;

use crate::Stage;
use crate::calls;
use crate::proxy::{Proxy, Way};
use crate::rlock::until;

/// What holds the key, and who waits: all that a message could change.
fn state(stage: &Stage) -> (Option<String>, Vec<String>) {
    (stage.redis(&["GET", "job"]), stage.redis(&["ZRANGE", "job:rlock1:queue:{job}", "0", "-1"]))
}

/// Lets what was kept pass, and waits until the server has carried it out.
fn deliver(stage: &Stage, proxy: &Proxy) {
    let count = || calls(stage, "eval") + calls(stage, "evalsha");
    let before = count();
    proxy.set(Way::Open, Way::Open);
    until("something late arrives", || (count() > before).then_some(()));
    // And then nothing more for a while.
    let mut last = (count(), Boot::now());
    until("all of it has arrived", || {
        let now = count();
        if now != last.0 {
            last = (now, Boot::now());
        }
        (Boot::now().since(last.1) > Duration::from_millis(300)).then_some(())
    });
}

#[test]
fn an_ask_that_arrives_after_its_run_gave_up_admits_and_removes_nobody() {
    for (wait, refuses) in [(&["-n"][..], false), (&["-w", "300ms"], true), (&[], false), (&[], true)] {
        for held in [false, true] {
            let stage = Stage::new();
            let proxy = Proxy::before(stage.server().port());
            proxy.set(Way::Held, Way::Open);
            let holder = held.then(|| {
                let holder = stage.run("job", &["--ttl", "20s", "--", "sleep", "100"]).start();
                stage.value("job");
                let waiter = stage.run("job", &["--", "true"]).start();
                stage.waiting("job", 1);
                (holder, waiter)
            });
            let before = state(&stage);
            let args = [wait, &["--store-timeout", "1s", "--", "touch", "ran"]].concat();
            let run = stage.run("job", &args).env("RLOCK_URL", proxy.url()).start();
            if refuses {
                // Then the last word can go only where the ask is.
                until("it has asked", || (proxy.made() > 0).then_some(()));
                proxy.refuse();
            }
            run.done().says(69, &["tried for"]);
            deliver(&stage, &proxy);
            let same = |value: &(Option<String>, Vec<String>)| {
                let id = |value: &Option<String>| {
                    value.as_deref().map(|text| serde_json::from_str::<Value>(text).unwrap()["id"].clone())
                };
                (id(&value.0), value.1.clone())
            };
            assert_eq!(same(&state(&stage)), same(&before), "{wait:?}, refuses: {refuses}, held: {held}");
            assert!(!stage.path("ran").exists());
            drop(holder);
        }
    }
}

#[test]
fn an_ask_that_arrives_after_its_run_was_told_to_stop_leaves_nothing() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.server().port());
    proxy.set(Way::Held, Way::Open);
    let run = stage.run("job", &["--", "touch", "ran"]).env("RLOCK_URL", proxy.url()).start();
    until("it has asked", || (proxy.made() > 0).then_some(()));
    run.signal(Signal::SIGTERM);
    run.done().died(Signal::SIGTERM);
    deliver(&stage, &proxy);
    assert_eq!(state(&stage), (None, vec![]));
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_renewal_that_arrives_after_the_end_revives_nothing() {
    for (next, refuses) in [(false, false), (false, true), (true, false), (true, true)] {
        let stage = Stage::new();
        let proxy = Proxy::before(stage.server().port());
        let args = ["--ttl", "2s", "--", "sh", "-c", "echo $$ > pid; exec sleep 100"];
        let run = stage.run("job", &args).env("RLOCK_URL", proxy.url()).start();
        stage.written("pid");
        // Its renewal is then what comes next on this line.
        until("it listens", || stage.redis::<String>(&["INFO", "clients"]).contains("blocked_clients:1").then_some(()));
        proxy.set(Way::Held, Way::Open);
        if refuses {
            proxy.refuse();
        }
        run.done().code(79);
        until("the key has lapsed", || (!stage.redis::<bool>(&["EXISTS", "job"])).then_some(()));
        let next = next.then(|| {
            let next = stage.run("job", &["--ttl", "20s", "--", "sleep", "100"]).start();
            (stage.value("job"), next)
        });
        deliver(&stage, &proxy);
        match next {
            None => assert_eq!(state(&stage), (None, vec![]), "refuses: {refuses}"),
            Some((held, _next)) => assert_eq!(stage.value("job"), held),
        }
    }
}

#[test]
fn a_release_whose_answers_are_lost_is_one_and_says_nothing_false() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.server().port());
    let args = ["--report", "report", "--", "sh", "-c", "echo in > in; while ! [ -e stop ]; do sleep 0.01; done"];
    let run = stage.run("job", &args).env("RLOCK_URL", proxy.url()).start();
    stage.written("in");
    proxy.set(Way::Open, Way::Lost);
    std::fs::write(stage.path("stop"), "").unwrap();
    until("it is released", || (!stage.redis::<bool>(&["EXISTS", "job"])).then_some(()));
    // The first try's answer is lost for good, and the next one's comes.
    proxy.set(Way::Open, Way::Open);
    run.done().is(0, "");
    let report: Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
    assert_eq!((&report["outcome"], &report["why"]), (&"ran".into(), &Value::Null), "{report}");
}

#[test]
fn a_command_that_ends_while_a_renewal_is_under_way_is_released_without_a_false_alarm() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.server().port());
    let line = "echo in > in; while ! [ -e stop ]; do sleep 0.01; done";
    let args = ["--ttl", "6s", "--report", "report", "--", "sh", "-c", line];
    let run = stage.run("job", &args).env("RLOCK_URL", proxy.url()).start();
    stage.written("in");
    // A renewal every 2 s; each takes 150 ms to get there, and 150 ms for its answer.
    proxy.set(Way::Slow(Duration::from_millis(150)), Way::Slow(Duration::from_millis(150)));
    let renewals = calls(&stage, "evalsha");
    until("a renewal has arrived", || (calls(&stage, "evalsha") > renewals).then_some(()));
    std::fs::write(stage.path("stop"), "").unwrap();
    run.done().is(0, "");
    assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
    let report: Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
    assert_eq!((&report["outcome"], &report["why"]), (&"ran".into(), &Value::Null), "{report}");
}
