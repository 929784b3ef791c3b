use std::fs;

use nix::sys::signal::Signal;

use super::Stage;
use crate::rlock::{Place, is_alive, send, state, until};
use crate::tmux::Terminal;

/// Writes its pid, notes signals, and ends with 5 once there is `stop`. Not a shell: that takes two signals in quick
/// succession for one.
const NOTING: &str = r#"
    sub note { my ($name, $text) = @_; open my $file, ">>", $name or die; print $file "$text\n"; }
    for my $signal (qw(INT TERM HUP USR1 CONT WINCH)) { $SIG{$signal} = sub { note("got", $signal) }; }
    note("keeper", getppid);
    note("pid", $$);
    select undef, undef, undef, 0.01 until -e "stop";
    exit 5;"#;

fn parent_of(pid: &str) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

/// Starts [`NOTING`] from the shell; its pid and rlock's.
fn noting(terminal: &Terminal<impl Place>, args: &str) -> (String, String) {
    let stage = terminal.stage;
    fs::write(stage.path("noting"), NOTING).unwrap();
    terminal.line(&format!("$R run -k job {args} -- perl noting"));
    (stage.written("pid"), parent_of(&stage.written("keeper")))
}

fn end(terminal: &Terminal<impl Place>, code: u8) {
    fs::write(terminal.stage.path("stop"), "").unwrap();
    terminal.line("echo rc=$?");
    terminal.shows(&format!("rc={code}"));
    assert!(!terminal.stage.is_held("job"));
}

#[test]
fn ctrl_c_reaches_the_command_once_and_kills_nobody() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let (_, rlock) = noting(&terminal, "--kill-after 100ms");
    terminal.key("C-c");
    terminal.wrote("got", &["INT"]);
    // rlock takes signals in the order of their numbers: when it has passed this one on, it is done with the first.
    send(&rlock, Signal::SIGUSR1);
    terminal.wrote("got", &["INT", "USR1"]);
    end(&terminal, 5);
}

#[test]
fn ctrl_c_ends_a_command_that_does_not_mind_and_rlock_dies_of_it() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    // A shell ends its loop only when it sees the signal, not a code.
    terminal.line("for i in 1 2; do $R run -k job -- sh -c 'echo $$ > pid; exec sleep 100'; echo again; done");
    let pid = stage.written("pid");
    terminal.key("C-c");
    until("it is dead", || (!is_alive(&pid)).then_some(()));
    terminal.line("echo rc=$?");
    terminal.shows("rc=130");
    assert!(!terminal.screen().lines().any(|line| line == "again"), "{}", terminal.screen());
}

#[test]
fn a_job_that_is_stopped_goes_on_within_its_lease() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let (pid, rlock) = noting(&terminal, "--ttl 15s");
    terminal.key("C-z");
    terminal.shows("[1]+  Stopped");
    let line = terminal.screen();
    assert!(line.contains("rlock: `job`: stopped; the lease ends in "), "{line}");
    assert_eq!((state(&pid), state(&rlock)), (Some('T'), Some('T')));
    let before = stage.held("job").until_ms;
    terminal.line("fg");
    terminal.wrote("got", &["CONT"]);
    send(&rlock, Signal::SIGUSR1);
    terminal.wrote("got", &["CONT", "USR1"]);
    until("it is renewed", || (stage.held("job").until_ms > before).then_some(()));
    end(&terminal, 5);
}

#[test]
fn a_job_that_stays_stopped_is_ended_before_its_lease_and_fg_shows_79() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let (pid, rlock) = noting(&terminal, "--ttl 2s");
    terminal.key("C-z");
    terminal.shows("[1]+  Stopped");
    until("the command is dead", || {
        let alive = is_alive(&pid);
        let held = stage.is_held("job");
        assert!(held || !alive || !is_alive(&pid), "the key is free while the command lives");
        (!alive).then_some(())
    });
    // It had the signal, and was let go on to act on it.
    assert!(stage.lines("got").contains(&"TERM".into()), "{:?}", stage.lines("got"));
    until("the key lapses", || (!stage.is_held("job")).then_some(()));
    assert_eq!(state(&rlock), Some('T'));
    terminal.line("fg; echo rc=$?");
    terminal.shows("rc=79");
    let line = terminal.shows("rlock: `job`: the lease is lost: not renewed in time");
    assert!(line.contains("the command is stopped"), "{line}");
}

#[test]
fn the_command_reads_the_terminal_and_stops_in_the_background_until_fg() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    fs::write(stage.path("reader"), "echo $$ > pid; read -r x; echo \"$x\" > read; exit 4").unwrap();
    terminal.line("$R run -k job --ttl 60s -- sh reader");
    stage.written("pid");
    terminal.line("typed");
    assert_eq!(stage.written("read"), "typed");
    fs::remove_file(stage.path("read")).unwrap();
    fs::remove_file(stage.path("pid")).unwrap();
    terminal.line("$R run -k job --ttl 60s -- sh reader &");
    let pid = stage.written("pid");
    terminal.shows("rlock: `job`: stopped; the lease ends in ");
    terminal.line("fg; echo rc=$?");
    // What is typed while the shell still reads single keys ends in no newline.
    until("it goes on", || (state(&pid) != Some('T')).then_some(()));
    terminal.line("again");
    assert_eq!(stage.written("read"), "again");
    terminal.shows("rc=4");
}

#[test]
fn a_pager_beside_it_keeps_the_terminal() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    terminal.line("$R run -k job -- seq -f 'row %g' 1 100 | less; echo rc=${PIPESTATUS[0]}");
    terminal.shows("row 2");
    until("the key is free", || (!stage.is_held("job")).then_some(()));
    terminal.key("G");
    terminal.shows("row 100");
    terminal.key("q");
    terminal.shows("rc=0");
}

#[test]
fn a_full_screen_program_stops_and_goes_on() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let rows: Vec<_> = (1..=300).map(|n| format!("row {n}")).collect();
    fs::write(stage.path("rows"), rows.join("\n")).unwrap();
    terminal.line("$R run -k job --ttl 60s -- less rows");
    terminal.shows("row 1");
    terminal.key("C-z");
    terminal.shows("[1]+  Stopped");
    terminal.line("fg; echo rc=$?");
    terminal.shows("row 2");
    terminal.key("G");
    terminal.shows("row 300");
    assert!(stage.is_held("job"));
    terminal.key("q");
    terminal.shows("rc=0");
}

#[test]
fn a_hang_up_ends_the_command_and_frees_the_key() {
    let script = "trap 'echo HUP >> got; exit' HUP; echo $$ > pid; while :; do sleep 0.01; done";
    for leader in [false, true] {
        let stage = Stage::new();
        fs::write(stage.path("script"), script).unwrap();
        let terminal = if leader {
            Terminal::running(&stage, "exec $R run -k job -- bash script")
        } else {
            let terminal = Terminal::open(&stage);
            terminal.line("$R run -k job -- bash script");
            terminal
        };
        let pid = stage.written("pid");
        drop(terminal);
        until("the command ends", || (!is_alive(&pid)).then_some(()));
        until("the key is free", || (!stage.is_held("job")).then_some(()));
        assert!(stage.lines("got").contains(&"HUP".into()), "{:?}", stage.lines("got"));
    }
}

#[test]
fn a_wait_is_left_by_ctrl_c_and_outlasts_ctrl_z() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let holder = stage.run("job", &["--", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done"]).start();
    stage.held("job");
    terminal.line("$R run -k job -- touch wrong");
    stage.waiting("job", 1);
    terminal.key("C-c");
    stage.waiting("job", 0);
    terminal.line("echo rc=$?");
    terminal.shows("rc=130");
    terminal.line("$R run -k job -- echo it runs");
    stage.waiting("job", 1);
    terminal.key("C-z");
    terminal.shows("rlock: waiting for `job`: stopped; ");
    terminal.shows("[1]+  Stopped");
    fs::write(stage.path("go"), "").unwrap();
    holder.done().code(0);
    let ran = || terminal.screen().lines().any(|line| line == "it runs");
    assert!(!ran());
    terminal.line("fg; echo rc=$?");
    terminal.shows("rc=0");
    assert!(ran());
    assert!(!stage.path("wrong").exists());
}

#[test]
fn a_change_of_the_window_reaches_the_command_once() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let (_, rlock) = noting(&terminal, "");
    terminal.resize(60, 20);
    terminal.wrote("got", &["WINCH"]);
    send(&rlock, Signal::SIGUSR1);
    terminal.wrote("got", &["WINCH", "USR1"]);
    end(&terminal, 5);
}

#[test]
fn a_job_in_the_background_runs_and_is_waited_for() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    terminal.line("$R run -k job -- sh -c 'echo ran; exit 3' & wait $!; echo rc=$?");
    terminal.shows("rc=3");
    assert!(terminal.screen().lines().any(|line| line == "ran"), "{}", terminal.screen());
    assert!(!stage.is_held("job"));
}

#[test]
fn a_script_with_job_control_runs_it_in_front_and_behind() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    // Each command is a group of its own there, and the terminal is handed to the one in front.
    let script = "set -m; $R run -k job -- sh -c 'exit 4' & wait $!; echo first=$?; \
        $R run -k job -- sh -c 'read -r x; echo got $x; exit 5'; echo second=$?; \
        $R run -k job -- sleep 100 & kill -TERM %%; wait $!; echo third=$?; \
        $R run -k job -- sh -c 'echo $$ > pid; exec sleep 100'; echo again";
    fs::write(stage.path("script"), script).unwrap();
    terminal.line("bash script; echo rc=$?");
    terminal.shows("first=4");
    terminal.line("typed");
    terminal.shows("got typed");
    terminal.shows("second=5");
    terminal.shows("third=143");
    stage.written("pid");
    // A script that sees the signal ends with it, and not one that sees a code.
    terminal.key("C-c");
    terminal.shows("rc=130");
    assert!(!terminal.screen().contains("again"), "{}", terminal.screen());
    assert!(!stage.is_held("job"));
}
