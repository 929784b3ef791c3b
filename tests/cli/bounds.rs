use std::time::Duration;

use nix::sys::signal::Signal;
use rlock::clock::Boot;
use serde_json::Value;

use super::Stage;
use crate::rlock::{is_alive, until};

/// Notes TERM and goes on, and so does what it started.
const STUBBORN: &str = "trap 'echo TERM >> got' TERM; (trap '' TERM; echo $BASHPID > child; exec sleep 100) & \
                        echo $$ > pid; while :; do sleep 0.1; done";

fn report(stage: &Stage) -> Value {
    serde_json::from_str(&stage.lines("report")[0]).unwrap()
}

#[test]
fn a_command_that_runs_too_long_is_stopped_with_its_tree_and_then_the_key_passes() {
    let stage = Stage::new();
    let args = ["--max-runtime", "1s", "--kill-after", "500ms", "--report", "report", "--", "bash", "-c", STUBBORN];
    let run = stage.run("job", &args).start();
    let (pid, child) = (stage.written("pid"), stage.written("child"));
    let alive = format!("grep -qs '^State:.[^ZX]' /proc/{pid}/status /proc/{child}/status && echo overlap; true");
    let next = stage.run("job", &["-q", "--", "sh", "-c", &alive]).start();
    stage.waiting("job", 1);
    assert_eq!(stage.written("got"), "TERM");
    run.done().tells(124, &["`job`", "--max-runtime", "SIGTERM"]);
    assert!(!is_alive(&pid) && !is_alive(&child));
    next.done().is(0, "");
    let report = report(&stage);
    assert_eq!((&report["outcome"], &report["code"]), (&"max_runtime".into(), &124.into()), "{report}");
    assert!(report["why"].as_str().unwrap().contains("--max-runtime"), "{report}");
}

#[test]
fn a_command_that_obeys_is_124_too_and_one_that_is_in_time_keeps_its_code() {
    let stage = Stage::new();
    let line = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    stage.run("job", &["--max-runtime", "500ms", "--", "sh", "-c", line]).done().tells(124, &["--max-runtime"]);
    let line = "trap 'exit 0' INT; while :; do sleep 0.1; done";
    let args = ["--max-runtime", "500ms", "--signal", "INT", "--", "sh", "-c", line];
    stage.run("job", &args).done().tells(124, &["SIGINT"]);
    stage.run("job", &["--max-runtime", "100s", "--", "sh", "-c", "exit 9"]).done().is(9, "");
    stage.run("job", &["--max-runtime", "0", "--", "sleep", "0.2"]).done().is(0, "");
    assert!(!stage.is_held("job"));
}

#[test]
fn a_kept_lock_outlives_its_run_says_so_and_ends_by_itself() {
    let stage = Stage::new();
    let began = Boot::now();
    let args = ["--hold-at-least", "3s", "--ttl", "20s", "--", "sh", "-c", "exit 4"];
    stage.run("job", &args).done().is(4, "");
    assert!(Boot::now().since(began) < Duration::from_secs(3), "rlock stayed for the lock's sake");
    assert!(!stage.held("job").process);
    stage
        .run("job", &["-n", "--", "true"])
        .done()
        .says(75, &["`job` is kept until ", " after a run of ", " that ended"]);
    let inspect = stage.rlock(["inspect", "job"]).done().code(0);
    assert!(inspect.stdout.contains("a run that ended"), "{}", inspect.stdout);
    // Who waits has it at once when its time is over, and not before.
    stage.run("job", &["-q", "--", "sh", "-c", "exit 5"]).done().is(5, "");
    let took = Boot::now().since(began);
    assert!((3_000..5_000).contains(&took.as_millis()), "the next one ran after {took:?}");
    assert!(!stage.is_held("job"));
}

#[test]
fn a_kept_lock_may_outlast_its_ttl_and_ends_with_the_run_where_that_is_longer() {
    let stage = Stage::new();
    stage.run("long", &["--ttl", "2s", "--hold-at-least", "1h", "--", "true"]).done().is(0, "");
    assert!(stage.left("long") > Duration::from_secs(3_590));
    // Nobody is there to hear of it: it goes at once.
    stage.rlock(["force-release", "long", "--yes"]).done().code(0);
    assert!(!stage.is_held("long"));
    stage.run("short", &["--hold-at-least", "100ms", "--", "sleep", "0.3"]).done().is(0, "");
    assert!(!stage.is_held("short"));
    stage.run("missing", &["--hold-at-least", "1h", "--", "/dev/null"]).done().code(126);
    assert!(!stage.is_held("missing"));
}

#[test]
fn a_signal_ends_the_random_delay_and_nothing_was_asked_for() {
    let stage = Stage::new();
    let run = stage.run("job", &["-v", "--jitter", "24h", "--report", "report", "--", "true"]).start();
    until("it is there", || std::fs::exists(stage.path("report")).unwrap().then_some(()));
    until("its signals are blocked", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.pid())).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap().to_owned();
        (u64::from_str_radix(&blocked, 16).unwrap() & 1 << (Signal::SIGTERM as u64 - 1) != 0).then_some(())
    });
    assert!(stage.look("job").queue.is_empty() && !stage.is_held("job"));
    run.signal(Signal::SIGTERM);
    let done = run.done().died(Signal::SIGTERM);
    assert!(done.stderr.contains("(--jitter)"), "{done:?}");
    assert_eq!(report(&stage)["outcome"], "interrupted");
    stage.run("job", &["--jitter", "100ms", "--", "true"]).done().is(0, "");
}

#[test]
fn bounds_that_make_no_sense_are_refused() {
    let stage = Stage::new();
    for (args, words) in [
        (["--max-runtime", "x"], "--max-runtime"),
        (["--hold-at-least", "25h"], "--hold-at-least"),
        (["--jitter", "-1"], "--jitter"),
        (["--wait-replicas", "-1"], "--wait-replicas"),
    ] {
        let args = [&args[..], &["--", "true"]].concat();
        stage.run("job", &args).done().says(64, &[words]);
    }
}
