use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::Stage;

#[test]
fn every_code_of_the_command_comes_through() {
    let stage = Stage::new();
    // One server and one key: a code that left the key behind would make the next run wait for ever.
    let running: Vec<_> = (0..=255)
        .map(|code: i32| stage.run(&format!("code:{code}"), &["--", "sh", "-c", &format!("exit {code}")]))
        .collect();
    for (code, command) in (0..).zip(running) {
        command.done().is(code, "");
    }
    assert_eq!(stage.keys(), Vec::<String>::new());
}

#[test]
fn rlock_dies_of_the_commands_signal() {
    let stage = Stage::new();
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGINT, Signal::SIGABRT] {
        let line = format!("kill -{} $$", signal as i32);
        let done = stage.run("job", &["--", "sh", "-c", &line]).done().died(signal);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""), "{signal}");
    }
}

#[test]
fn the_output_is_the_commands_alone() {
    let stage = Stage::new();
    stage.run("job", &["--", "echo", "a  b", "$HOME", "--key"]).done().is(0, "a  b $HOME --key\n");
    stage.run("job", &["-c", "echo one; exit 3"]).done().is(3, "one\n");
    stage.run("job", &["echo", "-n", "no dashes"]).done().is(0, "no dashes");
}

#[test]
fn a_command_that_cannot_run_is_126_or_127_and_the_store_is_not_asked() {
    let stage = Stage::new();
    stage.run("job", &["--", "no-such-command-anywhere"]).done().says(127, &["no-such-command-anywhere", "PATH"]);
    stage.run("job", &["--", "./missing"]).done().says(127, &["./missing"]);
    fs::write(stage.path("plain"), "text").unwrap();
    stage.run("job", &["--", "./plain"]).done().says(126, &["./plain"]);
    stage.run("job", &["--", "/tmp"]).done().says(126, &["/tmp"]);
    assert_eq!(stage.keys(), Vec::<String>::new());
}

#[test]
fn busy_is_75_with_the_holder_named() {
    let stage = Stage::new();
    let holder = stage.run("job:backup", &["--label", "nightly", "--", "sleep", "100"]).start();
    stage.held("job:backup");
    let pid = holder.pid().to_string();
    let done = stage.run("job:backup", &["-n", "--", "touch", "ran"]).done();
    done.says(
        75,
        &[
            "`job:backup` is held by ",
            &format!("pid {pid}"),
            "(sleep, nightly)",
            "lease ",
            "not run",
            "rlock inspect job:backup",
        ],
    );
    stage.run("job:backup", &["-w", "300ms", "--", "touch", "ran"]).done().says(75, &["`job:backup`", &pid, "300ms"]);
    stage.run("job:backup", &["-n", "-E", "0", "--", "touch", "ran"]).done().says(0, &["is held by"]);
    stage.run("job:backup", &["-n", "-E", "9", "-q", "--", "touch", "ran"]).done().is(9, "");
    stage.run("job:backup", &["--skip", "--", "touch", "ran"]).done().is(0, "");
    assert!(!stage.path("ran").exists());
}

#[test]
fn the_report_tells_a_commands_own_75_from_a_busy_lock() {
    let stage = Stage::new();
    stage.run("job", &["--report", "report", "--", "sh", "-c", "exit 75"]).done().is(75, "");
    let holder = stage.run("job", &["--", "sleep", "100"]).start();
    stage.held("job");
    stage.run("job", &["-n", "--report", "report", "--", "true"]).done().code(75);
    drop(holder);
    let reports: Vec<Value> = stage.lines("report").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [own, busy] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(
        (&own["v"], &own["outcome"], &own["code"], &own["key"]),
        (&1.into(), &"ran".into(), &75.into(), &"job".into())
    );
    assert!(
        own["token"].as_u64().unwrap() > 0 && own["held_ms"].is_u64() && own["claim"].as_str().unwrap().len() == 32
    );
    assert_eq!((&busy["outcome"], &busy["code"]), (&"busy".into(), &75.into()));
    assert!(busy["holder"]["pid"].is_u64(), "{busy}");
}

#[test]
fn the_report_tells_rlocks_own_70_and_64_from_the_commands() {
    let stage = Stage::new();
    let report = |name: &str| serde_json::from_str::<Value>(&stage.lines(name)[0]).unwrap();
    let run = stage.run("job", &["--report", "killed", "--", "sh", "-c", "echo in > in; exec sleep 100"]).start();
    stage.written("in");
    crate::rlock::send(&crate::rlock::children(&run.pid().to_string())[0], nix::sys::signal::Signal::SIGKILL);
    run.done().code(70);
    let killed = report("killed");
    assert_eq!((&killed["outcome"], &killed["code"]), (&"failed".into(), &70.into()), "{killed}");
    assert!(killed["why"].as_str().unwrap().contains("keeper"), "{killed}");
    let inner = format!("'{}' run -k job --report nested -- true", env!("CARGO_BIN_EXE_rlock"));
    stage.run("job", &["-c", &inner]).done().code(64);
    let nested = report("nested");
    assert_eq!((&nested["outcome"], &nested["code"]), (&"config".into(), &64.into()), "{nested}");
}

#[test]
fn a_report_that_cannot_be_opened_is_73() {
    let stage = Stage::new();
    stage.run("job", &["--report", "no/such/dir", "--", "touch", "ran"]).done().says(73, &["no/such/dir"]);
    stage.run("job", &["--report", "fd:77", "--", "touch", "ran"]).done().says(73, &["77"]);
    assert!(!stage.path("ran").exists());
}

#[test]
fn the_report_may_go_to_a_descriptor_that_the_command_does_not_see() {
    let stage = Stage::new();
    let line = format!(
        "exec 7>report; exec '{}' run -k job --report fd:7 -- sh -c 'ls /proc/self/fd > fds'",
        env!("CARGO_BIN_EXE_rlock")
    );
    let mut shell = stage.run("job", &[]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]).current_dir(stage.dir.path()).env("RLOCK_URL", stage.url());
    command.env("RLOCK_CONFIG", "/dev/null").stdin(std::process::Stdio::null());
    shell.0 = command;
    shell.done().is(0, "");
    assert!(!stage.lines("fds").contains(&"7".to_owned()), "{:?}", stage.lines("fds"));
    let report: Value = serde_json::from_str(&stage.lines("report")[0]).unwrap();
    assert_eq!(report["outcome"], "ran");
}
