//! rlock's words on stderr, one line an event.

use std::io::{IsTerminal as _, Stderr, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::settings::Output;
use crate::text::escape;

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
        Self { output, to: To::Here(Arc::new(Mutex::new(Pen::new(std::io::stderr())))) }
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

    /// Whether a live line can be shown.
    pub fn has_terminal(&self) -> bool {
        has_terminal()
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
        if !self.output.quiet && self.has_terminal() {
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
            Pen::new(std::io::stderr()).put(unheard.0);
        }
    }

    /// Without a thread the receiver is dropped, and every line comes back.
    fn begin(&self, heard: Receiver<Said>) {
        let written = Arc::clone(&self.kept);
        let write = move || {
            let mut pen = Pen::new(std::io::stderr());
            for said in heard {
                pen.put(said);
                written.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let _ = Builder::new().name("voice".into()).spawn(write);
    }
}

fn has_terminal() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Knows whether a live line stands on the terminal.
struct Pen<W> {
    to: W,
    is_live: bool,
}

impl<W: Write> Pen<W> {
    fn new(to: W) -> Self {
        Self { to, is_live: false }
    }

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
        self.write(&format!("rlock: {}\n", escape(line)));
        self.is_live = false;
    }

    fn live(&mut self, line: &str) {
        let width = terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| usize::from(width.0));
        let line = format!("rlock: {}", escape(line));
        let most = width.saturating_sub(1);
        if line.chars().count() > most {
            let cut: String = line.chars().take(most.saturating_sub(1)).collect();
            self.write(&format!("{cut}…"));
        } else {
            self.write(&line);
        }
        self.is_live = true;
    }

    fn clear(&mut self) {
        if self.is_live {
            self.write("");
            self.is_live = false;
        }
    }

    fn write(&mut self, text: &str) {
        let wipe = if self.is_live { "\r\x1b[2K" } else { "" };
        // One write, so that lines of several processes do not mix. There is nobody to tell where stderr fails.
        let _ = self.to.write_all(format!("{wipe}{text}").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_line_is_replaced_by_the_next_line() {
        let mut pen = Pen::new(Vec::new());
        pen.line("a");
        pen.live("b\n");
        pen.live("c");
        pen.line("d");
        pen.live("e");
        pen.clear();
        pen.clear();
        let text = String::from_utf8(pen.to).unwrap();
        let wipe = "\r\x1b[2K";
        assert_eq!(text, format!("rlock: a\nrlock: b\\n{wipe}rlock: c{wipe}rlock: d\nrlock: e{wipe}"));
    }

    #[test]
    fn a_live_line_fits_on_one_line() {
        let mut pen = Pen::new(Vec::new());
        pen.live(&"x".repeat(10_000));
        assert!(pen.to.len() < 5_000);
    }
}
