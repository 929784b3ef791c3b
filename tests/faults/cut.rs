use std::time::Duration;

use nix::sys::signal::Signal;
use rlock::clock::Boot;
use serde_json::Value;

use crate::Stage;
use crate::calls;
use crate::proxy::{Proxy, Way};
use crate::rlock::{Done, Running, children, is_alive, send, until};

const OPEN: (Way, Way) = (Way::Open, Way::Open);

/// A tree that ignores what can be ignored: its first process, one in the background and one in its own session.
const TREE: &str = "trap '' TERM INT HUP; echo $$ > first; \
    sh -c 'echo $$ > child; while :; do sleep 0.01; done' & \
    setsid sh -c 'echo $$ > session; while :; do sleep 0.01; done' & \
    while :; do sleep 0.01; done";

/// Says whether one of the tree is alive when the key has passed.
const NEXT: &str = "for name in first child session; do \
    grep -qs '^State:.[^ZX]' /proc/$(cat $name)/status && echo $name >> alive; done; echo next > next";

/// Behind a proxy of its own.
fn behind(stage: &Stage, proxy: &Proxy, args: &[&str]) -> Running {
    stage.run("job", args).env("RLOCK_URL", proxy.url()).start()
}

/// A holder that is cut off for good, and the next waiter, which is not.
fn cut_off_for_good(to_server: Way, to_client: Way) -> Done {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.server().port());
    let holder = behind(&stage, &proxy, &["--ttl", "2s", "--report", "report", "--", "sh", "-c", TREE]);
    let pids = ["first", "child", "session"].map(|name| stage.written(name));
    let next = stage.run("job", &["-q", "--", "sh", "-c", NEXT]).start();
    stage.waiting("job", 1);
    proxy.set(to_server, to_client);
    stage.written("next");
    assert_eq!(stage.lines("alive"), Vec::<String>::new(), "the key has passed and they run");
    assert!(!pids.iter().any(|pid| is_alive(pid)));
    next.done().is(0, "");
    let report = until("the report is written", || stage.lines("report").pop());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["outcome"], &report["code"]), (&"lost".into(), &79.into()), "{report}");
    let done = holder.done();
    // What was kept changes nothing: the key stays free.
    proxy.set(Way::Open, Way::Open);
    let free = Boot::now() + Duration::from_millis(500);
    until("half a second has passed", || {
        let held: Option<String> = stage.redis(&["GET", "job"]);
        // A renewal may take a free key again for the instant until the drop behind it.
        (Boot::now() >= free && held.is_none()).then_some(())
    });
    done
}

#[test]
fn a_holder_that_is_cut_off_is_dead_before_the_key_passes() {
    for (to_server, to_client) in [
        (Way::Lost, Way::Lost),
        (Way::Held, Way::Held),
        (Way::Lost, Way::Open),
        (Way::Open, Way::Lost),
        (Way::Held, Way::Open),
        (Way::Open, Way::Held),
        (Way::Open, Way::Drip(Duration::from_millis(30))),
        (Way::Drip(Duration::from_millis(30)), Way::Open),
        (Way::Slow(Duration::from_millis(1_500)), Way::Slow(Duration::from_millis(1_500))),
    ] {
        let done = cut_off_for_good(to_server, to_client).code(79);
        let lost = done.stderr.lines().filter(|line| line.contains("the lease is lost")).collect::<Vec<_>>();
        let [lost] = lost[..] else { panic!("{done:?}") };
        assert!(lost.contains("`job`") && lost.contains("not renewed in time"), "{lost}");
    }
}

#[test]
fn a_keeper_that_is_killed_after_the_loss_does_not_hide_it() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.server().port());
    let line = "trap 'echo got > got' TERM; echo in > in; while :; do sleep 0.01; done";
    let args = ["--ttl", "6s", "--kill-after", "2s", "--report", "report", "--", "sh", "-c", line];
    let holder = behind(&stage, &proxy, &args);
    stage.written("in");
    proxy.set(Way::Lost, Way::Lost);
    stage.written("got");
    let keeper = children(&holder.pid().to_string()).remove(0);
    send(&keeper, Signal::SIGKILL);
    holder.done().code(79);
    let report: Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
    assert_eq!((&report["outcome"], &report["code"]), (&"lost".into(), &79.into()), "{report}");
    assert!(report["why"].as_str().unwrap().contains("the lease is lost"), "{report}");
}

/// At 9 s: 2/3 of 9 s, less 1.5 s of grace, 0.1 s of slack, 0.092 s of margin and a try of 0.6 s leave 3.7 s.
const TTL: &str = "9s";
const BELOW: Duration = Duration::from_millis(3_200);

#[test]
fn a_cut_below_the_tolerance_is_not_noticed() {
    let cuts = [(Way::Lost, Way::Lost), (Way::Held, Way::Held), (Way::Open, Way::Lost), (Way::Held, Way::Open)];
    std::thread::scope(|scope| {
        for (to_server, to_client) in cuts {
            scope.spawn(move || {
                let stage = Stage::new();
                let proxy = Proxy::before(stage.server().port());
                let held = Boot::now();
                let holder = behind(&stage, &proxy, &["--ttl", TTL, "--report", "report", "--", "sleep", "8"]);
                stage.value("job");
                // The worst that a cut can begin with is the renewal, 3 s after the grant.
                let begin = held + Duration::from_millis(2_800);
                until("a renewal is near", || (Boot::now() >= begin).then_some(()));
                proxy.set(to_server, to_client);
                let end = Boot::now() + BELOW;
                until("the cut is over", || (Boot::now() >= end).then_some(()));
                proxy.set(OPEN.0, OPEN.1);
                holder.done().is(0, "");
                let report: Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
                assert_eq!((&report["outcome"], &report["why"]), (&"ran".into(), &Value::Null), "{report}");
                assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
            });
        }
    });
}

#[test]
fn a_line_that_dies_during_a_wait_costs_a_refresh_and_no_place() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.server().port());
    nix::unistd::mkfifo(&stage.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let holder = stage.run("job", &["--", "sh", "-c", "read x < go"]).start();
    stage.value("job");
    let first = behind(&stage, &proxy, &["--", "sh", "-c", "echo first >> order; echo in > in"]);
    stage.waiting("job", 1);
    let second = stage.run("job", &["--", "sh", "-c", "echo second >> order"]).start();
    stage.waiting("job", 2);
    until("both listen", || (blocked(&stage) == 3).then_some(()));
    proxy.set(Way::Lost, Way::Lost);
    until("the line is dead", || (blocked(&stage) <= 3).then_some(()));
    std::fs::write(stage.path("go"), "x\n").unwrap();
    let freed = Boot::now();
    // A connection that is made from now on is a good one.
    std::thread::sleep(Duration::from_millis(50));
    proxy.set(Way::Open, Way::Open);
    stage.written("in");
    let took = Boot::now().since(freed);
    assert!(took < Duration::from_secs(3), "it took {took:?}: a window and its place");
    for run in [holder, first, second] {
        run.done().code(0);
    }
    assert_eq!(stage.lines("order"), ["first", "second"]);
}

fn blocked(stage: &Stage) -> u64 {
    let info: String = stage.redis(&["INFO", "clients"]);
    info.lines().find_map(|line| line.strip_prefix("blocked_clients:")?.trim().parse().ok()).unwrap()
}

#[test]
fn a_holder_whose_line_broke_hears_at_once_all_the_same() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.server().port());
    let line = "trap 'echo TERM > got; exit 0' TERM; echo in > in; while :; do sleep 0.05; done";
    let holder = behind(&stage, &proxy, &["--ttl", "10m", "--", "sh", "-c", line]);
    stage.written("in");
    until("it listens", || (blocked(&stage) == 1).then_some(()));
    proxy.cut();
    let asked = Boot::now();
    stage.rlock(["force-release", "job", "--yes"]).done().code(0);
    let took = Boot::now().since(asked);
    assert!(took < Duration::from_secs(10), "it heard of it after {took:?}");
    assert_eq!(stage.written("got"), "TERM");
    holder.done().code(79);
}

#[test]
fn a_server_that_drips_is_69_within_the_store_timeout() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.server().port());
    for way in [Way::Drip(Duration::from_millis(30)), Way::Held, Way::Lost] {
        proxy.set(Way::Open, way);
        for args in [&["run", "-k", "job", "-n", "--", "touch", "ran"][..], &["run", "-k", "job", "--", "touch", "ran"]]
        {
            let began = Boot::now();
            let args = [&args[..3], &["--store-timeout", "1s"], &args[3..]].concat();
            stage.rlock(args).env("RLOCK_URL", proxy.url()).done().says(69, &["did not answer in time", "tried for"]);
            let took = Boot::now().since(began);
            assert!(took < Duration::from_millis(1_700), "{way:?}: it took {took:?}");
        }
        for command in ["inspect", "ttl"] {
            let args = [command, "job", "--store-timeout", "1s"];
            let began = Boot::now();
            stage.rlock(args).env("RLOCK_URL", proxy.url()).done().says(69, &["did not answer in time"]);
            assert!(Boot::now().since(began) < Duration::from_millis(1_700));
        }
    }
    assert!(!stage.path("ran").exists());
    proxy.set(Way::Open, Way::Open);
    until("nothing of them is left", || (!stage.redis::<bool>(&["EXISTS", "job"])).then_some(()));
    assert!(calls(&stage, "evalsha") > 0);
}

#[test]
fn a_ttl_too_short_for_the_line_is_told_of_once_and_a_single_slow_answer_is_not() {
    let slow = Way::Slow(Duration::from_millis(40));
    for always in [true, false] {
        let stage = Stage::new();
        let proxy = Proxy::before(stage.server().port());
        proxy.set(slow, slow);
        let run = behind(&stage, &proxy, &["--ttl", "4s", "--", "sh", "-c", "echo in > in; sleep 5"]);
        stage.written("in");
        if !always {
            proxy.set(Way::Open, Way::Open);
        }
        let done = run.done().code(0);
        let told = done.stderr.lines().filter(|line| line.contains("--ttl 4s is short for a store")).count();
        assert_eq!((told, done.stderr.lines().count()), (usize::from(always), usize::from(always)), "{done:?}");
    }
}
