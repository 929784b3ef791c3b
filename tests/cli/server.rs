use std::time::Duration;

use redis::Value;
use rlock::clock::Boot;

use super::Stage;
use crate::rlock::{is_alive, rlock, until};
use crate::servers::Server;
use crate::tmux::Terminal;

#[test]
fn a_dead_store_is_69_within_the_store_timeout_and_never_75() {
    let stage = Stage::new();
    let dead = |args: &[&str]| rlock(["run", "-k", "job", "--store-timeout", "500ms"].iter().chain(args));
    for wait in [&["-n"][..], &["-w", "200ms"], &[]] {
        let args = [wait, &["--", "true"]].concat();
        dead(&args).env("RLOCK_URL", "redis://127.0.0.1:1").done().says(69, &["redis://127.0.0.1:1", "refused"]);
    }
    stage.server().freeze();
    let args = ["run", "-k", "job", "--store-timeout", "1s"];
    for wait in [&["-n"][..], &["-w", "300ms"], &[]] {
        stage
            .rlock(args.iter().chain(wait).chain(&["--", "touch", "ran"]))
            .done()
            .says(69, &["did not answer in time"]);
    }
    stage.server().thaw();
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_wait_that_ran_out_without_a_word_of_the_store_is_69_and_in_time() {
    let stage = Stage::new();
    stage.server().freeze();
    let began = Boot::now();
    let run = stage.run("job", &["-w", "1s", "--", "touch", "ran"]).start();
    // It has stopped asking, and waits for an answer to its last word; the key was never held.
    until("the wait has run out", || (Boot::now().since(began) > Duration::from_millis(1_400)).then_some(()));
    stage.server().thaw();
    run.done().says(69, &["did not answer in time"]);
    assert!(!stage.path("ran").exists());
    stage.server().freeze();
    let began = Boot::now();
    stage.run("job", &["-w", "3s", "--", "true"]).done().code(69);
    let took = Boot::now().since(began);
    assert!(took < Duration::from_secs(6), "a wait of 3 s took {took:?}");
    stage.server().thaw();
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
    let value = stage.value("job");
    assert!(value.contains(&format!("\"token\":{token},")), "{value}");
    run.done().code(0);
    let log = until("the log says it", || {
        let text = format!("{:?}", stage.redis::<Value>(&["XRANGE", "job:rlock1:log:{job}", "-", "+"]));
        text.contains("restored").then_some(text)
    });
    assert!(log.contains("released"), "{log}");
}

#[test]
fn a_free_key_is_1_and_one_without_end_is_minus_1() {
    let stage = Stage::new();
    stage.redis::<()>(&["SET", "theirs", "x"]);
    let free = stage.rlock(["inspect", "free"]).done().code(1);
    assert!(free.stdout.contains("free"), "{free:?}");
    stage.rlock(["ttl", "--ms", "theirs"]).done().is(0, "-1\n");
    stage.rlock(["ttl", "theirs", "free"]).done().code(1);
}

#[test]
fn looking_needs_no_right_to_write() {
    let stage = Stage::new();
    let _holder = stage.run("job:a", &["--", "sleep", "100"]).start();
    stage.held("job:a");
    stage.redis::<()>(&["ACL", "SETUSER", "looker", "on", ">pw", "~*", "+@read", "+multi", "+exec", "+time"]);
    std::fs::write(stage.path("pw"), "pw").unwrap();
    let url = format!("redis://looker@127.0.0.1:{}", stage.server().port());
    for args in [&["inspect", "job:a"][..], &["ttl", "job:a"], &["list", "job:*"]] {
        stage.rlock([&["--url", &url, "--password-file", "pw"], args].concat()).done().code(0);
    }
    let args = ["--url", &url, "--password-file", "pw", "run", "-k", "job:b", "--", "touch", "ran"];
    stage.rlock(args).done().says(77, &["looker", "~job:b"]);
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_lost_wake_up_costs_at_most_a_refresh() {
    let stage = Stage::new();
    nix::unistd::mkfifo(&stage.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Its holder may not push: the wake-up is refused, which must not refuse the release.
    stage.redis::<()>(&["ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "-rpush"]);
    std::fs::write(stage.path("pw"), "pw").unwrap();
    let url = format!("redis://mute@127.0.0.1:{}", stage.server().port());
    let args = ["--url", &url, "--password-file", "pw", "run", "-k", "job", "--", "sh", "-c", "read x < go"];
    let holder = stage.rlock(args).start();
    stage.held("job");
    let waiter = stage.run("job", &["--", "sh", "-c", "echo in > in"]).start();
    stage.waiting("job", 1);
    let freed = rlock::clock::Boot::now();
    std::fs::write(stage.path("go"), "x\n").unwrap();
    stage.written("in");
    let took = rlock::clock::Boot::now().since(freed);
    assert!(took < Duration::from_secs(3), "it took {took:?}: a window and its place");
    holder.done().code(0);
    waiter.done().code(0);
}

#[test]
fn no_secret_is_in_the_commands_surroundings_or_on_its_way() {
    let stage = Stage::new();
    stage.redis::<()>(&["CONFIG", "SET", "requirepass", "geheim"]);
    std::fs::write(stage.path("password"), "geheim\n").unwrap();
    let run = stage
        .run(
            "job",
            &[
                "-v",
                "--password-file",
                "password",
                "--report",
                "report",
                "--",
                "sh",
                "-c",
                "env; cat /proc/$PPID/cmdline",
            ],
        )
        .done()
        .code(0);
    let report = stage.lines("report").concat();
    assert!(!format!("{}{}{report}", run.stdout, run.stderr).contains("geheim"), "{run:?} {report}");
    std::fs::write(stage.path("password"), "falsch\n").unwrap();
    stage.run("job", &["--password-file", "password", "--", "true"]).done().says(77, &["WRONGPASS"]);
    stage.run("job", &["--", "true"]).done().says(77, &["wants a login", "--password-file"]);
}

#[test]
fn escape_sequences_of_others_never_reach_the_terminal() {
    let stage = Stage::new();
    stage.redis::<()>(&["SET", "theirs", "x\u{1b}]0;title\u{7}\r\n"]);
    for args in [&["inspect", "theirs"][..], &["inspect", "--json", "theirs"], &["list"]] {
        let done = stage.rlock(args).done().code(0);
        for bad in ['\u{1b}', '\u{7}', '\r'] {
            assert!(!done.stdout.contains(bad) && !done.stderr.contains(bad), "{bad:?} in {done:?}");
        }
    }
}

/// A replica of the stage's server that has caught up with it.
fn replica(stage: &Stage) -> Server {
    let replica = Server::start();
    let port = stage.server().port().to_string();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port).exec(&mut replica.connect()).unwrap();
    stage.redis::<()>(&["SET", "seen", "x", "PX", "60000"]);
    until("the replica follows", || (stage.redis::<u32>(&["WAIT", "1", "100"]) == 1).then_some(()));
    replica
}

#[test]
fn a_grant_that_too_few_replicas_have_is_dropped_and_nothing_runs() {
    let stage = Stage::new();
    let args = ["--wait-replicas", "1", "--report", "report", "--", "touch", "ran"];
    stage.run("job", &args).done().says(69, &["0 of the 1 replicas", "--wait-replicas", "not run"]);
    assert!(!stage.is_held("job") && !stage.path("ran").exists());
    let _replica = replica(&stage);
    stage.run("job", &["--wait-replicas", "2", "--", "touch", "ran"]).done().says(69, &["1 of the 2 replicas"]);
    assert!(!stage.is_held("job") && !stage.path("ran").exists());
    stage.run("job", &args).done().is(0, "");
    assert!(stage.path("ran").exists() && !stage.is_held("job"));
}

#[test]
fn a_renewal_that_too_few_replicas_have_does_not_count() {
    let stage = Stage::new();
    let replica = replica(&stage);
    let args = ["--ttl", "3s", "--wait-replicas", "1", "--", "sh", "-c", "echo $$ > pid; exec sleep 100"];
    let run = stage.run("job", &args).start();
    let pid = stage.written("pid");
    // Two renewals that count first.
    let past = Boot::now() + Duration::from_secs(3);
    until("a ttl has passed", || (Boot::now() > past).then_some(()));
    assert!(is_alive(&pid));
    replica.freeze();
    run.done().tells(79, &["not renewed in time", "--wait-replicas"]);
    assert!(!is_alive(&pid));
    replica.thaw();
}

#[test]
fn a_step_of_the_servers_clock_is_warned_of() {
    for (ahead_ms, words) in [(3_000, "was set forward by at least 2."), (-3_000, "was set back by at least 2.")] {
        let stage = Stage::on(Server::with_own_clock(&[]));
        let line = "echo $$ > pid; while ! [ -e stop ]; do sleep 0.01; done";
        let run = stage.run("job", &["--ttl", "6s", "--", "sh", "-c", line]).start();
        stage.written("pid");
        let renewed = |stage: &Stage| stage.held("job").until_ms;
        let first = renewed(&stage);
        // It can see: an unmoved clock is not warned of, though it is renewed.
        until("it is renewed", || (renewed(&stage) > first).then_some(()));
        stage.server().set_clock(ahead_ms);
        let second = renewed(&stage);
        until("it is renewed under the new clock", || (renewed(&stage) != second).then_some(()));
        std::fs::write(stage.path("stop"), "").unwrap();
        run.done().says(0, &["`job`: the clock of ", words, "time service"]);
    }
}

#[test]
fn a_wait_is_told_of_while_the_server_says_nothing() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--ttl", "1h", "--", "sleep", "100"]).start();
    stage.held("job");
    let terminal = Terminal::open(&stage);
    terminal.line("$R run -k job -- true");
    terminal.shows("rlock: waited ");
    stage.server().freeze();
    // What was on its way has come when the line has changed twice.
    for _ in 0..3 {
        let line = terminal.shows("rlock: waited ");
        until("the wait goes on", || (terminal.shows("rlock: waited ") != line).then_some(()));
    }
    stage.server().thaw();
    drop(holder);
}
