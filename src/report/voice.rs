//! rlock's words on stderr, one line an event.

use std::io::{IsTerminal as _, Stderr, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};

use crate::settings::Output;
use crate::text::{escape, fitted};

/// Lines that are kept while stderr takes none; what comes beyond is left out.
const MOST_KEPT: usize = 1000;

/// Speaks on stderr. A cheap handle: clones speak with the same voice.
#[derive(Clone)]
pub struct Voice {
    output: Output,
    to: To,
}

#[derive(Clone)]
enum To {
    Here(Arc<Mutex<Pen<Stderr>>>),
    Thread(Arc<Thread>),
}

/// The thread that writes. Most runs say nothing, so it begins with the first line.
struct Thread {
    said: Sender<Said>,
    /// Until it has begun.
    heard: Mutex<Option<Receiver<Said>>>,
    kept: Arc<AtomicUsize>,
}

enum Said {
    Line(String),
    Live(String),
    Flush(Sender<()>),
}

impl Voice {
    /// A voice that writes at once, and blocks where stderr does.
    pub fn direct(output: Output) -> Self {
        Self { output, to: To::Here(Arc::new(Mutex::new(Pen::on_stderr()))) }
    }

    /// A voice that never blocks: a thread of its own writes. Nothing is to be said before the last fork.
    pub fn threaded(output: Output) -> Self {
        let (said, heard) = mpsc::channel();
        let thread = Thread { said, heard: Mutex::new(Some(heard)), kept: Arc::default() };
        Self { output, to: To::Thread(Arc::new(thread)) }
    }

    /// How rlock was told to speak.
    pub fn output(&self) -> Output {
        self.output
    }

    /// Whether a live line may stand on the terminal.
    pub fn has_terminal(&self) -> bool {
        has_terminal()
    }

    /// Whether a live line can be shown just now. Not by a job in the background: somebody else has the terminal's last
    /// line then.
    pub fn can_be_live(&self) -> bool {
        has_terminal() && tcgetpgrp(std::io::stderr()).is_ok_and(|front| front == getpgrp())
    }

    /// Says a line, without its prefix.
    pub fn say(&self, line: &str) {
        self.pass(Said::Line(line.to_owned()));
    }

    /// Says a line about a lock that is busy or waited for.
    pub fn say_unless_quiet(&self, line: &str) {
        if !self.output.quiet {
            self.say(line);
        }
    }

    /// Says a line for who wants to know more.
    pub fn say_verbose(&self, line: &str) {
        if self.output.verbose {
            self.say(line);
        }
    }

    /// Shows a line that the next one replaces; only on a terminal and unless quiet.
    pub fn live(&self, line: &str) {
        if !self.output.quiet && self.can_be_live() {
            self.pass(Said::Live(line.to_owned()));
        }
    }

    /// Waits until everything said is written, at most `within`, and removes the live line.
    pub fn finish(&self, within: Duration) {
        if let To::Thread(thread) = &self.to
            && !thread.has_begun()
        {
            return;
        }
        let (done, flushed) = mpsc::channel();
        self.pass(Said::Flush(done));
        // A stderr that takes nothing is left behind.
        let _ = flushed.recv_timeout(within);
    }

    fn pass(&self, what: Said) {
        match &self.to {
            To::Here(pen) => pen.lock().unwrap_or_else(PoisonError::into_inner).put(what),
            To::Thread(thread) => thread.pass(what),
        }
    }
}

impl Thread {
    fn heard(&self) -> MutexGuard<'_, Option<Receiver<Said>>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_begun(&self) -> bool {
        self.heard().is_none()
    }

    fn pass(&self, what: Said) {
        if let Some(heard) = self.heard().take() {
            self.begin(heard);
        }
        let is_flush = matches!(what, Said::Flush(_));
        if self.kept.fetch_add(1, Ordering::Relaxed) >= MOST_KEPT && !is_flush {
            self.kept.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // Where there is no thread the line must be said here, even if stderr blocks: there is a keeper for that case.
        if let Err(unheard) = self.said.send(what) {
            self.kept.fetch_sub(1, Ordering::Relaxed);
            Pen::on_stderr().put(unheard.0);
        }
    }

    /// Without a thread the receiver is dropped, and every line comes back.
    fn begin(&self, heard: Receiver<Said>) {
        let written = Arc::clone(&self.kept);
        let write = move || {
            let mut pen = Pen::on_stderr();
            for said in heard {
                pen.put(said);
                written.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let _ = Builder::new().name("voice".into()).spawn(write);
    }
}

/// Whether stderr is a terminal that takes more than lines. One that is not named is not known to.
fn has_terminal() -> bool {
    let named = std::env::var_os("TERM").unwrap_or_default();
    std::io::stderr().is_terminal() && !named.is_empty() && named != "dumb"
}

fn has_colour() -> bool {
    has_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

fn columns() -> usize {
    terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| usize::from(width.0))
}

const PREFIX: &str = "rlock: ";

/// Clears the line, and then what is below it, from its second column: some terminals keep in their history what is
/// cleared from the first line's first.
const WIPE: &str = "\r\x1b[K\x1b[C\x1b[J\r";

/// Knows whether a live line stands on the terminal.
struct Pen<W> {
    to: W,
    columns: fn() -> usize,
    has_colour: bool,
    is_live: bool,
}

impl Pen<Stderr> {
    fn on_stderr() -> Self {
        Self { to: std::io::stderr(), columns, has_colour: has_colour(), is_live: false }
    }
}

impl<W: Write> Pen<W> {
    fn put(&mut self, what: Said) {
        match what {
            Said::Line(line) => self.line(&line),
            Said::Live(line) => self.live(&line),
            Said::Flush(done) => {
                self.clear();
                // Whoever asked may have given up.
                let _ = done.send(());
            }
        }
    }

    fn line(&mut self, line: &str) {
        let line = self.painted(&(PREFIX.to_owned() + &escape(line)));
        self.write(&format!("{line}\n"));
        self.is_live = false;
    }

    /// The cursor goes back to the line's begin. A terminal that gets narrower may break the line in several, and from
    /// there they are all below. Nor may the line break by itself where the terminal's measure is not ours.
    fn live(&mut self, line: &str) {
        let line = self.painted(&fitted(&(PREFIX.to_owned() + &escape(line)), (self.columns)()));
        self.write(&format!("\x1b[?7l{line}\x1b[?7h\r"));
        self.is_live = true;
    }

    fn clear(&mut self) {
        if self.is_live {
            self.write("");
            self.is_live = false;
        }
    }

    /// With a prefix that stands out among the command's own words.
    fn painted(&self, line: &str) -> String {
        match line.strip_prefix(PREFIX) {
            Some(line) if self.has_colour => format!("\x1b[33m{}\x1b[0m {line}", PREFIX.trim_end()),
            _ => line.to_owned(),
        }
    }

    fn write(&mut self, text: &str) {
        let wipe = if self.is_live { WIPE } else { "" };
        // One write, so that lines of several processes do not mix. There is nobody to tell where stderr fails.
        let _ = self.to.write_all(format!("{wipe}{text}").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pen(columns: fn() -> usize, has_colour: bool) -> Pen<Vec<u8>> {
        Pen { to: Vec::new(), columns, has_colour, is_live: false }
    }

    fn text(pen: Pen<Vec<u8>>) -> String {
        String::from_utf8(pen.to).unwrap()
    }

    #[test]
    fn a_live_line_is_replaced_by_the_next_line() {
        let mut pen = pen(|| 80, false);
        pen.line("a");
        pen.live("b\n");
        pen.live("c");
        pen.line("d");
        pen.live("e");
        pen.clear();
        pen.clear();
        let (off, on, wipe) = ("\x1b[?7l", "\x1b[?7h\r", WIPE);
        assert_eq!(
            text(pen),
            format!("rlock: a\n{off}rlock: b\\n{on}{wipe}{off}rlock: c{on}{wipe}rlock: d\n{off}rlock: e{on}{wipe}")
        );
    }

    #[test]
    fn a_live_line_fits_on_one_line() {
        for key in ["x".repeat(100), "鍵".repeat(100)] {
            let mut pen = pen(|| 20, false);
            pen.live(&key);
            let text = text(pen);
            let line = text.strip_prefix("\x1b[?7l").unwrap().strip_suffix("\x1b[?7h\r").unwrap();
            assert!((19..=20).contains(&crate::text::columns(line)) && line.ends_with('…'), "{line}");
        }
    }

    #[test]
    fn colour_is_the_prefixs_alone_and_does_not_count() {
        let mut pen = pen(|| 20, true);
        pen.line("a");
        pen.live(&"x".repeat(100));
        let (begin, end) = ("\x1b[33mrlock:\x1b[0m ", "x".repeat(12));
        assert_eq!(text(pen), format!("{begin}a\n\x1b[?7l{begin}{end}…\x1b[?7h\r"));
    }
}
