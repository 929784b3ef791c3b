use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use rlock::clock::Boot;
use serde_json::Value;

use super::Stage;
use crate::rlock::{is_alive, until, within};

const BEATS: &str = "echo $$ > pid; while :; do sleep 0.1; done";
/// Notes TERM and ends by itself.
const OBEYS: &str = "trap 'echo TERM > got; exit 0' TERM; echo $$ > pid; while :; do sleep 0.1; done";
/// Notes TERM and goes on.
const IGNORES: &str = "trap 'echo TERM >> got' TERM; echo $$ > pid; while :; do sleep 0.1; done";

#[test]
fn a_key_that_another_took_stops_the_tree_and_is_left_alone() {
    for (line, args) in [(OBEYS, &[][..]), (IGNORES, &["--kill-after", "300ms"])] {
        let stage = Stage::new();
        let args = [&["--ttl", "2s", "--report", "report"], args, &["--", "sh", "-c", line]].concat();
        let run = stage.run("job", &args).start();
        let pid = stage.written("pid");
        stage.redis::<()>(&["SET", "job", "theirs"]);
        assert_eq!(stage.written("got"), "TERM");
        run.done().tells(79, &["`job`", "lease"]);
        assert!(!is_alive(&pid));
        assert_eq!(stage.redis::<String>(&["GET", "job"]), "theirs");
        assert_eq!(stage.redis::<i64>(&["PTTL", "job"]), -1);
        let report: Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
        assert_eq!((&report["outcome"], &report["code"]), (&"lost".into(), &79.into()), "{report}");
    }
}

#[test]
fn on_lost_kill_skips_the_signal_and_warn_lets_it_run() {
    let stage = Stage::new();
    let run = stage.run("job", &["--ttl", "2s", "--on-lost", "kill", "--", "sh", "-c", IGNORES]).start();
    stage.written("pid");
    stage.redis::<()>(&["SET", "job", "theirs"]);
    run.done().code(79);
    assert!(!stage.path("got").exists());

    let stage = Stage::new();
    let line = "echo $$ > pid; while ! [ -e stop ]; do sleep 0.01; done; exit 7";
    let run =
        stage.run("job", &["--ttl", "2s", "--on-lost", "warn", "--report", "report", "--", "sh", "-c", line]).start();
    stage.written("pid");
    stage.redis::<()>(&["SET", "job", "theirs"]);
    let end = Boot::now() + Duration::from_secs(3);
    until("more than a ttl has passed", || (Boot::now() >= end).then_some(()));
    std::fs::write(stage.path("stop"), "").unwrap();
    run.done().says(7, &["`job`", "lease"]);
    let report: Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
    assert_eq!(report["outcome"], "lost", "{report}");
}

/// Freezes the server, and watches that the tree is dead before the server's own clock could give the key away.
fn frozen(args: &[&str], line: &str) -> Stage {
    let stage = Stage::new();
    let args = [&["--ttl", "3s"], args, &["--", "sh", "-c", line]].concat();
    let run = stage.run("job", &args).start();
    let pid = stage.written("pid");
    // Its end by the server's clock, in milliseconds since 1970: the latest that a renewal has set.
    let value = stage.value("job");
    stage.server().freeze();
    let until_ms = serde_json::from_str::<Value>(&value).unwrap()["until_ms"].as_u64().unwrap();
    until("it is dead", || (!is_alive(&pid)).then_some(()));
    let now = rlock::clock::wall_ms();
    // A renewal may have come between the look and the freeze: then the end is later, and this only too strict by it.
    assert!(now < until_ms + 1_000, "dead {} ms after the lease's end", now.saturating_sub(until_ms));
    run.done().code(79);
    stage.server().thaw();
    let after: u64 = stage
        .redis::<Option<String>>(&["GET", "job"])
        .map_or(u64::MAX, |value| serde_json::from_str::<Value>(&value).unwrap()["until_ms"].as_u64().unwrap());
    assert!(now < after, "dead at {now}, the lease ended at {after}");
    stage
}

#[test]
fn a_frozen_server_ends_the_command_before_the_lease_could_pass() {
    let stage = frozen(&[], OBEYS);
    assert_eq!(stage.written("got"), "TERM");
}

#[test]
fn a_command_that_ignores_the_signal_is_killed_in_time() {
    let stage = frozen(&["--kill-after", "500ms"], IGNORES);
    assert_eq!(stage.written("got"), "TERM");
}

#[test]
fn a_command_that_ignores_the_signal_is_killed_although_renewing_works_again() {
    let stage = Stage::new();
    let args = ["--ttl", "3s", "--kill-after", "1s", "--", "sh", "-c", IGNORES];
    let run = stage.run("job", &args).start();
    let pid = stage.written("pid");
    stage.server().freeze();
    stage.written("got");
    let signalled = Boot::now();
    stage.server().thaw();
    until("it is dead", || (!is_alive(&pid)).then_some(()));
    let took = Boot::now().since(signalled);
    assert!(took < Duration::from_millis(1_500), "killed {took:?} after the signal");
    run.done().code(79);
    assert!(!stage.is_held("job"));
}

#[test]
fn an_outage_below_the_tolerance_is_not_noticed() {
    // At 12 s: 2/3 of 12 s, less 2 s of grace, 0.12 s of slack, 0.122 s of margin and a try of 0.8 s leave 4.9 s.
    let stage = Stage::new();
    let run = stage.run("job", &["--ttl", "12s", "--", "sh", "-c", "echo $$ > pid; exec sleep 11"]).start();
    stage.written("pid");
    stage.server().freeze();
    std::thread::sleep(Duration::from_millis(4_500));
    stage.server().thaw();
    run.done().is(0, "");
}

#[test]
fn a_server_that_died_ends_the_command_in_time() {
    let mut stage = Stage::new();
    let run = stage.run("job", &["--ttl", "2s", "--", "sh", "-c", BEATS]).start();
    let pid = stage.written("pid");
    stage.server_mut().stop();
    let stopped = Boot::now();
    until("it is dead", || (!is_alive(&pid)).then_some(()));
    assert!(Boot::now().since(stopped) < Duration::from_secs(2), "the lease was over");
    run.done().says(79, &["`job`", "lease"]);
}

#[test]
fn a_stuck_stderr_changes_nothing_of_this() {
    use std::os::fd::AsFd;
    let stage = Stage::new();
    let (reader, writer) = nix::unistd::pipe().unwrap();
    nix::fcntl::fcntl(writer.as_fd(), nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(writer.as_fd(), &[b'x'; 4096]).is_ok() {}
    nix::fcntl::fcntl(writer.as_fd(), nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let mut command = stage.run("job", &["-v", "--ttl", "2s", "--", "sh", "-c", BEATS]);
    let mut child = command.0.stdout(std::process::Stdio::null()).stderr(writer).spawn().unwrap();
    let pid = stage.written("pid");
    stage.server().freeze();
    let frozen = Boot::now();
    until("it is dead", || (!is_alive(&pid)).then_some(()));
    assert!(Boot::now().since(frozen) < Duration::from_secs(2), "the lease was over");
    let status = within(Duration::from_secs(10), || child.try_wait().unwrap());
    assert_eq!(status.and_then(|status| status.code()), Some(79));
    stage.server().thaw();
    drop(reader);
}

#[test]
fn a_frozen_acquire_leaves_no_ghost() {
    let stage = Stage::new();
    stage.server().freeze();
    stage.run("job", &["-n", "--store-timeout", "700ms", "--", "touch", "ran"]).done().code(69);
    let waiter = stage.run("job", &["--", "touch", "ran"]).start();
    let asked = Boot::now() + Duration::from_millis(900);
    until("it has asked", || (Boot::now() >= asked).then_some(()));
    waiter.signal(Signal::SIGTERM);
    waiter.done().died(Signal::SIGTERM);
    stage.server().thaw();
    // Whatever was sent is processed before this answer.
    stage.run("job", &["-n", "--", "true"]).done().is(0, "");
    assert!(!stage.path("ran").exists());
    assert!(!stage.is_held("job"));
}

#[test]
fn force_release_now_passes_the_key_at_once_and_removes_foreign_ones() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--ttl", "3s", "--", "sh", "-c", OBEYS]).start();
    stage.written("pid");
    let done = stage.rlock(["force-release", "job", "--yes", "--now"]).done().code(0);
    assert!(done.stderr.contains("two"), "it says that two may run: {done:?}");
    stage.run("job", &["-n", "--", "true"]).done().is(0, "");
    holder.done().code(79);

    stage.redis::<()>(&["SET", "job", "theirs"]);
    stage.rlock(["force-release", "job", "--yes"]).done().code(1);
    assert_eq!(stage.redis::<String>(&["GET", "job"]), "theirs");
    stage.rlock(["force-release", "job", "--yes", "--now"]).done().code(0);
    assert!(!stage.is_held("job"));
}

/// As `rlock run -- sudo cmd`: the command makes itself somebody whom rlock may not signal.
#[test]
fn what_has_risen_above_rlock_is_named_and_rlock_ends_all_the_same() {
    assert!(geteuid().is_root(), "this test must run as root: it makes a program that others run as root");
    let stage = Stage::new();
    fs::set_permissions(stage.dir.path(), Permissions::from_mode(0o777)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_rlock"), stage.path("rlock")).unwrap();
    fs::copy("/usr/bin/setpriv", stage.path("rise")).unwrap();
    fs::set_permissions(stage.path("rise"), Permissions::from_mode(0o4755)).unwrap();
    let rise = "./rise --reuid=0 --regid=0 --clear-groups sh -c 'echo $$ > risen; exec sleep 100'";
    for (line, how) in [(format!("exec {rise}"), "first"), (format!("{rise} & echo $$ > below; wait"), "child")] {
        let own =
            ["--reuid=64340", "--clear-groups", "./rlock", "run", "-kjob", "--ttl=2s", "--report=report", "-c", &line];
        let mut run = stage.through("setpriv", &own).start();
        let risen = stage.written("risen");
        until("it is called sleep", || {
            (fs::read_to_string(format!("/proc/{risen}/comm")).ok()? == "sleep\n").then_some(())
        });
        let keeper = crate::rlock::children(&run.pid().to_string()).remove(0);
        stage.server().freeze();
        until("rlock ends", || run.is_over().then_some(()));
        stage.server().thaw();
        let done = run.done().code(79);
        let lines: Vec<_> = done.stderr.lines().collect();
        assert!(lines.iter().all(|line| line.starts_with("rlock: ")), "{lines:?}");
        let named = lines.iter().filter(|line| line.contains(&risen) && line.contains("sleep")).count();
        assert!(named > 0, "{how}: nobody is named in {lines:?}");
        assert!(stage.written("report").contains(&format!("\"unkilled\":[{risen}]")), "{}", stage.written("report"));
        assert!(is_alive(&risen), "{how}: it was stopped, and this test shows nothing");
        until("the keeper ends too", || (!is_alive(&keeper)).then_some(()));
        if how == "child" {
            assert!(!is_alive(&stage.written("below")), "what could be stopped runs on");
        }
        crate::rlock::send(&risen, Signal::SIGKILL);
        fs::remove_file(stage.path("risen")).unwrap();
        fs::remove_file(stage.path("report")).unwrap();
        until("the key has lapsed", || (!stage.is_held("job")).then_some(()));
    }
}
