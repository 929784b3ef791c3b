use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use super::Stage;
use crate::rlock::{Cmd, PATIENCE, is_alive, until, within};

/// This program with these words, which start rlock as `"$R"`, on the stage's server.
fn through(stage: &Stage, program: &str, words: &[&str]) -> Cmd {
    let mut command = stage.rlock(["run"]);
    let mut other = Command::new(program);
    for (name, value) in command.0.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other.env("R", env!("CARGO_BIN_EXE_rlock")).args(words).current_dir(stage.dir.path()).stdin(Stdio::null());
    command.0 = other;
    command
}

#[test]
fn streams_may_be_closed() {
    let stage = Stage::new();
    let runs = |line: &str| through(&stage, "sh", &["-c", line]).done();
    runs("exec \"$R\" run -k job -- sh -c 'exit 3' <&- >&- 2>&-").code(3);
    runs("exec \"$R\" run -k job -- /no/such <&- >&- 2>&-").code(127);
    runs("exec \"$R\" run -k job -- echo printed <&-").is(0, "printed\n");
    // Nothing of ours has taken their place.
    runs("exec \"$R\" run -k job -- sh -c 'for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done' 2>&- <&-")
        .code(0)
        .stdout
        .lines()
        .for_each(|target| assert!(target == "/dev/null" || target.starts_with("pipe:"), "{target}"));
}

#[test]
fn sixteen_descriptors_are_enough() {
    let stage = Stage::new();
    // What the tests are run with must not count.
    let line = "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done; ulimit -n 16; exec \"$R\" run -k job -- sh -c 'exit 3'";
    through(&stage, "sh", &["-c", line]).done().is(3, "");
}

#[test]
fn a_system_that_refuses_processes_and_threads_is_71() {
    assert!(geteuid().is_root(), "this test must run as root: the limit is one of another user");
    let stage = Stage::new();
    fs::copy(env!("CARGO_BIN_EXE_rlock"), stage.path("rlock")).unwrap();
    fs::set_permissions(stage.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Nobody else is this user, so 1 is rlock itself, 2 its keeper, 3 and 4 its threads.
    for most in 1..=4 {
        let line = format!("ulimit -u {most}; exec ./rlock run -k job -- true");
        let words = ["--reuid=64321", "--regid=64321", "--clear-groups", "bash", "-c", &line];
        through(&stage, "setpriv", &words).done().says(71, &["cannot start"]);
        assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
    }
    // Without a timer nothing would wake a keeper that is stopped.
    let words = ["--reuid=64321", "--regid=64321", "--clear-groups", "bash", "-c"];
    let line = "ulimit -i 0; exec ./rlock run -k job -- touch wrong";
    through(&stage, "setpriv", &[&words[..], &[line]].concat()).done().says(71, &["guards the command", "ulimit"]);
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
        let mut run = through(&stage, "setpriv", &own).start();
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

#[test]
fn it_may_be_the_first_process_of_a_container() {
    assert!(geteuid().is_root(), "this test must run as root: it makes a PID namespace");
    let stage = Stage::new();
    let unshare = |args: &[&str]| {
        let own = ["-pf", "--mount-proc", "--kill-child", env!("CARGO_BIN_EXE_rlock"), "run", "-k", "job"];
        through(&stage, "unshare", &[&own[..], args].concat())
    };
    unshare(&["--", "sh", "-c", "sleep 0.1 & exit 6"]).done().is(6, "");
    // The kernel spares PID 1 a signal that it raises itself: the code says it.
    unshare(&["--", "sh", "-c", "kill -TERM $$"]).done().is(143, "");
    let line = "setsid sh -c 'touch session; exec sleep 100' & touch first; wait";
    let run = unshare(&["--", "sh", "-c", line]).start();
    until("all run", || (stage.path("session").exists() && stage.path("first").exists()).then_some(()));
    let own = crate::rlock::children(&run.pid().to_string()).remove(0);
    crate::rlock::send(&own, Signal::SIGTERM);
    run.done().is(143, "");
    assert!(!is_alive(&own) && !stage.redis::<bool>(&["EXISTS", "job"]));
}

#[test]
fn nothing_is_left_to_a_first_process_that_reaps_nothing() {
    assert!(geteuid().is_root(), "this test must run as root: it makes a PID namespace");
    let stage = Stage::new();
    // It waits for rlock alone, and then lists the dead.
    let line = "system($ENV{R}, 'run', '-k', 'job', @ARGV); for (glob '/proc/[0-9]*/stat') { \
                open my $f, '<', $_ or next; my $line = <$f>; print $line if $line =~ /\\) Z /; }";
    for args in [&["--", "true"][..], &["--", "sh", "-c", "exit 3"], &["--", "sh", "-c", "kill -KILL $PPID"]] {
        let own = ["-pf", "--mount-proc", "perl", "-e", line];
        let done = through(&stage, "unshare", &[&own[..], args].concat()).done().code(0);
        assert_eq!(done.stdout, "", "{args:?}");
    }
}

#[test]
fn a_run_inside_a_run_of_the_same_key_is_refused_and_of_another_named_after_it() {
    let stage = Stage::new();
    let inner = |key: &'static str, args: &[&str]| {
        let words = ["--", env!("CARGO_BIN_EXE_rlock"), "run", "-k", key];
        stage.run("outer", &[&words[..], args].concat())
    };
    inner("outer", &["--", "touch", "wrong"]).done().says(64, &["`outer`", "around this one", "not run"]);
    assert!(!stage.path("wrong").exists());
    let done = inner("inner", &["--", "sh", "-c", "echo $RLOCK_CLAIM; echo $RLOCK_KEY"]).done().code(0);
    let lines: Vec<_> = done.stdout.lines().collect();
    let keys: Vec<_> = lines[0].split(',').map(|word| word.split_once('@').unwrap().1).collect();
    assert_eq!((keys, lines[1]), (vec!["outer", "inner"], "inner"));
}

#[test]
fn an_environment_that_is_too_long_for_the_command_is_126() {
    let stage = Stage::new();
    // The longest that the kernel takes; and one that grows sixfold on its way to the keeper.
    for filling in ["a", "\u{1}"] {
        let claim = format!("{}@{}", "1".repeat(32), filling.repeat(131_000));
        let run = stage.run("job", &["--", "true"]).env("RLOCK_CLAIM", claim);
        run.done().says(126, &["`/", "true` cannot be run"]);
        assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
    }
}

#[test]
fn a_command_that_is_gone_when_its_turn_comes_frees_the_key_for_the_next() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done"]).start();
    stage.held("job");
    fs::copy("/bin/true", stage.path("command")).unwrap();
    let waiter = stage.run("job", &["--", "./command"]).start();
    stage.waiting("job", 1);
    let next = stage.run("job", &["--", "true"]).start();
    stage.waiting("job", 2);
    fs::remove_file(stage.path("command")).unwrap();
    fs::write(stage.path("go"), "").unwrap();
    waiter.done().tells(127, &["`./command` cannot be run"]);
    next.done().code(0);
    holder.done().code(0);
}

#[test]
fn what_kills_its_parents_dies_with_them() {
    let stage = Stage::new();
    let line = "echo $$ > first; sh -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 0.01; done' & \
                while ! [ -e child ]; do sleep 0.01; done;";
    // The keeper is its parent, rlock the keeper's.
    let keeper = stage.run("job", &["--", "sh", "-c", &format!("{line} kill -KILL $PPID; sleep 100")]).done();
    keeper.says(70, &["keeper"]);
    assert!(!is_alive(&stage.written("child")) && !stage.redis::<bool>(&["EXISTS", "job"]));
    fs::remove_file(stage.path("child")).unwrap();
    let grandparent = "read -r _ _ _ up _ < /proc/$PPID/stat; kill -KILL $up; sleep 100";
    let run = stage.run("job", &["--", "sh", "-c", &format!("{line} {grandparent}")]).start();
    let child = stage.written("child");
    run.done().died(Signal::SIGKILL);
    assert!(within(PATIENCE, || (!is_alive(&child)).then_some(())).is_some());
}
