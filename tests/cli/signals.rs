use std::os::unix::process::CommandExt;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Stage;
use crate::rlock::{is_alive, send, until};

const TRAPS: &str = "for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap \"echo $s >> got\" $s; done; echo $$ > pid; \
                     while ! [ -e stop ]; do read -t 1 x < fifo 2>/dev/null || :; sleep 0.01; done";

#[test]
fn each_signal_reaches_the_command_once() {
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGWINCH,
    ] {
        let stage = Stage::new();
        let run = stage.run("job", &["--", "bash", "-c", TRAPS]).start();
        stage.written("pid");
        run.signal(signal);
        until(&format!("{signal} arrives"), || (!stage.lines("got").is_empty()).then_some(()));
        std::fs::write(stage.path("stop"), "").unwrap();
        run.done().code(0);
        assert_eq!(stage.lines("got"), [signal.as_str().trim_start_matches("SIG")], "{signal}");
    }
}

#[test]
fn no_forward_leaves_it_to_the_sender() {
    let stage = Stage::new();
    let run = stage.run("job", &["--no-forward", "--", "bash", "-c", TRAPS]).start();
    let pid = stage.written("pid");
    run.signal(Signal::SIGUSR1);
    send(&pid, Signal::SIGUSR2);
    until("the direct signal arrives", || (!stage.lines("got").is_empty()).then_some(()));
    std::fs::write(stage.path("stop"), "").unwrap();
    run.done().code(0);
    assert_eq!(stage.lines("got"), ["USR2"]);
}

#[test]
fn after_term_the_whole_tree_is_gone_before_the_key_is_free() {
    for (name, line) in [
        ("a shell that goes on", "echo $$ > pid; sleep 100 & echo $! > child; wait; sleep 100; true"),
        ("a background child", "echo $$ > pid; sleep 100 & echo $! > child; exec sleep 100"),
        ("a session of its own", "setsid sh -c 'echo $$ > child; exec sleep 100' & echo $$ > pid; exec sleep 100"),
        (
            "one that ignores it",
            "sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 1; done' & echo $$ > pid; exec sleep 100",
        ),
    ] {
        let stage = Stage::new();
        let run = stage.run("job", &["--kill-after", "300ms", "--", "sh", "-c", line]).start();
        let pids = [stage.written("pid"), stage.written("child")];
        run.signal(Signal::SIGTERM);
        until(&format!("{name}: the key is free"), || {
            let alive = pids.iter().any(|pid| is_alive(pid));
            let free = !stage.is_held("job");
            assert!(!(free && alive && pids.iter().any(|pid| is_alive(pid))), "{name}: free while it runs");
            free.then_some(())
        });
        run.done().died(Signal::SIGTERM);
    }
}

#[test]
fn after_an_ordinary_end_what_is_left_runs_on() {
    let stage = Stage::new();
    let line = "sleep 100 >&- 2>&- & echo $! > child; echo $$ > pid";
    stage.run("job", &["--report", "report", "--", "sh", "-c", line]).done().is(0, "");
    let child = stage.written("child");
    assert!(is_alive(&child));
    send(&child, Signal::SIGKILL);
    let report: serde_json::Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
    assert_eq!(report["left_running"], 1, "{report}");
}

#[test]
fn a_signal_while_waiting_leaves_the_queue_and_runs_nothing() {
    let stage = Stage::new();
    let _holder = stage.run("job", &["--", "sleep", "100"]).start();
    stage.held("job");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1] {
        let waiter = stage.run("job", &["--", "touch", "ran"]).start();
        stage.waiting("job", 1);
        waiter.signal(signal);
        waiter.done().died(signal);
        stage.waiting("job", 0);
    }
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_command_that_ends_by_itself_after_a_stop_signal_is_not_killed() {
    let stage = Stage::new();
    // It takes longer than --kill-after: that bounds only what it leaves behind.
    let line = "trap 'sleep 1; echo clean > end; exit 5' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    let run = stage.run("job", &["--kill-after", "200ms", "--", "sh", "-c", line]).start();
    stage.written("pid");
    run.signal(Signal::SIGTERM);
    run.done().is(5, "");
    assert_eq!(stage.written("end"), "clean");
}

/// Starts it in a process group of its own.
fn in_a_group(stage: &Stage, args: &[&str]) -> crate::rlock::Running {
    let mut run = stage.run("job", args);
    run.0.process_group(0);
    run.start()
}

fn to_the_group(run: &crate::rlock::Running, signal: Signal) {
    kill(Pid::from_raw(-run.pid().as_raw()), signal).unwrap();
}

#[test]
fn a_term_to_the_whole_group_kills_nobody_who_ends_by_himself() {
    let stage = Stage::new();
    let line = "trap 'sleep 1; echo clean > end; exit 5' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    let run = in_a_group(&stage, &["--kill-after", "200ms", "--", "bash", "-c", line]);
    stage.written("pid");
    to_the_group(&run, Signal::SIGTERM);
    run.done().code(5);
    assert_eq!(stage.written("end"), "clean");
}

#[test]
fn a_term_to_the_whole_group_ends_those_outside_it_before_the_key_is_free() {
    let stage = Stage::new();
    let line = "setsid sh -c 'echo $$ > session; exec sleep 100' & echo $$ > pid; exec sleep 100";
    let run = in_a_group(&stage, &["--", "sh", "-c", line]);
    let (session, first) = (stage.written("session"), stage.written("pid"));
    // The first process has died of it by the time that rlock reads its own.
    run.signal(Signal::SIGSTOP);
    to_the_group(&run, Signal::SIGTERM);
    until("it dies", || (!is_alive(&first)).then_some(()));
    let keeper = crate::rlock::children(&run.pid().to_string()).remove(0);
    until("the keeper has told of it", || (crate::rlock::state(&keeper) == Some('S')).then_some(()));
    run.signal(Signal::SIGCONT);
    until("the key is free", || (!stage.is_held("job")).then_some(()));
    assert!(!is_alive(&session), "it runs without the lock");
    run.done().died(Signal::SIGTERM);
}

#[test]
fn a_signal_of_the_commands_own_does_not_come_back() {
    let stage = Stage::new();
    // To its group, rlock with it, as the first thing that it does.
    let line = "trap 'echo USR1 >> got' USR1; kill -USR1 0; echo $PPID > keeper; echo $$ > pid; \
                while ! [ -e stop ]; do sleep 0.01; done";
    let run = in_a_group(&stage, &["--", "bash", "-c", line]);
    stage.written("pid");
    run.signal(Signal::SIGUSR2);
    run.done().died(Signal::SIGUSR2);
    assert_eq!(stage.lines("got"), ["USR1"]);
}

#[test]
fn a_signal_at_any_instant_of_a_start_is_all_that_becomes_of_it() {
    let stage = Stage::new();
    // From before the first ask to after the command's start, so that some cross the grant on its way.
    for step in 0..160 {
        let report = stage.path(&format!("report{step}"));
        let args = ["--report", report.to_str().unwrap(), "--", "sleep", "100"];
        let run = stage.run("job", &args).start();
        std::thread::sleep(Duration::from_micros(step * 50));
        run.signal(Signal::SIGTERM);
        let done = run.done().died(Signal::SIGTERM);
        assert_eq!(done.stderr, "", "step {step}");
        // One that came before rlock listens leaves no report.
        for line in stage.lines(&format!("report{step}")) {
            let report: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert!(["ran", "interrupted"].contains(&report["outcome"].as_str().unwrap()), "step {step}: {line}");
        }
    }
}
