use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::Stage;
use crate::rlock::{PATIENCE, is_alive, rlock, send, state, until, within};

/// A shell on a terminal of its own, in which `$R` is rlock on the stage's server.
struct Terminal<'a> {
    stage: &'a Stage,
    socket: PathBuf,
}

impl<'a> Terminal<'a> {
    fn open(stage: &'a Stage) -> Self {
        Self::running(stage, "exec bash --norc --noprofile")
    }

    /// With this line for tmux's shell in place of a shell.
    fn running(stage: &'a Stage, line: &str) -> Self {
        let terminal = Self { stage, socket: stage.path("tmux") };
        let mut tmux = terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "180", "-y", "50", line]);
        // What the harness takes out of rlock's environment and puts into it holds here too.
        for (name, value) in stage.rlock(["run"]).0.get_envs() {
            match value {
                Some(value) => tmux.env(name, value),
                None => tmux.env_remove(name),
            };
        }
        tmux.env("R", rlock(["run"]).0.get_program()).env("TERM", "screen");
        assert!(tmux.current_dir(stage.dir.path()).status().unwrap().success(), "tmux is installed and starts");
        terminal
    }

    fn tmux(&self, words: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&self.socket).args(words).stdin(Stdio::null());
        tmux
    }

    #[track_caller]
    fn key(&self, key: &str) {
        assert!(self.tmux(&["send-keys", key]).status().unwrap().success(), "{key}");
    }

    #[track_caller]
    fn line(&self, text: &str) {
        assert!(self.tmux(&["send-keys", "-l", text]).status().unwrap().success(), "{text}");
        self.key("Enter");
    }

    fn screen(&self) -> String {
        let shown = self.tmux(&["capture-pane", "-p", "-J"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).into_owned()
    }

    /// Waits until a line of the screen has `text`, and returns it.
    #[track_caller]
    fn shows(&self, text: &str) -> String {
        let mut screen = String::new();
        let found = within(PATIENCE, || {
            screen = self.screen();
            screen.lines().find(|line| line.contains(text)).map(str::to_owned)
        });
        found.unwrap_or_else(|| panic!("never shown: {text:?} on\n{screen}"))
    }

    /// What `name` holds once it has a line for each of `lines`; these must be all.
    #[track_caller]
    fn wrote(&self, name: &str, lines: &[&str]) {
        until(&format!("{name} has {lines:?}"), || (self.stage.lines(name).len() >= lines.len()).then_some(()));
        assert_eq!(self.stage.lines(name), lines);
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).stderr(Stdio::null()).status();
    }
}

/// Writes its pid, notes signals, and ends with 5 once there is `stop`. Not a shell: that takes two signals in quick
/// succession for one.
const NOTING: &str = r#"
    sub note { my ($name, $text) = @_; open my $file, ">>", $name or die; print $file "$text\n"; }
    for my $signal (qw(INT TERM HUP USR1 CONT)) { $SIG{$signal} = sub { note("got", $signal) }; }
    note("keeper", getppid);
    note("pid", $$);
    select undef, undef, undef, 0.01 until -e "stop";
    exit 5;"#;

fn parent_of(pid: &str) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

/// Starts [`NOTING`] from the shell; its pid and rlock's.
fn noting(stage: &Stage, terminal: &Terminal, args: &str) -> (String, String) {
    fs::write(stage.path("noting"), NOTING).unwrap();
    terminal.line(&format!("$R run -k job {args} -- perl noting"));
    (stage.written("pid"), parent_of(&stage.written("keeper")))
}

fn end(stage: &Stage, terminal: &Terminal, code: u8) {
    fs::write(stage.path("stop"), "").unwrap();
    terminal.line("echo rc=$?");
    terminal.shows(&format!("rc={code}"));
    assert!(!stage.redis::<bool>(&["EXISTS", "job"]));
}

#[test]
fn ctrl_c_reaches_the_command_once_and_kills_nobody() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let (_, rlock) = noting(&stage, &terminal, "--kill-after 100ms");
    terminal.key("C-c");
    terminal.wrote("got", &["INT"]);
    // rlock takes signals in the order of their numbers: when it has passed this one on, it is done with the first.
    send(&rlock, Signal::SIGUSR1);
    terminal.wrote("got", &["INT", "USR1"]);
    end(&stage, &terminal, 5);
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
    let (pid, rlock) = noting(&stage, &terminal, "--ttl 15s");
    terminal.key("C-z");
    terminal.shows("[1]+  Stopped");
    let line = terminal.screen();
    assert!(line.contains("rlock: `job`: stopped; the lease ends in "), "{line}");
    assert_eq!((state(&pid), state(&rlock)), (Some('T'), Some('T')));
    let until_ms = |value: String| serde_json::from_str::<serde_json::Value>(&value).unwrap()["until_ms"].as_u64();
    let before = until_ms(stage.value("job"));
    terminal.line("fg");
    terminal.wrote("got", &["CONT"]);
    send(&rlock, Signal::SIGUSR1);
    terminal.wrote("got", &["CONT", "USR1"]);
    until("it is renewed", || (until_ms(stage.value("job")) > before).then_some(()));
    end(&stage, &terminal, 5);
}

#[test]
fn a_job_that_stays_stopped_is_ended_before_its_lease_and_fg_shows_79() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let (pid, rlock) = noting(&stage, &terminal, "--ttl 2s");
    terminal.key("C-z");
    terminal.shows("[1]+  Stopped");
    until("the command is dead", || {
        let alive = is_alive(&pid);
        let held: bool = stage.redis(&["EXISTS", "job"]);
        assert!(held || !alive || !is_alive(&pid), "the key is free while the command lives");
        (!alive).then_some(())
    });
    // It had the signal, and was let go on to act on it.
    assert!(stage.lines("got").contains(&"TERM".into()), "{:?}", stage.lines("got"));
    until("the key lapses", || (!stage.redis::<bool>(&["EXISTS", "job"])).then_some(()));
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
    terminal.line("$R run -k job --ttl 60s -- sh reader &");
    terminal.shows("rlock: `job`: stopped; the lease ends in ");
    terminal.line("fg; echo rc=$?");
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
    until("the key is free", || (!stage.redis::<bool>(&["EXISTS", "job"])).then_some(()));
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
    assert!(stage.redis::<bool>(&["EXISTS", "job"]));
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
        until("the key is free", || (!stage.redis::<bool>(&["EXISTS", "job"])).then_some(()));
        assert!(stage.lines("got").contains(&"HUP".into()), "{:?}", stage.lines("got"));
    }
}

#[test]
fn a_wait_shows_one_line_that_is_gone_when_the_command_runs() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let holder = stage.run("job", &["--", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done"]).start();
    stage.value("job");
    terminal.line("$R run -k job -- echo it runs; echo rc=$?");
    let line = terminal.shows("rlock: waiting for `job`");
    assert!(line.contains("held by") && line.contains("lease") && line.contains("position 1"), "{line}");
    fs::write(stage.path("go"), "").unwrap();
    terminal.shows("rc=0");
    let screen = terminal.screen();
    assert!(screen.contains("\nit runs\nrc=0"), "{screen}");
    assert!(!screen.contains("waiting for"), "{screen}");
    holder.done().code(0);
}

#[test]
fn a_wait_is_left_by_ctrl_c_and_outlasts_ctrl_z() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let holder = stage.run("job", &["--", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done"]).start();
    stage.value("job");
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
