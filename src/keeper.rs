//! The keeper: the process between rlock and the command that ends the command's tree when rlock cannot.
//!
//! It is forked before any thread or connection exists, and is the parent of the command. rlock tells it the two
//! instants of the lease in a word of shared memory, where the newest is always the only one: a queue could be full
//! of old ones after the keeper was stopped. Everything else goes over a socket pair. The keeper acts a little later
//! than rlock would, and at once when the socket closes, which is how it learns that rlock is dead.
//!
//! This file is rlock's end; `keeper/serve.rs` is the keeper's.

mod serve;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::{Pid, getpid, pipe2};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::child::{self, Ending, Left, Program, Tree};
use crate::clock::Boot;
use crate::error::Error;
use crate::lease::Instants;
use crate::signal::AtEntry;
use crate::sys;

/// How long a new keeper may take to be ready, in milliseconds.
const READY_WITHIN_MS: u16 = 5000;

/// What the keeper is forked with.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The command.
    pub program: Program,
    /// What the command gets of signals.
    pub at_entry: AtEntry,
    /// The first signal (`--signal`).
    pub signal: i32,
    /// Descriptors that it keeps open until it ends, after the command's tree. The command does not get them.
    pub keep: Vec<RawFd>,
}

/// What the command's environment has more, and less, than rlock's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Names with their values.
    pub set: Vec<(String, String)>,
    /// Names that are taken away.
    pub unset: Vec<String>,
}

/// What the keeper says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The command runs; this is its first process, whose pid stays its own until [`Keeper::done`].
    Started {
        /// The first process.
        pid: i32,
    },
    /// The command could not be started. See [`Program::not_started`]. ETIME: the first instant had passed.
    NotStarted {
        /// Why.
        errno: i32,
    },
    /// The first process was stopped.
    Stopped {
        /// By this signal.
        signal: i32,
    },
    /// The first process goes on.
    Continued,
    /// The first process ended.
    Ended(Ending),
    /// The first instant passed: the keeper has sent the first signal to the whole tree.
    Signalled {
        /// Those that it may not signal.
        left: Vec<Left>,
    },
    /// The second instant passed: the keeper has killed the whole tree.
    Killed {
        /// Those that are still there, at most 16 of them. It is said again when they have changed.
        left: Vec<Left>,
    },
    /// The keeper is dead. Said once, and the last; [`Keeper::tree`] is now what rlock itself must end.
    Gone,
}

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Spawn(Environment),
    Look,
    Done,
}

/// rlock's end of the keeper.
#[derive(Debug)]
pub struct Keeper {
    pid: Pid,
    socket: OwnedFd,
    /// Ends with the keeper, and then lets us go on if we are stopped: nobody else would end the tree.
    _line: OwnedFd,
    slot: Slot,
    first: Option<Pid>,
    /// The first process is dead.
    has_ended: bool,
    kin: Vec<Pid>,
    /// It was told to start the command, and has not said what came of it.
    is_starting: bool,
    gone: bool,
}

impl Keeper {
    /// Forks the keeper, and makes this process the one that orphans fall to when it dies. To be called after
    /// [`crate::signal::Signals::block_all`] and [`sys::take_fd`], while there is one thread and no connection. It is of
    /// use after [`Keeper::wait_ready`].
    pub fn fork(spec: Spec) -> Result<Self, Error> {
        check_proc()?;
        prctl::set_child_subreaper(true).map_err(failed)?;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).map_err(failed)?;
        let (our_line, their_line) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        let slot = Slot::new().map_err(failed)?;
        let kin = child::children_of(getpid());
        let Some(pid) = sys::fork().map_err(failed)? else {
            drop((ours, our_line));
            serve::serve(spec, theirs, their_line, slot);
        };
        drop((theirs, their_line));
        sys::go_on_at(our_line.as_fd()).map_err(failed)?;
        Ok(Self {
            pid,
            socket: ours,
            _line: our_line,
            slot,
            first: None,
            has_ended: false,
            kin,
            is_starting: false,
            gone: false,
        })
    }

    /// Waits until it is ready, which must be known before anything else is asked of it.
    pub fn wait_ready(&self) -> Result<(), Error> {
        self.heard_ready().map_err(failed)
    }

    fn heard_ready(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(READY_WITHIN_MS))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match receive::<Result<(), i32>>(&self.socket) {
            Received::Message(Ok(())) => Ok(()),
            Received::Message(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Received::Nothing | Received::End => Err(io::Error::other("it was killed")),
        }
    }

    /// Lets it start the command. [`Event::Started`] or [`Event::NotStarted`] follows.
    pub fn spawn(&mut self, environment: Environment) -> io::Result<()> {
        transmit(&self.socket, &Order::Spawn(environment))?;
        self.is_starting = true;
        Ok(())
    }

    /// Tells it the instants, or that there are none. Never blocks, and the newest always counts, however long the
    /// keeper was stopped. Once rlock has sent the first signal itself, `signal_at` must be none.
    pub fn set_instants(&self, instants: Option<Instants>) {
        if self.slot.set(instants) && transmit(&self.socket, &Order::Look).is_err() {
            self.slot.seen();
        }
    }

    /// What it says next, if anything. Never blocks.
    pub fn try_recv(&mut self) -> Option<Event> {
        if self.gone {
            return None;
        }
        match receive(&self.socket) {
            Received::Message(event) => {
                if let Event::Started { pid } = event {
                    self.first = Some(Pid::from_raw(pid));
                }
                self.has_ended |= matches!(event, Event::Ended(_));
                self.is_starting &= !matches!(event, Event::Started { .. } | Event::NotStarted { .. });
                Some(event)
            }
            Received::Nothing => None,
            Received::End => {
                self.gone = true;
                Some(Event::Gone)
            }
        }
    }

    /// Lets it end quietly. What the command left running goes on; a first process that still runs dies. Its pid is
    /// for [`bury`].
    pub fn done(self) -> Pid {
        // Where it fails, the keeper is dead.
        let _ = transmit(&self.socket, &Order::Done);
        // It may have been stopped.
        let _ = sys::kill(self.pid, libc::SIGCONT);
        self.pid
    }

    /// Whether it is dead.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// The keeper's pid, which stays its own as long as this value exists.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The command's tree as rlock sees it: what is below the keeper, or, once it is gone, below rlock. While the
    /// command is being started the keeper is part of it: a keeper that is stopped would start the command later.
    pub fn tree(&self) -> Tree {
        if self.gone || self.is_starting { self.own_children().without(&self.kin) } else { Tree::below(self.pid) }
    }

    /// How many of the command's tree live.
    pub fn count(&self) -> usize {
        self.tree().count(self.first.filter(|_| self.has_ended && !self.gone))
    }

    /// Whether `pid` is the command's first process.
    pub fn is_first(&self, pid: Pid) -> bool {
        self.first.map_or_else(|| child::parent_of(pid) == Some(self.pid), |first| pid == first)
    }

    /// Reaps rlock's children that ended: orphans that fell to it, and what it had before the keeper. For SIGCHLD.
    pub fn reap(&mut self) {
        for (pid, _) in self.own_children().reap() {
            self.kin.retain(|kin| *kin != pid);
        }
    }

    fn own_children(&self) -> Tree {
        Tree::below(getpid()).keeping([self.pid]).keeping(self.first)
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reaps the keeper `pid`, which was let go, and all that fell to us through it: not every PID 1 of a container reaps
/// what others leave. Whether the keeper is gone; SIGCHLD comes when it is.
pub fn bury(pid: Pid) -> bool {
    let mut is_gone = false;
    while let Some((reaped, _)) = sys::wait_child(None, WaitPidFlag::WEXITED) {
        is_gone |= reaped == pid;
    }
    is_gone
}

fn failed(error: impl Into<io::Error>) -> Error {
    Error::Os(format!("cannot start the process that guards the command: {} (see ulimit -u, -n and -i)", error.into()))
}

/// The tree is read from /proc, with our numbers.
fn check_proc() -> Result<(), Error> {
    let own = fs::read_link("/proc/self").ok();
    if own.is_some_and(|own| own.as_os_str() == getpid().to_string().as_str()) {
        return Ok(());
    }
    Err(Error::Os(
        "/proc is not mounted, or is that of another PID namespace; rlock finds the command's processes there: mount it \
         (docker and `unshare --mount-proc` do)"
            .into(),
    ))
}

/// The word that rlock writes and the keeper reads, and whether the keeper was told to look.
#[derive(Clone, Copy, Debug)]
struct Slot(&'static [AtomicU64; 2]);

impl Slot {
    fn new() -> io::Result<Self> {
        sys::shared_words().map(Self)
    }

    /// Whether the keeper must be told: it has not looked since it was told last, otherwise.
    fn set(self, instants: Option<Instants>) -> bool {
        self.0[0].store(instants.map_or(0, pack), Ordering::SeqCst);
        self.0[1].swap(1, Ordering::SeqCst) == 0
    }

    fn seen(self) {
        self.0[1].store(0, Ordering::SeqCst);
    }

    fn get(self) -> Option<Instants> {
        self.seen();
        unpack(self.0[0].load(Ordering::SeqCst))
    }
}

/// Milliseconds between the two instants: 25 bits, 9 hours, where `--kill-after` can be 8 at most.
const GRACE_BITS: u32 = 25;
const GRACE_MAX: u64 = (1 << GRACE_BITS) - 1;
/// Milliseconds since the machine's start: the other 39 bits, 17 years.
const KILL_MAX: u64 = (1 << (64 - GRACE_BITS)) - 1;

/// Both instants in one word, so that no reader ever sees half of a change; never 0, which stands for none. A grace
/// of 0 stands for no first signal.
fn pack(instants: Instants) -> u64 {
    let ms = |at: Boot| u64::try_from(at.since_boot().as_millis()).unwrap_or(u64::MAX);
    let kill = ms(instants.kill_at).clamp(1, KILL_MAX);
    let grace = instants.signal_at.map_or(0, |at| kill.saturating_sub(ms(at)).min(GRACE_MAX));
    kill << GRACE_BITS | grace
}

fn unpack(word: u64) -> Option<Instants> {
    let (kill, grace) = (word >> GRACE_BITS, word & GRACE_MAX);
    let kill_at = Boot::at(Duration::from_millis(kill));
    let signal_at = (grace > 0).then(|| kill_at.before(Duration::from_millis(grace)));
    (word != 0).then_some(Instants { signal_at, kill_at })
}

enum Received<T> {
    Message(T),
    Nothing,
    End,
}

fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> Received<T> {
    loop {
        return match receive_bytes(socket) {
            Ok(bytes) if bytes.is_empty() => Received::End,
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(message) => Received::Message(message),
                Err(_) => continue,
            },
            Err(Errno::EAGAIN) => Received::Nothing,
            // The other end closed with messages unread: ours may still hold some, and come next.
            Err(Errno::ECONNRESET | Errno::EINTR) => continue,
            Err(_) => Received::End,
        };
    }
}

/// The next message, which is as long as it says: most are far shorter than the longest. Empty at the end.
fn receive_bytes(socket: &OwnedFd) -> nix::Result<Vec<u8>> {
    let peek = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
    let mut bytes = vec![0; recv(socket.as_raw_fd(), &mut [], peek)?];
    let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT)?;
    bytes.truncate(length);
    Ok(bytes)
}

fn transmit<T: Serialize>(socket: &OwnedFd, message: &T) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    send(socket.as_raw_fd(), &text, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_instants_fit_one_word() {
        let at = |ms| Boot::at(Duration::from_millis(ms));
        for (signal, kill) in [(Some(1), 2), (None, 1), (Some(100_000), 105_000), (Some(0), 28_800_000)] {
            let instants = Instants { signal_at: signal.map(at), kill_at: at(kill) };
            assert_eq!(unpack(pack(instants)), Some(instants));
        }
        assert_eq!(unpack(0), None);
        let past = Instants { signal_at: None, kill_at: at(0) };
        assert_eq!(unpack(pack(past)).unwrap().kill_at, at(1), "an instant long past is not none");
        let far = Instants { signal_at: Some(at(0)), kill_at: Boot::at(Duration::MAX) };
        assert!(unpack(pack(far)).unwrap().kill_at > at(500_000_000_000));
        let same = Instants { signal_at: Some(at(7)), kill_at: at(7) };
        assert_eq!(unpack(pack(same)).unwrap().signal_at, None, "with no time between them, KILL alone is left");
    }

    #[test]
    fn it_is_told_to_look_once_until_it_has() {
        let slot = Slot::new().unwrap();
        let instants = Instants { signal_at: None, kill_at: Boot::at(Duration::from_secs(5)) };
        assert!(slot.set(Some(instants)));
        assert!(!slot.set(None));
        assert!(!slot.set(Some(instants)));
        assert_eq!(slot.get(), Some(instants));
        assert!(slot.set(None));
        assert_eq!(slot.get(), None);
    }
}
