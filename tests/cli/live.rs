use std::fs;

use super::Stage;
use crate::rlock::{PATIENCE, Place, Running, until, within};
use crate::tmux::{Terminal, raw};

/// Holds `key` until there is `go`.
fn holder(stage: &Stage, key: &str) -> Running {
    let holder = stage.run(key, &["--", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done"]).start();
    stage.held(key);
    holder
}

/// Lets the holder and the waiter go, and sees that none of these words is left, above the screen neither.
fn ends_without(words: &[&str], terminal: &Terminal<impl Place>, holder: Running) {
    fs::write(terminal.stage.path("go"), "").unwrap();
    terminal.shows("rc=0");
    let all = terminal.scrollback();
    for word in words {
        assert!(!all.contains(word), "{word:?} is left in\n{all}");
    }
    holder.done().code(0);
}

/// Words of the line that changes.
const WORDS: &[&str] = &["waited", "held by", "position", "lease", "left,"];

#[test]
fn a_wait_shows_one_line_that_is_gone_when_the_command_runs() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let holder = holder(&stage, "job");
    let pid = holder.pid().to_string();
    terminal.line("$R run -k job -- echo it runs; echo rc=$?");
    let line = terminal.shows("rlock: waited ");
    for word in ["`job`", "position 1", "lease ", " left, held by ", &pid, "(sh)"] {
        assert!(line.contains(word), "{word:?} in {line}");
    }
    // It is kept up to date, and is one line.
    until("it goes on", || (terminal.shows("rlock: waited ") != line).then_some(()));
    assert_eq!(terminal.screen().matches("rlock:").count(), 1, "{}", terminal.screen());
    ends_without(WORDS, &terminal, holder);
    assert!(terminal.screen().contains("\nit runs\nrc=0"), "{}", terminal.screen());
}

#[test]
fn a_wait_is_one_line_in_every_window_and_at_every_change_of_it() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    // Wide characters, and one that is shown by its number.
    let key = "鍵\u{202e}備份".repeat(8);
    let holder = holder(&stage, &key);
    // What stands above is not touched. (tmux moves the first lines of a screen out of reach when a line below breaks.)
    let line = format!("clear; seq -f 'row %g' 20; $R run -k '{key}' -- echo it runs; echo rc=$?");
    fs::write(stage.path("wait"), line).unwrap();
    terminal.line("PS1=; . ./wait");
    let line = terminal.shows("rlock: waited ");
    assert!(line.contains(r"`鍵\u{202e}備份鍵…`"), "{line}");
    for width in [20, 97, 40, 61, 20, 180, 33] {
        terminal.resize(width, 50);
        let mut screen = String::new();
        let found = within(PATIENCE, || {
            screen = terminal.scrollback();
            let lines: Vec<_> = screen.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
            let (last, above) = lines.split_last()?;
            let (columns, full) = (rlock::text::columns(last), usize::from(width));
            let fits = columns <= full && (full >= 80 || columns + 1 >= full);
            let is_whole = above.iter().zip(1..).all(|(line, at)| *line == format!("row {at}")) && above.len() == 20;
            (is_whole && last.starts_with("rlock: waited ") && fits).then_some(())
        });
        assert!(found.is_some(), "not one line of {width} columns:\n{screen}");
    }
    terminal.resize(180, 50);
    ends_without(WORDS, &terminal, holder);
}

#[test]
fn a_wait_in_the_background_says_single_lines_and_leaves_the_prompt_alone() {
    let stage = Stage::new();
    let terminal = Terminal::open(&stage);
    let holder = holder(&stage, "job");
    terminal.line("$R run -k job -- echo it runs &");
    terminal.shows("rlock: waiting for `job` for 1");
    assert!(!terminal.screen().contains("waited"), "{}", terminal.screen());
    // In front it is the line that changes.
    terminal.line("fg; echo rc=$?");
    terminal.shows("rlock: waited ");
    ends_without(&["waited"], &terminal, holder);
}

#[test]
fn a_terminal_gets_what_it_can_show_and_its_user_wants() {
    let stage = Stage::new();
    let holder = holder(&stage, "job");
    let (wipe, colour, no_wrap) = ("\x1b[J\r", "\x1b[33mrlock:\x1b[0m ", "\x1b[?7l");
    let wait = |setting: &str, options: &str| {
        let line = format!("{setting} exec $R run -k job -w 1900ms {options} -- true");
        raw(&stage, &line, 75)
    };
    let text = wait("TERM=xterm", "");
    for part in [wipe, colour, no_wrap, "waited 1", "gave up after 1.9s"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    // Nothing of the live line is left before the last line.
    assert!(text.contains(&format!("{wipe}{colour}`job` is held by ")), "{text:?}");
    let text = wait("TERM=xterm NO_COLOR=1", "");
    assert!(text.contains(wipe) && text.contains("\x1b[?7lrlock: waited 1") && !text.contains("\x1b[3"), "{text:?}");
    let text = wait("TERM=xterm NO_COLOR=", "");
    assert!(text.contains(colour), "{text:?}");
    for setting in ["TERM=dumb", "TERM=", "unset TERM;"] {
        let text = wait(setting, "");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("rlock: waiting for `job` for 1"), "{setting} {text:?}");
        assert!(!text.contains('\x1b') && lines[1].contains("gave up after"), "{setting} {text:?}");
    }
    assert_eq!(wait("TERM=xterm", "-q"), "");
    drop(holder);
}
