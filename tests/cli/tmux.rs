//! A shell on a real terminal, which tmux draws.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::rlock::{PATIENCE, Place, Stage, rlock, until, within};

/// A shell on a terminal of its own, in which `$R` is rlock on the stage's server.
pub(crate) struct Terminal<'a, P> {
    pub(crate) stage: &'a Stage<P>,
    socket: PathBuf,
}

impl<'a, P: Place> Terminal<'a, P> {
    pub(crate) fn open(stage: &'a Stage<P>) -> Self {
        Self::running(stage, "exec bash --norc --noprofile")
    }

    /// With this line for tmux's shell in place of a shell.
    pub(crate) fn running(stage: &'a Stage<P>, line: &str) -> Self {
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

    pub(crate) fn tmux(&self, words: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&self.socket).args(words).stdin(Stdio::null());
        tmux
    }

    #[track_caller]
    pub(crate) fn key(&self, key: &str) {
        assert!(self.tmux(&["send-keys", key]).status().unwrap().success(), "{key}");
    }

    #[track_caller]
    pub(crate) fn line(&self, text: &str) {
        self.text(text);
        self.key("Enter");
    }

    #[track_caller]
    pub(crate) fn text(&self, text: &str) {
        assert!(self.tmux(&["send-keys", "-l", text]).status().unwrap().success(), "{text}");
    }

    pub(crate) fn screen(&self) -> String {
        let shown = self.tmux(&["capture-pane", "-p", "-J"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).into_owned()
    }

    /// The screen and everything that went off it at its top.
    pub(crate) fn scrollback(&self) -> String {
        let shown = self.tmux(&["capture-pane", "-p", "-J", "-S", "-"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).into_owned()
    }

    #[track_caller]
    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        assert!(self.tmux(&["resize-window", "-x", &columns, "-y", &lines]).status().unwrap().success());
    }

    /// Waits until a line of the screen has `text`, and returns it.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        let mut screen = String::new();
        let found = within(PATIENCE, || {
            screen = self.screen();
            screen.lines().find(|line| line.contains(text)).map(str::to_owned)
        });
        found.unwrap_or_else(|| panic!("never shown: {text:?} on\n{screen}"))
    }

    /// What `name` holds once it has a line for each of `lines`; these must be all.
    #[track_caller]
    pub(crate) fn wrote(&self, name: &str, lines: &[&str]) {
        until(&format!("{name} has {lines:?}"), || (self.stage.lines(name).len() >= lines.len()).then_some(()));
        assert_eq!(self.stage.lines(name), lines);
    }
}

/// Everything that a line of sh writes to a terminal of its own until it ends with `code`; `$R` is rlock in it.
#[track_caller]
pub(crate) fn raw<P: Place>(stage: &Stage<P>, line: &str, code: i32) -> String {
    let script = stage.through("script", &["-qec", line, "typescript"]);
    script.env("SHELL", "/bin/sh").done().code(code);
    let text = std::fs::read(stage.path("typescript")).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    let (_, text) = text.split_once("]\n").expect("script's own first line");
    text.rsplit_once("\nScript done").expect("its last").0.to_owned()
}

impl<P> Drop for Terminal<'_, P> {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        let _ = tmux.arg("-S").arg(&self.socket).arg("kill-server").stderr(Stdio::null()).status();
    }
}
