use std::process::Stdio;

use super::Stage;

#[test]
fn the_command_has_the_descriptors_that_rlock_was_given_and_no_more() {
    let stage = Stage::new();
    let listed = |command: &str| {
        let mut shell = stage.run("job", &[]);
        shell.0 = std::process::Command::new("bash");
        shell.0.args(["-c", &format!("exec 5</dev/null 9>/dev/null; exec {command} ls /proc/self/fd")]);
        shell.0.env("RLOCK_URL", stage.url()).env("RLOCK_CONFIG", "/dev/null").stdin(Stdio::null());
        shell.done().code(0).stdout
    };
    let given = listed("");
    assert!(given.contains("5\n") && given.contains("9\n"), "{given}");
    assert_eq!(listed(&format!("'{}' run -k job --", env!("CARGO_BIN_EXE_rlock"))), given);
}

#[test]
fn stdin_is_the_commands() {
    let stage = Stage::new();
    std::fs::write(stage.path("in"), "to the command\n").unwrap();
    let input = std::fs::File::open(stage.path("in")).unwrap();
    stage.run("job", &["--", "cat"]).stdin(input).done().is(0, "to the command\n");
}

#[test]
fn the_environment_is_as_given_plus_three() {
    let stage = Stage::new();
    let mut run = stage.run("job:a b", &["--", "env"]);
    run.0.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("RLOCK_URL", stage.url());
    run.0.env("RLOCK_TOKEN", "an outer one").env("RLOCK_CONFIG", "/dev/null").env("EMPTY", "");
    let done = run.done().code(0);
    let mut names: Vec<_> = done.stdout.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["EMPTY", "PATH", "RLOCK_CLAIM", "RLOCK_CONFIG", "RLOCK_KEY", "RLOCK_TOKEN", "RLOCK_URL"]);
    let value = |name: &str| done.stdout.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).unwrap();
    assert_eq!(value("RLOCK_KEY"), "job:a b");
    assert!(value("RLOCK_TOKEN").parse::<u64>().unwrap() > 1_000_000_000_000_000);
    let (id, key) = value("RLOCK_CLAIM").split_once('@').unwrap();
    assert_eq!((id.len(), key), (32, "job:a%20b"));
}

#[test]
fn a_hang_up_that_was_ignored_at_entry_stays_ignored() {
    let stage = Stage::new();
    let line = "echo $$ > pid; while ! [ -e stop ]; do sleep 0.01; done; grep -E 'Sig(Ign|Blk)' /proc/self/status";
    let mut nohup = stage.run("job", &[]);
    nohup.0 = std::process::Command::new("nohup");
    nohup.0.args([env!("CARGO_BIN_EXE_rlock"), "run", "-k", "job", "--", "sh", "-c", line]);
    nohup.0.env("RLOCK_URL", stage.url()).env("RLOCK_CONFIG", "/dev/null").current_dir(stage.dir.path());
    let run = nohup.stdin(Stdio::null()).start();
    stage.written("pid");
    run.signal(nix::sys::signal::Signal::SIGHUP);
    std::fs::write(stage.path("stop"), "").unwrap();
    let done = run.done().code(0);
    // Ours, and SIGHUP: signals that were ignored here are ignored there too.
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(mask(&done.stdout, "SigBlk:"), 0, "{done:?}");
    // The C library ignores two signals of its own (32 and 33) in what std spawns; SIGPIPE is ignored in a test.
    let ours = |bits: u64| bits & !(0b11 << 31) & !(1 << 12);
    assert_eq!(ours(mask(&done.stdout, "SigIgn:")), ours(mask(&own, "SigIgn:")) | 1, "{done:?}");
}

#[test]
fn an_empty_environment_is_enough() {
    let stage = Stage::new();
    // As cron gives it, and less.
    for given in ["HOME=/ LOGNAME=root SHELL=/bin/sh PATH=/usr/bin:/bin", ""] {
        let line = format!("exec env -i {given} \"$R\" --url \"$RLOCK_URL\" run -k job -- sh -c 'echo ran; exit 3'");
        let done = stage.through("sh", &["-c", &line]).done().code(3);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("ran\n", ""), "{given}");
    }
}

#[test]
fn in_a_session_without_a_terminal_it_is_ended_as_elsewhere() {
    let stage = Stage::new();
    let line = "trap 'echo TERM > got; exit 6' TERM; echo $$ > pid; while :; do sleep 0.01; done";
    let words = ["-w", env!("CARGO_BIN_EXE_rlock"), "run", "-k", "job", "--", "sh", "-c", line];
    let run = stage.through("setsid", &words).start();
    stage.written("pid");
    run.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(stage.written("got"), "TERM");
    run.done().code(6);
}
