use std::time::Duration;

use rlock::clock::Boot;
use serde_json::Value;

use crate::Stage;
use crate::rlock::{until, within};
use crate::servers::Server;

/// Notes TERM and ends by itself.
const OBEYS: &str = "trap 'echo TERM > got; exit 0' TERM; echo in > in; while :; do sleep 0.05; done";

fn pause(time: Duration) {
    let end = Boot::now() + time;
    until("a while has passed", || (Boot::now() >= end).then_some(()));
}

/// A run that holds for 5 s, a waiter behind it, and what happens meanwhile: neither may notice.
fn is_not_noticed(mut stage: Stage, what: &str, meanwhile: impl FnOnce(&mut Stage)) {
    let holder =
        stage.run("job", &["--ttl", "9s", "--report", "report", "--", "sh", "-c", "echo in > in; sleep 5"]).start();
    stage.written("in");
    let token = token(&stage.value("job"));
    let waiter = stage.run("job", &["-q", "--", "sh", "-c", "echo $RLOCK_TOKEN > next"]).start();
    stage.waiting("job", 1);
    meanwhile(&mut stage);
    let done = holder.done();
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{what}: {done:?}");
    let done = waiter.done();
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""), "{what}: {done:?}");
    assert!(stage.written("next").parse::<u64>().unwrap() > token, "{what}");
    let report: Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
    assert_eq!((&report["outcome"], &report["why"]), (&"ran".into(), &Value::Null), "{what}: {report}");
    let left: Vec<String> = stage.redis(&["KEYS", "job:rlock1:[qwh]*"]);
    assert_eq!((stage.redis::<bool>(&["EXISTS", "job"]), left), (false, vec![]), "{what}");
}

fn token(value: &str) -> u64 {
    serde_json::from_str::<Value>(value).unwrap()["token"].as_u64().unwrap()
}

#[test]
fn what_a_server_may_go_through_unnoticed() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            is_not_noticed(Stage::new(), "every connection is closed again and again", |stage| {
                for _ in 0..60 {
                    stage.redis::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                    pause(Duration::from_millis(50));
                }
            });
        });
        scope.spawn(|| {
            is_not_noticed(Stage::new(), "the script is forgotten again and again", |stage| {
                for _ in 0..300 {
                    stage.redis::<()>(&["SCRIPT", "FLUSH"]);
                    pause(Duration::from_millis(10));
                }
            });
        });
        scope.spawn(|| {
            is_not_noticed(Stage::new(), "out of memory", |stage| {
                stage.redis::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
            });
        });
        scope.spawn(|| {
            is_not_noticed(Stage::new(), "clients are paused", |stage| {
                stage.redis::<()>(&["CLIENT", "PAUSE", "2500"]);
            });
        });
        scope.spawn(|| {
            is_not_noticed(Stage::new(), "a slow script", |stage| {
                stage.redis::<()>(&["CONFIG", "SET", "lua-time-limit", "20"]);
                let slow = "local t = redis.call('TIME')[1] + 3; while tonumber(redis.call('TIME')[1]) < t do end";
                stage.redis::<Option<String>>(&["EVAL", slow, "0"]);
            });
        });
        scope.spawn(|| {
            is_not_noticed(Stage::new(), "a replica for a while", |stage| {
                stage.redis::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
                pause(Duration::from_millis(2_500));
                stage.redis::<()>(&["REPLICAOF", "NO", "ONE"]);
            });
        });
        scope.spawn(|| {
            let kept = Server::with(&["appendonly yes", "appendfsync always"]);
            is_not_noticed(Stage::on(kept), "killed and started again with its data", |stage| {
                stage.restart();
            });
        });
    });
}

#[test]
fn a_right_that_is_taken_away_and_given_back_is_not_missed() {
    let stage = Stage::new();
    stage.redis::<()>(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all"]);
    std::fs::write(stage.path("pw"), "pw").unwrap();
    let url = format!("redis://app@127.0.0.1:{}", stage.server().port());
    let login = ["--url", &url, "--password-file", "pw"];
    let args = ["run", "-k", "job", "--ttl", "6s", "--", "sh", "-c", "echo in > in; sleep 5"];
    let holder = stage.rlock(login.iter().chain(&args)).start();
    stage.written("in");
    stage.redis::<()>(&["ACL", "SETUSER", "app", "-evalsha", "-eval", "-blpop"]);
    stage.rlock(login.iter().chain(&["run", "-k", "job", "-n", "--", "true"])).done().says(77, &["app", "ACL SETUSER"]);
    // The renewal is due after 2 s and is refused until then; the signal would come after 4.8 s.
    pause(Duration::from_millis(2_600));
    stage.redis::<()>(&["ACL", "SETUSER", "app", "+@all"]);
    holder.done().is(0, "");
    assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
}

#[test]
fn a_new_password_is_read_from_the_file_while_the_lock_is_held() {
    let stage = Stage::new();
    stage.redis::<()>(&["CONFIG", "SET", "requirepass", "old"]);
    std::fs::write(stage.path("pw"), "old\n").unwrap();
    let args = ["--password-file", "pw", "run", "-k", "job", "--ttl", "6s", "--"];
    let holder = stage.rlock(args.iter().chain(&["sh", "-c", "echo in > in; sleep 5"])).start();
    stage.written("in");
    stage.redis::<()>(&["CONFIG", "SET", "requirepass", "new"]);
    stage.redis::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    stage.rlock(args.iter().chain(&["true"])).done().says(77, &["refuses the login", "password file"]);
    pause(Duration::from_secs(1));
    std::fs::write(stage.path("pw"), "new\n").unwrap();
    holder.done().is(0, "");
    assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
}

#[test]
fn a_demoted_server_ends_the_command_in_time_and_says_why() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--ttl", "2s", "--", "sh", "-c", OBEYS]).start();
    stage.written("in");
    let lease = Duration::from_millis(stage.redis(&["PTTL", "job"]));
    let demoted = Boot::now();
    stage.redis::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    holder.done().tells(79, &["`job`", "READONLY"]);
    assert!(Boot::now().since(demoted) < lease + Duration::from_secs(1));
    stage.run("job", &["-n", "--store-timeout", "500ms", "--", "true"]).done().says(69, &["READONLY", "server"]);
}

#[test]
fn a_server_that_came_back_empty_is_told_at_once_who_holds() {
    let mut stage = Stage::new();
    let holder = stage.run("job", &["--ttl", "10m", "--", "sh", "-c", OBEYS]).start();
    stage.written("in");
    let token_before = token(&stage.value("job"));
    stage.restart();
    let value = within(Duration::from_secs(15), || stage.redis::<Option<String>>(&["GET", "job"]));
    assert_eq!(value.map(|value| token(&value)), Some(token_before), "the next renewal is due after 200 s");
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.done().is(0, "");
}

#[test]
fn a_server_that_came_back_with_another_holder_stops_the_command_at_once() {
    let mut stage = Stage::new();
    let holder = stage.run("job", &["--ttl", "10m", "--", "sh", "-c", OBEYS]).start();
    stage.written("in");
    stage.server_mut().stop();
    stage.restart();
    // Whoever is first after the loss has it; the test is, mostly.
    let taken: Option<String> = stage.redis(&["SET", "job", "theirs", "NX"]);
    if taken.is_none() {
        stage.redis::<()>(&["SET", "job", "theirs"]);
        stage.redis::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    let lost = Boot::now();
    holder.done().tells(79, &["`job`", "the key is now"]);
    assert!(Boot::now().since(lost) < Duration::from_secs(15), "the next renewal is due after 200 s");
    assert_eq!(stage.redis::<String>(&["GET", "job"]), "theirs");
}

#[test]
fn force_release_now_is_heard_at_once() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--ttl", "10m", "--", "sh", "-c", OBEYS]).start();
    stage.written("in");
    let asked = Boot::now();
    stage.rlock(["force-release", "job", "--yes", "--now"]).done().says(0, &["was held by", "two may run"]);
    holder.done().tells(79, &["`job`"]);
    assert!(Boot::now().since(asked) < Duration::from_secs(15), "the next renewal is due after 200 s");
    assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
}

#[test]
fn what_stands_in_the_way_is_named() {
    for side in ["queue", "gone", "token"] {
        let stage = Stage::new();
        stage.redis::<()>(&["RPUSH", &format!("job:rlock1:{side}:{{job}}"), "x"]);
        stage.run("job", &["--", "touch", "ran"]).done().says(78, &["job:rlock1:", "WRONGTYPE", "remove"]);
        assert!(!stage.redis::<bool>(&["EXISTS", "job"]) && !stage.path("ran").exists());
    }
}

/// A side key that is lost, on its own, costs no more than the order of those who wait.
#[test]
fn every_side_key_may_be_lost() {
    std::thread::scope(|scope| {
        for side in ["queue", "waiters", "holders", "token", "gone", "log"] {
            scope.spawn(move || {
                let stage = Stage::new();
                let line = "exec 9>>judge; flock -n 9 || echo overlap >> bad; echo $RLOCK_TOKEN >> tokens; sleep";
                let run =
                    |time: &str| stage.run("job", &["-q", "--ttl", "2s", "--", "sh", "-c", &format!("{line} {time}")]);
                let holder = run("2.5").start();
                stage.value("job");
                let waiters: Vec<_> = (1..=3)
                    .map(|at| {
                        let waiter = run("0.2").start();
                        stage.waiting("job", at);
                        waiter
                    })
                    .collect();
                for _ in 0..12 {
                    stage.redis::<()>(&["DEL", &format!("job:rlock1:{side}:{{job}}")]);
                    pause(Duration::from_millis(250));
                }
                for run in waiters.into_iter().chain([holder]) {
                    run.done().is(0, "");
                }
                assert!(!stage.path("bad").exists(), "{side}");
                let tokens: Vec<u64> = stage.lines("tokens").iter().map(|line| line.parse().unwrap()).collect();
                assert!(tokens.len() == 4 && tokens.windows(2).all(|pair| pair[0] < pair[1]), "{side}: {tokens:?}");
                assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
            });
        }
    });
}
