//! Signals: all blocked and read from a descriptor, so that no call is interrupted and the sender is known; their
//! names; and dying of one.
//!
//! Signals are plain numbers here, since nix's type knows no real-time ones.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpid, getsid};

use crate::error::Error;
use crate::sys;

/// How signals stood when rlock was started: what the command is given.
#[derive(Clone, Copy, Debug)]
pub struct AtEntry {
    pub(crate) mask: SigSet,
    pub(crate) ignored: u64,
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// How it was sent, the `si_code` of sigaction(2).
    pub code: i32,
    /// The process that sent it; none where the kernel did, or a process of another PID namespace.
    pub sender: Option<Pid>,
}

impl Received {
    /// Whether it is the kernel's word about a descriptor of ours ([`sys::go_on_at`]).
    pub fn is_from_descriptor(&self) -> bool {
        self.signal == libc::SIGCONT && self.code > 0 && self.code != libc::SI_KERNEL
    }

    /// Whether the terminal sent it, and so gave it to the whole group already. A hang-up that reaches the session's
    /// leader, and the CONT that follows it, are meant for it alone.
    pub fn is_from_terminal(&self) -> bool {
        let to_leader = || getsid(None) == Ok(getpid());
        self.code == libc::SI_KERNEL
            && match self.signal {
                libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU | libc::SIGWINCH => true,
                libc::SIGHUP | libc::SIGCONT => !to_leader(),
                _ => false,
            }
    }
}

/// The signals of this process, from a descriptor that can be polled.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    at_entry: AtEntry,
}

impl Signals {
    /// Blocks every signal for this thread and for all that it starts. To be called once, before any other thread
    /// exists. What was ignored stays ignored (`nohup`) and is never read; so does SIGPIPE, which here is only ever an
    /// echo of a write of our own. SIGCHLD is always on, else the kernel would reap the command.
    pub fn block_all() -> Result<Self, Error> {
        let ignored = sys::ignored_at_entry();
        let blocked = !(ignored & !sys::bit(libc::SIGCHLD)) & !sys::bit(libc::SIGPIPE);
        let set = sys::signal_set(blocked);
        let mask = SigSet::thread_get_mask().map_err(|error| failed("read the signal mask", error))?;
        sys::set_disposition(libc::SIGCHLD, false).map_err(|error| failed("turn SIGCHLD on", error))?;
        set.thread_block().map_err(|error| failed("block signals", error))?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(|error| failed("open a descriptor for signals", error))?;
        Ok(Self { fd, at_entry: AtEntry { mask, ignored } })
    }

    /// The next signal that has arrived, if there is one. Never blocks.
    pub fn read(&self) -> Option<Received> {
        let info = self.fd.read_signal().ok().flatten()?;
        let sent = matches!(info.ssi_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL) && info.ssi_pid != 0;
        let sender = sent.then(|| Pid::from_raw(info.ssi_pid.cast_signed()));
        Some(Received { signal: info.ssi_signo.cast_signed(), code: info.ssi_code, sender })
    }

    /// How signals stood at entry.
    pub fn at_entry(&self) -> AtEntry {
        self.at_entry
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn failed(what: &str, error: impl Into<io::Error>) -> Error {
    Error::Os(format!("cannot {what}: {}", error.into()))
}

/// The number of the signal that `text` names: `TERM`, `SIGTERM` or `15`, in any case.
pub fn parse(text: &str) -> Option<i32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // The C library keeps 32 and 33 for itself.
        return text.parse().ok().filter(|number| matches!(number, 1..32 | 34..=sys::LAST_SIGNAL));
    }
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    full.parse::<Signal>().ok().map(|signal| signal as i32)
}

/// The name of a signal, `SIGTERM`; `signal 35` for those that have none.
pub fn name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |known| known.as_str().to_owned())
}

/// Whether it asks rlock to stop what it runs and end.
pub fn is_stop(signal: i32) -> bool {
    matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT)
}

/// Whether rlock passes it on to the command. Not those that cannot be received, and not those that are about rlock
/// itself: SIGCHLD of its children, SIGPIPE of its writes.
pub fn is_forwardable(signal: i32) -> bool {
    (1..=sys::LAST_SIGNAL).contains(&signal)
        && !matches!(signal, libc::SIGKILL | libc::SIGSTOP | libc::SIGCHLD | libc::SIGPIPE)
}

/// Whether it ends a process that does not handle it.
pub fn is_deadly(signal: i32) -> bool {
    !matches!(
        signal,
        libc::SIGCHLD
            | libc::SIGCONT
            | libc::SIGURG
            | libc::SIGWINCH
            | libc::SIGSTOP
            | libc::SIGTSTP
            | libc::SIGTTIN
            | libc::SIGTTOU
    )
}

/// Dies of `signal`, as the command did, so that a shell sees a signal and not a code: an interactive shell ends its
/// loop only then. Without a core, which would be rlock's. Returns where it does not kill: PID 1 is spared.
pub fn die_of(signal: i32) {
    // Each of these only makes the death less exact when it fails.
    let _ = prctl::set_dumpable(false);
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_CORE) {
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, most);
    }
    // Refused for SIGKILL, which needs no more than to be sent.
    let _ = sys::set_disposition(signal, false);
    let _ = sys::raise(signal);
    let _ = sys::signal_set(sys::bit(signal)).thread_unblock();
}

/// Stops this process, as the command was stopped; returns when it goes on.
pub fn stop_self() {
    // It cannot fail: the signal exists and a process may always signal itself.
    let _ = sys::raise(libc::SIGSTOP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "SIGTERM", "term", "sigterm", "15"] {
            assert_eq!(parse(text), Some(libc::SIGTERM), "{text}");
        }
        assert_eq!(parse("35"), Some(35));
        for bad in ["", "0", "-1", "+15", "65", "32", "33", "99999999999", "SIG", "TERMINATE", "15 "] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        assert_eq!(name(libc::SIGUSR1), "SIGUSR1");
        assert_eq!(name(35), "signal 35");
    }

    #[test]
    fn every_named_signal_is_read_back() {
        for signal in Signal::iterator() {
            assert_eq!(parse(&name(signal as i32)), Some(signal as i32));
        }
    }

    #[test]
    fn only_the_terminals_own_signals_count_as_given_to_the_group() {
        let from_kernel = |signal| Received { signal, code: libc::SI_KERNEL, sender: None };
        assert!(from_kernel(libc::SIGINT).is_from_terminal());
        assert!(!from_kernel(libc::SIGTERM).is_from_terminal());
        let sent = Received { signal: libc::SIGINT, code: libc::SI_USER, sender: Some(Pid::from_raw(1)) };
        assert!(!sent.is_from_terminal());
    }

    #[test]
    fn the_kinds_of_signals() {
        assert!(is_stop(libc::SIGHUP) && !is_stop(libc::SIGUSR1));
        assert!(is_forwardable(libc::SIGUSR1) && is_forwardable(40) && is_forwardable(libc::SIGCONT));
        assert!(!is_forwardable(libc::SIGKILL) && !is_forwardable(libc::SIGCHLD) && !is_forwardable(0));
        assert!(is_deadly(libc::SIGALRM) && is_deadly(40) && !is_deadly(libc::SIGWINCH));
    }
}
