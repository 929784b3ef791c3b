//! How it is seen that a claim's processes are dead, and how they are woken: one FIFO for each claim.
//!
//! rlock opens it for reading and writing, and its keeper keeps the same open file; the kernel closes it when the last
//! of them is gone, however they ended. Others open it for writing: that is refused at once where no reader is left
//! (dead), tells by an error in `poll` when the last one goes, and writing a byte wakes the owner. So one descriptor
//! serves for all three, nobody asks again and again, and no process number is ever trusted. A lock of the file would
//! tell as much, but only to a thread that blocks for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstat, fstatat, mkdirat};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{UnlinkatFlags, mkfifoat, read, unlinkat, write};

use super::place::{OURS, STEP};
use crate::claim::ClaimId;

/// Where they are.
const FOLDER: &str = "claims";
/// A FIFO that nobody reads is swept when it is so old, in seconds: a new one is not opened yet.
const SWEPT_AFTER: i64 = 60;

const PEER: OFlag = OFlag::O_WRONLY.union(OFlag::O_NONBLOCK).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// What the kernel says of a claim.
pub(super) enum Pulse {
    /// Its processes are dead.
    Dead,
    /// One of them lives; the descriptor gets an error in `poll` when the last one is dead.
    Beats(OwnedFd),
    /// It was never announced, or its FIFO was removed: only its lease and its heartbeat count.
    Unknown,
}

/// Our own claim's FIFO.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) id: ClaimId,
    fd: OwnedFd,
}

impl Own {
    /// Announces a claim.
    pub(super) fn make(root: &OwnedFd, id: ClaimId) -> Result<Self, Errno> {
        match mkdirat(root, FOLDER, OURS) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        let folder = openat(root, FOLDER, STEP, Mode::empty())?;
        let name = id.to_string();
        mkfifoat(&folder, name.as_str(), Mode::S_IRUSR | Mode::S_IWUSR)?;
        let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&folder, name.as_str(), flags, Mode::empty())?;
        Ok(Self { id, fd })
    }

    /// Whether others can no longer find it.
    pub(super) fn is_lost(&self) -> bool {
        fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Forgets the wake-ups that came.
    pub(super) fn hush(&self) {
        let mut bytes = [0; 64];
        while let Ok(64) = read(&self.fd, &mut bytes) {}
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Everybody's FIFOs.
pub(super) struct Pulses(Option<OwnedFd>);

impl Pulses {
    pub(super) fn open(root: &OwnedFd) -> Self {
        Self(openat(root, FOLDER, STEP, Mode::empty()).ok())
    }

    /// Feels a claim's pulse.
    pub(super) fn of(&self, id: ClaimId) -> Pulse {
        let Some(folder) = &self.0 else { return Pulse::Unknown };
        match openat(folder, id.to_string().as_str(), PEER, Mode::empty()) {
            Ok(fd) => Pulse::Beats(fd),
            Err(Errno::ENXIO) => Pulse::Dead,
            Err(_) => Pulse::Unknown,
        }
    }

    pub(super) fn is_dead(&self, id: ClaimId) -> bool {
        matches!(self.of(id), Pulse::Dead)
    }

    /// Wakes whoever waits or holds under this claim.
    pub(super) fn wake(&self, id: ClaimId) {
        if let Pulse::Beats(fd) = self.of(id) {
            // A full FIFO wakes as well.
            let _ = write(fd, b"!");
        }
    }

    /// Removes the FIFO of a claim that has ended.
    pub(super) fn remove(&self, id: ClaimId) {
        if let Some(folder) = &self.0 {
            // It has none where no process stood behind it.
            let _ = unlinkat(folder, id.to_string().as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }

    /// Removes what was left by those that were killed before they had asked, or after their lease had lapsed.
    pub(super) fn sweep(&self) {
        let Some(folder) = &self.0 else { return };
        let Ok(mut entries) = Dir::openat(folder, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()) else {
            return;
        };
        let now = clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, |now| now.num_seconds());
        let names =
            entries.iter().flatten().filter_map(|entry| entry.file_name().to_str().ok().and_then(ClaimId::parse));
        for id in names.collect::<Vec<_>>() {
            let name = id.to_string();
            let made = fstatat(folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
            if made.is_ok_and(|stat| stat.st_ctime + SWEPT_AFTER < now) && self.is_dead(id) {
                self.remove(id);
            }
        }
    }
}
