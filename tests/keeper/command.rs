//! What the command gets, and how its end comes through.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use nix::unistd::{getpgid, getsid};
use rlock::child::Ending;
use rlock::keeper::{Environment, Event};

use crate::rig::{Rig, alive, signal, stop, wait_for};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("every_exit_code_comes_through", every_exit_code_comes_through),
    ("every_deadly_signal_comes_through", every_deadly_signal_comes_through),
    ("the_command_has_exactly_the_given_descriptors", the_command_has_exactly_the_given_descriptors),
    ("the_keeper_holds_nothing_of_the_command", the_keeper_holds_nothing_of_the_command),
    ("the_environment_is_exact", the_environment_is_exact),
    ("mask_and_dispositions_are_those_at_entry", mask_and_dispositions_are_those_at_entry),
    (
        "the_keeper_runs_before_others_and_the_command_as_at_entry",
        the_keeper_runs_before_others_and_the_command_as_at_entry,
    ),
    ("the_command_stays_in_the_group", the_command_stays_in_the_group),
    ("stops_and_continues_are_told", stops_and_continues_are_told),
    ("an_orphaned_group_is_not_stopped", an_orphaned_group_is_not_stopped),
    ("job_control_stops_the_command", job_control_stops_the_command),
    ("what_the_terminal_gave_to_all_is_known", what_the_terminal_gave_to_all_is_known),
    ("a_script_without_an_interpreter_line_runs", a_script_without_an_interpreter_line_runs),
    ("a_failed_start_is_told", a_failed_start_is_told),
    ("what_cannot_be_found_forks_nothing", what_cannot_be_found_forks_nothing),
    ("it_works_with_closed_streams", it_works_with_closed_streams),
    ("it_works_with_few_descriptors", it_works_with_few_descriptors),
    ("it_works_as_pid_1", it_works_as_pid_1),
    ("a_foreign_proc_is_refused", a_foreign_proc_is_refused),
    ("done_leaves_the_background_alone", done_leaves_the_background_alone),
    ("signals_are_read_with_their_sender", signals_are_read_with_their_sender),
    ("dying_of_a_signal_shows_it", dying_of_a_signal_shows_it),
];

fn ending_of(rig: Rig, command: &[&str]) -> Ending {
    rig.run(command).0.ending()
}

fn every_exit_code_comes_through() {
    for code in 0..=255 {
        assert_eq!(ending_of(Rig::new(), &["sh", "-c", &format!("exit {code}")]), Ending::Code(code));
    }
}

fn every_deadly_signal_comes_through() {
    for number in [1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 34, 64] {
        let (mut parent, first) = Rig::new().run(&["sleep", "1000"]);
        signal(first, number);
        assert_eq!(parent.ending(), Ending::Signal(number));
    }
}

/// The descriptors that `ls -l /proc/PID/fd` has listed, and what they are.
fn descriptors(listing: &str) -> BTreeSet<(u32, String)> {
    let lines = listing.lines().filter_map(|line| {
        let (number, target) = line.rsplit_once(" -> ")?;
        Some((number.rsplit_once(' ')?.1.parse().unwrap(), target.to_owned()))
    });
    // The one with which `ls` reads the directory is its own.
    lines.filter(|(_, target)| !(target.starts_with("/proc/") && target.ends_with("/fd"))).collect()
}

fn the_command_has_exactly_the_given_descriptors() {
    let list = ["ls", "-l", "/proc/self/fd"];
    let directly = ["sh", "-c", r#"exec "$0" "$@" 2>stderr 7<>seven"#];
    let rig = Rig::new().through(&["sh", "-c", r#"exec "$0" "$@" 2>stderr 7<>seven 8>report"#]).taking("8");
    let stdout = File::create(rig.path().join("directly")).unwrap();
    let mut command = Command::new(directly[0]);
    command.args(&directly[1..]).args(list).current_dir(rig.path()).stdin(Stdio::null()).stdout(stdout);
    assert!(command.status().unwrap().success());

    let (mut parent, _) = rig.run(&list);
    assert_eq!(parent.ending(), Ending::Code(0));
    let read = |name: &str| fs::read_to_string(parent.path().join(name)).unwrap().replace("directly", "stdout");
    let (expected, given) = (descriptors(&read("directly")), descriptors(&read("stdout")));
    assert!(expected.iter().any(|(number, target)| *number == 7 && target.ends_with("/seven")), "{expected:?}");
    assert_eq!(given, expected);
    assert_eq!(parent.lines_of("report", 1), ["taken"], "the parent has the one that it took");
}

fn the_keeper_holds_nothing_of_the_command() {
    let rig = Rig::new().through(&["sh", "-c", r#"exec "$0" "$@" 7<>seven"#]);
    let (parent, _) = rig.run(&["sleep", "1000"]);
    parent.wait_until_the_keeper_rests();
    let mut held = parent.held_by_the_keeper();
    held.retain(|target| target != "/dev/null");
    held.sort();
    assert_eq!(held.len(), 3, "{held:?}");
    assert_eq!(held[0], "anon_inode:[signalfd]");
    assert!(held[1].starts_with("pipe:") && held[2].starts_with("socket:"), "{held:?}");
}

fn the_environment_is_exact() {
    let rig = Rig::new().through(&["env", "-i", "PATH=/usr/bin:/bin", "A=1 2\n3", "RLOCK_KEY=outer", "RLOCK_TOKEN=7"]);
    let mut parent = rig.start(&["env", "-0"]);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let set = vec![pair("RLOCK_KEY", "inner\nschlüssel"), pair("RLOCK_CLAIM", "")];
    parent.spawn_with(&Environment { set, unset: vec!["RLOCK_TOKEN".into(), "NEVER_SET".into()] });
    assert_eq!(parent.ending(), Ending::Code(0));
    let given = fs::read_to_string(parent.path().join("stdout")).unwrap();
    let mut given: Vec<_> = given.split_terminator('\0').collect();
    given.sort_unstable();
    assert_eq!(given, ["A=1 2\n3", "PATH=/usr/bin:/bin", "RLOCK_CLAIM=", "RLOCK_KEY=inner\nschlüssel"]);
}

fn mask_and_dispositions_are_those_at_entry() {
    let show = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let ways: [&[&str]; 3] = [
        &["env"],
        &["env", "--ignore-signal=PIPE", "--ignore-signal=HUP", "--block-signal=USR1", "--block-signal=TSTP"],
        &["env", "--ignore-signal=CHLD", "--ignore-signal=CONT", "--ignore-signal=INT", "--ignore-signal=TERM"],
    ];
    for way in ways {
        let direct = Command::new(way[0]).args(&way[1..]).args(show).output().unwrap().stdout;
        let (mut parent, _) = Rig::new().through(way).run(&show);
        assert_eq!(parent.ending(), Ending::Code(0));
        assert_eq!(parent.lines_of("stdout", 2).join("\n") + "\n", String::from_utf8(direct).unwrap(), "{way:?}");
    }
}

/// Its nice value, real-time priority and scheduling policy.
fn scheduling(stat: &str) -> Vec<&str> {
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    [19, 40, 41].map(|number| fields[number - 3].trim_end()).to_vec()
}

fn the_keeper_runs_before_others_and_the_command_as_at_entry() {
    let may_change = Command::new("chrt").args(["-r", "1", "true"]).status().unwrap().success();
    let may = may_change && fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp:\t0");
    let ways: [&[&str]; 4] = [&["env"], &["nice", "-n", "5"], &["chrt", "-b", "0"], &["chrt", "-f", "7"]];
    for way in &ways[..if may_change { 4 } else { 3 }] {
        let show = ["sh", "-c", "cat /proc/$$/stat; exec sleep 1000"];
        let direct = Command::new(way[0]).args(&way[1..]).args(["cat", "/proc/self/stat"]).output().unwrap().stdout;
        let direct = String::from_utf8(direct).unwrap();
        let (parent, _) = Rig::new().through(way).run(&show);
        assert_eq!(scheduling(&parent.lines_of("stdout", 1)[0]), scheduling(&direct), "{way:?}");
        let keeper = fs::read_to_string(format!("/proc/{}/stat", parent.keeper)).unwrap();
        match (may, way[0], way[1..].first()) {
            (_, "chrt", Some(&"-f")) => assert_eq!(scheduling(&keeper)[1..], ["7", "1"], "{way:?}"),
            (true, ..) => assert_eq!(scheduling(&keeper)[1..], ["1", "2"], "{way:?}"),
            (false, ..) => assert_eq!(scheduling(&keeper), scheduling(&direct), "{way:?}"),
        }
    }
}

fn the_command_stays_in_the_group() {
    let (parent, first) = Rig::new().through(&["setsid", "-w"]).run(&["sleep", "1000"]);
    let leader = nix::unistd::getpgid(Some(first)).unwrap();
    assert_eq!(getsid(Some(first)), Ok(leader), "the session is setsid's");
    assert_ne!(leader, first);
    wait_for("the keeper leaves", || getpgid(Some(parent.keeper)) == Ok(parent.keeper));
    assert_eq!(getsid(Some(parent.keeper)), Ok(parent.keeper));
}

fn stops_and_continues_are_told() {
    let (mut parent, first) = Rig::new().run(&["sleep", "1000"]);
    for _ in 0..3 {
        stop(first);
        assert_eq!(parent.event(), Event::Stopped { signal: libc::SIGSTOP });
        signal(first, libc::SIGCONT);
        assert_eq!(parent.event(), Event::Continued);
    }
    signal(first, libc::SIGTERM);
    assert_eq!(parent.ending(), Ending::Signal(libc::SIGTERM));
    assert_eq!(crate::rig::state(first), Some('Z'), "its pid stays its own");
    parent.order("done");
    assert_eq!(parent.end(), 0);
    wait_for("its pid is free", || crate::rig::state(first).is_none());
}

/// Writes a line for each USR1.
const WORKER: &str = "trap 'echo ran >>ran' USR1; echo ready >>ran; while :; do sleep 0.01; done";

fn an_orphaned_group_is_not_stopped() {
    // Nobody could continue it: the kernel discards the signal, as it does without rlock.
    let (parent, first) = Rig::new().through(&["setsid", "-w"]).run(&["sh", "-c", WORKER]);
    parent.lines_of("ran", 1);
    parent.wait_until_the_keeper_rests();
    signal(first, libc::SIGTSTP);
    signal(first, libc::SIGUSR1);
    assert_eq!(parent.lines_of("ran", 2)[1], "ran");
}

fn job_control_stops_the_command() {
    let rig = Rig::new().through(&["bash", "-c", r#"set -m; "$0" "$@" & wait"#]);
    let (mut parent, first) = rig.run(&["sh", "-c", WORKER]);
    parent.lines_of("ran", 1);
    parent.wait_until_the_keeper_rests();
    signal(first, libc::SIGTSTP);
    assert_eq!(parent.event(), Event::Stopped { signal: libc::SIGTSTP });
}

fn what_the_terminal_gave_to_all_is_known() {
    let rig = Rig::new().through(&["sh", "-c", r#"exec script -qefc "exec $0 $*" /dev/null"#]).typing();
    write_script(&rig, "#!/bin/sh\ntrap 'echo INT >>got' INT; echo ready >>got; while :; do sleep 0.01; done\n");
    let (mut parent, first) = rig.run(&["./script"]);
    parent.lines_of("got", 1);
    parent.wait_until_the_keeper_rests();
    parent.type_in(b"\x03");
    assert_eq!(parent.line(), "received 2 from the kernel for all");
    assert_eq!(parent.lines_of("got", 2)[1], "INT");
    // The terminal goes away: only the session's leader hears of it.
    signal(parent.pid(), libc::SIGKILL);
    assert_eq!(parent.line(), "received 1 from the kernel for us");
    signal(first, libc::SIGINT);
    parent.lines_of("got", 3);
}

fn write_script(rig: &Rig, text: &str) {
    let path = rig.path().join("script");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn a_script_without_an_interpreter_line_runs() {
    let rig = Rig::new();
    write_script(&rig, "exit $(($# + 40))\n");
    assert_eq!(ending_of(rig, &["./script", "a", "b c"]), Ending::Code(42));
}

fn a_failed_start_is_told() {
    for (text, errno) in [("#!/no/such/interpreter\n", libc::ENOENT), ("#!/etc/passwd\n", libc::EACCES)] {
        let rig = Rig::new();
        write_script(&rig, text);
        let mut parent = rig.start(&["./script"]);
        assert_eq!(parent.spawn_with(&Environment::default()), Event::NotStarted { errno });
        parent.order("done");
        assert_eq!(parent.end(), 0);
        wait_for("the keeper ends", || !alive(parent.keeper));
    }
}

fn what_cannot_be_found_forks_nothing() {
    let mut parent = Rig::new().through(&["env", "PATH=/no/such"]).start(&["pg_dmp"]);
    assert!(parent.hello.starts_with("error 127 `pg_dmp` was not found in PATH=/no/such"), "{}", parent.hello);
    assert_eq!(parent.end(), 127);
    let mut parent = Rig::new().start(&["/etc"]);
    assert!(parent.hello.starts_with("error 126 "), "{}", parent.hello);
    assert_eq!(parent.end(), 126);
}

fn it_works_with_closed_streams() {
    let rig = Rig::new().through(&["sh", "-c", r#"exec "$0" "$@" <&- >&- 2>&-"#]);
    let (mut parent, _) = rig.run(&["sh", "-c", "ls -l /proc/$$/fd | cat >fds; exit 5"]);
    assert_eq!(parent.ending(), Ending::Code(5));
    let null = |number| (number, "/dev/null".to_owned());
    let listing = fs::read_to_string(parent.path().join("fds")).unwrap();
    let shell: Vec<_> = descriptors(&listing).into_iter().filter(|(number, _)| *number < 3).collect();
    assert_eq!(shell, [null(0), null(1), null(2)]);
}

fn it_works_with_few_descriptors() {
    let rig = Rig::new().through(&["sh", "-c", r#"ulimit -n 16; exec "$0" "$@""#]);
    let (mut parent, _) = rig.run(&["sh", "-c", "sleep 1000 & sleep 1000 & kill -9 $$"]);
    assert_eq!(parent.ending(), Ending::Signal(9));
    assert_eq!(parent.kill_tree(5000), []);
    assert_eq!(parent.processes().len(), 2, "the parent and the keeper");
}

fn it_works_as_pid_1() {
    let rig = Rig::new().through(&["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
    let (mut parent, first) = rig.run(&["sh", "-c", "sleep 1000 & setsid sleep 1000 & kill -15 $$"]);
    assert!(parent.keeper.as_raw() < 10 && first.as_raw() < 10, "small numbers: a namespace of its own");
    assert_eq!(parent.ending(), Ending::Signal(libc::SIGTERM));
    assert_eq!(parent.kill_tree(5000), []);
    parent.order(&format!("die {}", libc::SIGTERM));
    assert_eq!(parent.end(), 99, "PID 1 is spared by its own signal, and goes on to its code");
}

fn a_foreign_proc_is_refused() {
    let mut parent = Rig::new().through(&["unshare", "--user", "--map-root-user", "--pid", "--fork"]).start(&["true"]);
    assert!(parent.hello.starts_with("error 71 /proc "), "{}", parent.hello);
    assert_eq!(parent.end(), 71);
}

fn done_leaves_the_background_alone() {
    let (mut parent, _) = Rig::new().run(&["sh", "-c", "sleep 1000 & echo $! >pid; exit 3"]);
    assert_eq!(parent.ending(), Ending::Code(3));
    let background = parent.pids_of("pid", 1)[0];
    // A stopped keeper hears it too.
    stop(parent.keeper);
    parent.order("done");
    assert_eq!(parent.end(), 0);
    wait_for("the keeper ends", || !alive(parent.keeper));
    assert!(alive(background));
}

fn signals_are_read_with_their_sender() {
    let (mut parent, _) = Rig::new().through(&["env", "--ignore-signal=HUP"]).run(&["sleep", "1000"]);
    let own = std::process::id();
    for number in [libc::SIGHUP, libc::SIGUSR1, libc::SIGTERM, libc::SIGHUP, libc::SIGSEGV, 40] {
        signal(parent.pid(), number);
        if number != libc::SIGHUP {
            assert_eq!(parent.line(), format!("received {number} from {own} for us"), "what was ignored is not read");
        }
    }
}

fn dying_of_a_signal_shows_it() {
    for number in [1, 2, 6, 9, 11, 15, 40] {
        let mut parent = Rig::new().start(&["true"]);
        parent.order(&format!("die {number}"));
        assert_eq!(parent.end(), -number);
        wait_for("the keeper ends", || !alive(parent.keeper));
    }
}
