//! A key's directory: found by the key's name, locked for one operation, removed when nothing is left to keep.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::{Mode, fstat, fstatat, mkdirat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::nudge;
use super::place::{Address, OURS, STEP};
use super::record::Record;
use crate::clock::Boot;
use crate::store::{Cancel, Key, Reply, Trouble};

/// Where they are.
const FOLDERS: &str = "keys";
/// A longer name ends in a sum of the key instead: file systems take 255 bytes.
const LONGEST_NAME: usize = 200;

/// The pauses while another's operation is waited for, which takes a fraction of a millisecond.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_micros(640);
/// In a longer wait, when it is first looked whether anything goes on, and the longest time between two looks.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_secs(1);
/// What a thread that only waits needs.
const STACK: usize = 64 * 1024;

const CANNOT_LOCK: &str = "cannot lock a key's directory";

/// What a directory is wanted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// To look; it is not made where it is missing.
    Look,
    /// To change what it holds.
    Change,
}

/// A locked directory.
pub(super) struct Folder {
    pub(super) root: OwnedFd,
    parent: OwnedFd,
    name: String,
    fd: Flock<OwnedFd>,
    /// Its device and number.
    pub(super) identity: (u64, u64),
}

impl Folder {
    /// Finds and locks the directory called `name`; none where there is none and none was made.
    pub(super) fn lock(at: &Address, name: &str, want: Want, by: Boot, cancel: &Cancel) -> Reply<Option<Self>> {
        let make = want == Want::Change;
        pause(cancel, Duration::ZERO)?;
        loop {
            let Some(root) = at.open(make)? else { return Ok(None) };
            let found = open_in(&root, FOLDERS, STEP, make).and_then(|parent| {
                let fd = open_in(&parent, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW, make)?;
                Ok((parent, fd))
            });
            match found {
                Ok((parent, fd)) => {
                    let stat = fstat(&fd).map_err(|errno| at.failed("cannot look at a key's directory", errno))?;
                    let identity = (stat.st_dev, stat.st_ino);
                    let fd = lock(at, fd, identity, want, by, cancel)?;
                    // It may have been removed while it was waited for, and another stands in its place.
                    let there = fstatat(&parent, name, AtFlags::AT_SYMLINK_NOFOLLOW);
                    if there.is_ok_and(|there| (there.st_dev, there.st_ino) == identity) {
                        return Ok(Some(Self { root, parent, name: name.to_owned(), fd, identity }));
                    }
                }
                Err(Errno::ENOENT) if !make => return Ok(None),
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(at.failed("cannot open a key's directory", errno)),
            }
            if by.left().is_zero() {
                return Err(Trouble::Later(format!(
                    "{at}: the directory is removed again and again; see who does that"
                )));
            }
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Removes it with what it holds. Who waits for its lock finds it gone and looks for it anew.
    pub(super) fn remove(self) {
        Record::remove(&self.fd);
        // It stays where something else lies in it.
        let _ = unlinkat(&self.parent, self.name.as_str(), UnlinkatFlags::RemoveDir);
    }

    /// The names of all directories.
    pub(super) fn names(at: &Address) -> Reply<Vec<String>> {
        let failed = |errno| at.failed("cannot list the keys", errno);
        let Some(root) = at.open(false)? else { return Ok(Vec::new()) };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut entries = match Dir::openat(&root, FOLDERS, flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(Vec::new()),
            opened => opened.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries.iter() {
            let entry = entry.map_err(failed)?;
            names.extend(entry.file_name().to_str().ok().filter(|name| !name.starts_with('.')).map(str::to_owned));
        }
        Ok(names)
    }

    /// The device and number of the directory that now stands at a name.
    pub(super) fn identity_at(at: &Address, name: &str) -> Option<(u64, u64)> {
        let path = at.path().ok()?.join(Path::new(FOLDERS)).join(name);
        let stat = nix::sys::stat::lstat(&path).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }
}

fn open_in(parent: &OwnedFd, name: &str, flags: OFlag, make: bool) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlag::O_CLOEXEC;
    match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::ENOENT) if make => match mkdirat(parent, name, OURS) {
            Ok(()) | Err(Errno::EEXIST) => openat(parent, name, flags, Mode::empty()),
            Err(errno) => Err(errno),
        },
        opened => opened,
    }
}

/// A lock that is waited for with an end: a process that is frozen in the middle of its operation keeps it.
///
/// Most are free at once or in a moment. For a longer wait a thread stands in the kernel's queue, which is fair and
/// wakes one at a time: a thousand waiters that looked again and again would leave nothing of the processors to the one
/// that has the lock.
fn lock(
    at: &Address,
    mut fd: OwnedFd,
    identity: (u64, u64),
    want: Want,
    by: Boot,
    cancel: &Cancel,
) -> Reply<Flock<OwnedFd>> {
    let (soon, queued) = match want {
        Want::Look => (FlockArg::LockSharedNonblock, FlockArg::LockShared),
        Want::Change => (FlockArg::LockExclusiveNonblock, FlockArg::LockExclusive),
    };
    let mut rest = FIRST_PAUSE;
    while rest <= LONGEST_PAUSE {
        match Flock::lock(fd, soon) {
            Ok(locked) => return Ok(locked),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => fd = back,
            Err((_, errno)) => return Err(at.failed(CANNOT_LOCK, errno)),
        }
        pause(cancel, rest.min(by.left()))?;
        rest *= 2;
    }
    let mut progress = Record::written_at(&fd);
    let mut look = FIRST_LOOK;
    let standing = Standing::start(&fd, queued).map_err(|errno| at.failed(CANNOT_LOCK, errno))?;
    loop {
        if let Some(locked) = standing.wait(look.min(by.left()), cancel)? {
            return locked.map_err(|errno| at.failed(CANNOT_LOCK, errno));
        }
        if by.left().is_zero() {
            let path = at.path()?.join(FOLDERS);
            let path = path.display();
            return Err(Trouble::Later(format!(
                "{at}: another rlock is in the middle of an operation and does not go on; was it stopped or frozen? \
                 (fuser -v {path}/*)"
            )));
        }
        let written = Record::written_at(&fd);
        if written == progress {
            nudge::holders_of(identity);
        }
        progress = written;
        look = (look * 2).min(LONGEST_LOOK);
    }
}

/// A thread that waits in the kernel's queue for a lock. If nobody waits for it any more it lets the lock go at once.
struct Standing {
    bell: Arc<EventFd>,
    locked: Receiver<Result<Flock<OwnedFd>, Errno>>,
}

impl Standing {
    fn start(fd: &OwnedFd, kind: FlockArg) -> Result<Self, Errno> {
        let code = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EAGAIN));
        let fd = fd.try_clone().map_err(code)?;
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (sender, locked) = mpsc::channel();
        let ringer = Arc::clone(&bell);
        let stand = move || {
            let locked = Flock::lock(fd, kind).map_err(|(_, errno)| errno);
            // It comes back where it was given up, and is unlocked.
            let _ = sender.send(locked);
            // It only counts: it cannot be full.
            let _ = ringer.write(1);
        };
        thread::Builder::new().name("lock".into()).stack_size(STACK).spawn(stand).map_err(code)?;
        Ok(Self { bell, locked })
    }

    fn wait(&self, time: Duration, cancel: &Cancel) -> Reply<Option<Result<Flock<OwnedFd>, Errno>>> {
        let (cancel, bell) = (cancel.as_fd(), self.bell.as_fd());
        let mut fds = [PollFd::new(cancel, PollFlags::POLLIN), PollFd::new(bell, PollFlags::POLLIN)];
        // A failure is a turn for nothing.
        let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(time)), None);
        if fds[0].any() == Some(true) {
            return Err(Trouble::Interrupted);
        }
        Ok(self.locked.try_recv().ok())
    }
}

fn pause(cancel: &Cancel, time: Duration) -> Reply<()> {
    let mut fds = [PollFd::new(cancel.as_fd(), PollFlags::POLLIN)];
    match ppoll(&mut fds, Some(TimeSpec::from_duration(time)), None) {
        Ok(1..) => Err(Trouble::Interrupted),
        _ => Ok(()),
    }
}

/// The name of a key's directory: the key itself as far as it is plain, everything else percent-encoded.
pub(super) fn name_of(key: &Key) -> String {
    let mut name = String::new();
    for byte in key.as_str().bytes() {
        let is_plain =
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':') || byte == b'.' && !name.is_empty();
        if is_plain {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "%{byte:02x}");
        }
    }
    if name.len() > LONGEST_NAME {
        name.truncate(LONGEST_NAME - 17);
        // No other name has a tilde.
        let _ = write!(name, "~{:016x}", sum_of(key));
    }
    name
}

/// FNV-1a.
fn sum_of(key: &Key) -> u64 {
    key.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> String {
        name_of(&Key::parse(text).unwrap())
    }

    #[test]
    fn every_key_has_a_name_of_its_own_that_a_file_may_have() {
        for (key, wanted) in [
            ("job:backup", "job:backup"),
            ("a b/c", "a%20b%2fc"),
            (".", "%2e"),
            ("..", "%2e."),
            ("ü~%", "%c3%bc%7e%25"),
        ] {
            assert_eq!(name(key), wanted);
        }
        let long = ["x".repeat(512), "x".repeat(511), "ü".repeat(256), format!("{}y", "x".repeat(511))];
        let mut names: Vec<_> = long.iter().map(|key| name(key)).collect();
        assert!(names.iter().all(|name| name.len() == LONGEST_NAME), "{names:?}");
        names.dedup();
        assert_eq!(names.len(), long.len());
    }
}
