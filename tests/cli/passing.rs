use std::time::Duration;

use rlock::clock::Boot;

use super::Stage;

const OBEYS: &str = "trap 'echo TERM > got; exit 0' TERM; echo $$ > pid; while :; do sleep 0.1; done";

#[test]
fn force_release_stops_the_holder_and_then_the_key_passes() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--ttl", "20s", "--", "sh", "-c", OBEYS]).start();
    let pid = stage.written("pid");
    let next = stage
        .run(
            "job",
            &[
                "--",
                "sh",
                "-c",
                &format!("grep -qs '^State:.[^ZX]' /proc/{pid}/status && echo overlap; echo next > next"),
            ],
        )
        .start();
    stage.waiting("job", 1);
    let asked = Boot::now();
    let done = stage.rlock(["force-release", "job", "--yes"]).done().code(0);
    assert!(format!("{}{}", done.stdout, done.stderr).contains("was held by"), "{done:?}");
    stage.written("next");
    assert!(Boot::now().since(asked) < Duration::from_secs(5), "the holder heard of it only at a renewal");
    assert_eq!(stage.written("got"), "TERM");
    holder.done().tells(79, &["`job`", "force-release"]);
    next.done().is(0, "");
    stage.rlock(["force-release", "free", "--yes"]).done().code(0);
}

#[test]
fn force_release_without_yes_and_without_a_terminal_asks_nobody() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--", "sleep", "100"]).start();
    stage.held("job");
    let done = stage.rlock(["force-release", "job"]).done().code(64);
    assert!(done.stderr.contains("--yes"), "{done:?}");
    stage.rlock(["force-release", "job", "--yes", "--claim", &"0".repeat(32)]).done().code(1);
    assert!(stage.is_held("job"));
    drop(holder);
}
