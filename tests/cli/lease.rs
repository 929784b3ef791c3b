use std::time::Duration;

use nix::sys::signal::Signal;
use redis::Value;

use crate::rlock::{Stage, until, within};

#[test]
fn a_command_four_times_as_long_as_its_ttl_keeps_the_lock() {
    let stage = Stage::new();
    let mut run = stage.run("job", &["--ttl", "2s", "--", "sleep", "8"]).start();
    let value = stage.held("job");
    let token = |value: &str| serde_json::from_str::<serde_json::Value>(value).unwrap()["token"].as_u64().unwrap();
    let mut looks = 0;
    while !run.is_over() {
        let ttl: i64 = stage.redis(&["PTTL", "job"]);
        if ttl == -2 {
            break;
        }
        looks += 1;
        assert!((1..=2000).contains(&ttl), "its ttl is {ttl} ms");
        if let Some(now) = stage.redis::<Option<String>>(&["GET", "job"]) {
            assert_eq!(token(&now), token(&value));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    run.done().is(0, "");
    assert!(looks > 100, "only {looks} looks");
}

#[test]
fn the_key_is_gone_within_100_ms_of_the_commands_end() {
    let stage = Stage::new();
    let run = stage.run("job", &["--", "sh", "-c", "echo $$ > pid; exec sleep 100"]).start();
    let pid = stage.written("pid");
    crate::rlock::send(&pid, Signal::SIGTERM);
    let gone = within(Duration::from_millis(100), || (!stage.redis::<bool>(&["EXISTS", "job"])).then_some(()));
    assert!(gone.is_some(), "the key is still there");
    run.done().died(Signal::SIGTERM);
}

#[test]
fn nothing_is_left_without_a_ttl_and_no_queue() {
    let stage = Stage::new();
    nix::unistd::mkfifo(&stage.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let holder = stage.run("job", &["--", "sh", "-c", "read x < go"]).start();
    stage.held("job");
    let waiters: Vec<_> = (0..3).map(|_| stage.run("job", &["--", "true"]).start()).collect();
    stage.waiting("job", 3);
    std::fs::write(stage.path("go"), "x\n").unwrap();
    for run in waiters.into_iter().chain([holder]) {
        let _ = run.done();
    }
    let keys: Vec<String> = stage.redis(&["KEYS", "*"]);
    for key in &keys {
        assert!(stage.redis::<i64>(&["PTTL", key]) > 0, "{key} has no ttl");
        assert!(key != "job" && !key.contains("queue") && !key.contains("waiters"), "{key} is left");
    }
}

#[test]
fn plain_set_excludes_rlock_and_is_excluded_by_it() {
    let stage = Stage::new();
    let run = stage.run("job", &["--", "sleep", "100"]).start();
    stage.held("job");
    assert_eq!(stage.redis::<Value>(&["SET", "job", "x", "NX", "PX", "1000"]), Value::Nil);
    drop(run);
    stage.redis::<()>(&["DEL", "job"]);
    stage.redis::<()>(&["SET", "job", "theirs", "NX", "PX", "60000"]);
    stage.run("job", &["-n", "--", "true"]).done().says(75, &["`job` is held by"]);
    for (words, kind) in [
        (&["HSET", "job", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"][..], "Redisson"),
        (&["RPUSH", "job", "x"], "list"),
        (&["ZADD", "job", "1", "x"], "sorted set"),
        (&["SADD", "job", "x"], "set"),
    ] {
        stage.redis::<()>(&["DEL", "job"]);
        stage.redis::<()>(words);
        let done = stage.run("job", &["-n", "--", "true"]).done().code(75);
        assert!(!done.stderr.contains("WRONGTYPE"), "{kind}: {}", done.stderr);
        let done = stage.rlock(["inspect", "job"]).done().code(0);
        assert!(done.stdout.contains(kind), "{kind}: {}", done.stdout);
    }
    // A waiter gets the key when the other program lets go, without a wake-up.
    let waiter = stage.run("job", &["--", "true"]).start();
    stage.waiting("job", 1);
    stage.redis::<()>(&["DEL", "job"]);
    waiter.done().code(0);
}

#[test]
fn a_deleted_key_is_taken_again_with_its_old_token() {
    let stage = Stage::new();
    let run = stage.run("job", &["--ttl", "3s", "--", "sh", "-c", "echo $RLOCK_TOKEN > token; exec sleep 4"]).start();
    let token = stage.written("token");
    stage.redis::<()>(&["DEL", "job"]);
    let value = stage.held("job");
    assert!(value.contains(&format!("\"token\":{token},")), "{value}");
    run.done().code(0);
    let log = until("the log says it", || {
        let text = format!("{:?}", stage.redis::<Value>(&["XRANGE", "job:rlock1:log:{job}", "-", "+"]));
        text.contains("restored").then_some(text)
    });
    assert!(log.contains("released"), "{log}");
}
