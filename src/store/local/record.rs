//! A key's record: two files that are written in turn, so that one of them is always whole.
//!
//! A writer may be killed in the middle of a write; then the other file, one operation older, is what holds: the
//! operation was never answered. Writing in place also needs no room on the disk: both files are made as long as the
//! record at once, so that a running command's lease can be renewed, and released, on a full disk.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, posix_fallocate};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// The two files.
const NAMES: [&str; 2] = ["a", "b"];
/// The layout's name and number.
const LAYOUT: &[u8] = b"rlock1 ";
/// The length of the first line: layout, turn, length, sum.
const HEAD: usize = LAYOUT.len() + 17 + 9 + 17;
/// The longest text that is read: more than ten thousand waiters with full records.
const LONGEST: usize = 32 << 20;
/// Files grow by so much.
const BLOCK: u64 = 4096;

/// What is wrong with a record that is not merely broken: it belongs to a newer rlock.
pub(super) const NEWER: Errno = Errno::ENOTSUP;

/// A record as it was read.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// How often it was written; 0 where there is none.
    turn: u64,
    /// Which file has it.
    at: usize,
    /// Its text.
    pub(super) text: Vec<u8>,
    /// The two files; not all of them where it was only looked at.
    files: Vec<File>,
}

impl Record {
    /// Reads the record in `folder`: the newer of those that are whole, or an empty one. It can be written where `write`
    /// says so; then the files are made where they are missing.
    pub(super) fn read(folder: &OwnedFd, write: bool) -> Result<Self, Errno> {
        let how = if write { OFlag::O_RDWR | OFlag::O_CREAT } else { OFlag::O_RDONLY };
        let flags = how | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let (mut newest, mut files) = (Self::default(), Vec::with_capacity(2));
        for (at, name) in NAMES.iter().enumerate() {
            let file = match openat(folder, *name, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
                Err(Errno::ENOENT) if !write => continue,
                file => File::from(file?),
            };
            if let Some(read) = Self::read_one(&file, at)?.filter(|read| read.turn > newest.turn) {
                newest = read;
            }
            files.push(file);
        }
        Ok(Self { files, ..newest })
    }

    /// Whether there is none.
    pub(super) fn is_missing(&self) -> bool {
        self.turn == 0
    }

    fn read_one(file: &File, at: usize) -> Result<Option<Self>, Errno> {
        let mut head = [0; HEAD];
        if file.read_exact_at(&mut head, 0).is_err() {
            return Ok(None);
        }
        let Some(rest) = head.strip_prefix(LAYOUT) else {
            let is_newer = head.starts_with(b"rlock") && head[5].is_ascii_digit() && head[5] > b'1';
            return if is_newer { Err(NEWER) } else { Ok(None) };
        };
        let word = |from: usize, to: usize| u64::from_str_radix(std::str::from_utf8(&rest[from..to]).ok()?, 16).ok();
        let (Some(turn), Some(length), Some(sum)) = (word(0, 16), word(17, 25), word(26, 42)) else { return Ok(None) };
        let is_there = length <= fstat(file)?.st_size.unsigned_abs();
        let (Ok(length @ ..=LONGEST), true) = (usize::try_from(length), is_there) else { return Ok(None) };
        let mut text = vec![0; length];
        // After the last turn of all there would be none; rlock does not get so far.
        let whole = file.read_exact_at(&mut text, HEAD as u64).is_ok() && sum == sum_of(turn, &text) && turn < u64::MAX;
        Ok(whole.then_some(Self { turn, at, text, files: Vec::new() }))
    }

    /// Writes `text` after this record. Where it fails, this record stands.
    pub(super) fn write(&self, text: &[u8]) -> Result<(), Errno> {
        if text.len() > LONGEST {
            return Err(Errno::EFBIG);
        }
        let (turn, at) = (self.turn + 1, if self.is_missing() { 0 } else { 1 - self.at });
        let mut all = LAYOUT.to_vec();
        all.extend(format!("{turn:016x} {:08x} {:016x}\n", text.len(), sum_of(turn, text)).bytes());
        all.extend(text);
        for file in &self.files {
            make_room(file, all.len() as u64)?;
        }
        let file = self.files.get(at).ok_or(Errno::EBADF)?;
        file.write_all_at(&all, 0).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// When the two files were last written, in nanoseconds; only to see whether anybody writes.
    pub(super) fn written_at(folder: &OwnedFd) -> [i64; 2] {
        NAMES.map(|name| {
            let stat = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW);
            stat.map_or(0, |stat| stat.st_mtime.wrapping_mul(1_000_000_000).wrapping_add(stat.st_mtime_nsec))
        })
    }

    /// Removes whatever there is.
    pub(super) fn remove(folder: &OwnedFd) {
        for name in NAMES {
            // What cannot be removed keeps its directory.
            let _ = unlinkat(folder, name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

fn make_room(file: impl AsFd, length: u64) -> Result<(), Errno> {
    let room = length.next_multiple_of(BLOCK);
    if fstat(&file)?.st_size.unsigned_abs() >= room {
        return Ok(());
    }
    match posix_fallocate(file, 0, i64::try_from(room).unwrap_or(i64::MAX)) {
        // A file system that cannot set room aside.
        Err(Errno::EOPNOTSUPP | Errno::EINVAL) => Ok(()),
        done => done,
    }
}

/// FNV-1a, over eight bytes at a time: it need not withstand an enemy, only tell a torn write.
fn sum_of(turn: u64, text: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = std::iter::once(turn).chain(text.chunks(8).map(word));
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn folder() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap().into();
        (dir, fd)
    }

    #[test]
    fn the_last_whole_record_counts() {
        let (dir, fd) = folder();
        assert!(Record::read(&fd, true).unwrap().is_missing());
        for text in ["one", "two", "three", &"long".repeat(5000), "", "before"] {
            Record::read(&fd, true).unwrap().write(text.as_bytes()).unwrap();
            assert_eq!(Record::read(&fd, true).unwrap().text, text.as_bytes());
        }
        // A write that was cut off at any byte leaves the one before.
        let before = Record::read(&fd, true).unwrap();
        let path = dir.path().join(NAMES[1 - before.at]);
        let old = std::fs::read(&path).unwrap();
        before.write(b"last").unwrap();
        let whole = std::fs::read(&path).unwrap();
        for torn in 0..HEAD + 4 {
            std::fs::write(&path, [&whole[..torn], &old[torn..]].concat()).unwrap();
            assert_eq!(Record::read(&fd, true).unwrap().text, before.text, "{torn}");
        }
        std::fs::write(&path, b"").unwrap();
        assert_eq!(Record::read(&fd, true).unwrap().text, before.text);
    }

    #[test]
    fn a_newer_layout_is_not_taken_for_a_broken_one() {
        let (dir, fd) = folder();
        std::fs::write(dir.path().join("a"), format!("rlock2 {:4096}", "")).unwrap();
        assert_eq!(Record::read(&fd, true).unwrap_err(), NEWER);
    }

    #[test]
    fn a_length_that_is_announced_takes_no_memory() {
        let (dir, fd) = folder();
        let text = b"whole";
        let head = |turn: u64, length: usize| format!("rlock1 {turn:016x} {length:08x} {:016x}\n", sum_of(turn, text));
        std::fs::write(dir.path().join("a"), [head(1, 5).as_bytes(), text].concat()).unwrap();
        // As large as it says, without a block on the disk.
        std::fs::write(dir.path().join("b"), head(2, 0xffff_ffff)).unwrap();
        File::options().write(true).open(dir.path().join("b")).unwrap().set_len(5 << 30).unwrap();
        let began = resident();
        assert_eq!(Record::read(&fd, true).unwrap().text, text);
        assert!(resident() < began + (1 << 30));
        std::fs::write(dir.path().join("b"), [head(u64::MAX, 5).as_bytes(), text].concat()).unwrap();
        Record::read(&fd, true).unwrap().write(b"next").unwrap();
        assert_eq!(Record::read(&fd, true).unwrap().text, b"next");
    }

    /// The most memory that this process has had, in bytes.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    proptest! {
        #[test]
        fn whatever_is_broken_the_record_is_one_that_was_written(at in 0..HEAD + 13, byte: u8, both: bool) {
            let (dir, fd) = folder();
            for text in ["the first one", "the second one"] {
                Record::read(&fd, true).unwrap().write(text.as_bytes()).unwrap();
            }
            for name in NAMES.iter().take(1 + usize::from(both)) {
                let path = dir.path().join(name);
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[at] = byte;
                std::fs::write(&path, bytes).unwrap();
            }
            match Record::read(&fd, true) {
                Ok(read) => prop_assert!(matches!(&read.text[..], b"the first one" | b"the second one" | b"")),
                Err(errno) => prop_assert_eq!(errno, NEWER),
            }
        }
    }

    #[test]
    fn both_files_have_the_room_of_the_record() {
        let (dir, fd) = folder();
        Record::read(&fd, true).unwrap().write(&[b'x'; 5000]).unwrap();
        for name in NAMES {
            assert_eq!(std::fs::metadata(dir.path().join(name)).unwrap().len(), 2 * BLOCK);
        }
    }
}
