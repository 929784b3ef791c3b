//! A process that was stopped in the middle of an operation on a key holds everybody up: it is let go on.
//!
//! Nobody can take the lock of a directory from it, and it may be stopped for ever. An operation takes a fraction of a
//! millisecond, so hardly any stop falls into one; who was stopped there, and was not meant to go on yet, goes on all
//! the same. Its lease is compared first then, as after every stop.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::sys;

/// Lets those go on who hold a lock of the file with this identity (device, number) and are stopped. Those that are
/// not seen from here, in another PID namespace or of another user, stay as they are.
pub(super) fn holders_of(file: (u64, u64)) {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    for pid in locks.lines().filter_map(|line| flock_on(line, file.1)) {
        if is_stopped(pid) && has_open(pid, file) {
            // It may have ended meanwhile.
            let _ = sys::kill(pid, Signal::SIGCONT as i32);
        }
    }
}

/// Who holds the lock that a line of /proc/locks tells of, if it is one of the file with this number. The device there
/// is not always the one that `stat` tells.
fn flock_on(line: &str, inode: u64) -> Option<Pid> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
    let is_this = file.rsplit(':').next()?.parse() == Ok(inode);
    pid.parse().ok().filter(|_| is_this).map(Pid::from_raw)
}

fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

fn has_open(pid: Pid, file: (u64, u64)) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| fs::metadata(fd.path()).ok()).any(|open| (open.dev(), open.ino()) == file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_locks_are_read() {
        let held = |line: &str| flock_on(line, 4711).map(Pid::as_raw);
        assert_eq!(held("1: FLOCK  ADVISORY  WRITE 24486 fe:00:4711 0 EOF"), Some(24486));
        assert_eq!(held("12: FLOCK  ADVISORY  READ  7 00:1a:4711 0 EOF"), Some(7));
        for other in [
            "1: FLOCK  ADVISORY  WRITE 24486 fe:00:47110 0 EOF",
            "1: POSIX  ADVISORY  WRITE 24486 fe:00:4711 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 24486 fe:00:4711 0 EOF",
            "",
        ] {
            assert_eq!(held(other), None, "{other}");
        }
    }
}
