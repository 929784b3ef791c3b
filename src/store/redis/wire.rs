//! One connection. Whatever the peer does, a request ends at the instant it was given, or at once when it is
//! cancelled: the socket never blocks, and every wait is a `ppoll` on it and on the [`Cancel`].
//!
//! The crate's own connection has a timeout for each `read`, which a peer that drips a byte at a time outlives.

use std::error::Error;
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::sys::time::TimeSpec;
use redis::{ConnectionLike, ErrorKind, Parser, RedisError, RedisResult, Value};

use crate::clock::Boot;
use crate::store::Cancel;

/// The largest answer that is read, in bytes: more than ten thousand waiters with full records.
const LARGEST_ANSWER: usize = 16 << 20;
/// The most lines of one answer. A line of a few bytes becomes a value of 56.
const MOST_LINES: usize = 1 << 20;
/// The longest single `ppoll`: its clock stands still in suspend, ours does not.
const SLICE: Duration = Duration::from_millis(500);

/// Why a request ended without an answer. It travels inside the `io::Error` of a [`RedisError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Its time was over.
    Late,
    /// It was cancelled.
    Cancelled,
    /// The answer has no end in sight.
    TooLarge,
}

impl Cut {
    /// The cut that `err` carries, if one does.
    pub(super) fn of(err: &RedisError) -> Option<Self> {
        io_of(err)?.get_ref()?.downcast_ref().copied()
    }
}

/// The error of the system's, or of ours, that `err` carries.
pub(super) fn io_of(err: &RedisError) -> Option<&io::Error> {
    let source = err.source()?;
    // The crate keeps it behind an `Arc`, which is an error too.
    let inner = source.downcast_ref::<Arc<dyn Error + Send + Sync>>().map(|inner| inner.downcast_ref());
    inner.unwrap_or_else(|| source.downcast_ref())
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Late => "no answer in time",
            Self::Cancelled => "cancelled",
            Self::TooLarge => "the answer is too large",
        })
    }
}

impl Error for Cut {}

impl From<Cut> for io::Error {
    fn from(cut: Cut) -> Self {
        Self::other(cut)
    }
}

/// Waits until one of `fds` is ready (true) or the instant has come (false).
pub(super) fn ready(fds: &[(&dyn AsFd, PollFlags)], cancel: &Cancel, by: Boot) -> io::Result<bool> {
    let mut polled: Vec<_> = fds.iter().map(|(fd, events)| PollFd::new(fd.as_fd(), *events)).collect();
    polled.push(PollFd::new(cancel.as_fd(), PollFlags::POLLIN));
    loop {
        let left = by.left();
        match ppoll(&mut polled, Some(TimeSpec::from_duration(left.min(SLICE))), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut happened = polled.iter().rev().map(|one| one.any().unwrap_or(true));
        if happened.next() == Some(true) {
            return Err(Cut::Cancelled.into());
        }
        // The instant counts, not what came after it: a peer that always has one more byte would go on for ever.
        if left.is_zero() {
            return Ok(false);
        }
        if happened.any(|any| any) {
            return Ok(true);
        }
    }
}

/// Sleeps until `until`. An error is a [`Cut::Cancelled`], or a fault of the system's.
pub(super) fn sleep(cancel: &Cancel, until: Boot) -> io::Result<()> {
    ready(&[], cancel, until).map(drop)
}

/// A connection to a server.
pub(super) struct Wire {
    socket: OwnedFd,
    cancel: Cancel,
    parser: Parser,
    by: Boot,
    open: bool,
    /// The last request was written to its end and has no answer yet.
    unanswered: bool,
    round_trip: Option<Duration>,
}

impl Wire {
    /// A connection over a connected socket that does not block.
    pub(super) fn new(socket: OwnedFd, cancel: Cancel, by: Boot) -> Self {
        Self { socket, cancel, parser: Parser::new(), by, open: true, unanswered: false, round_trip: None }
    }

    /// Sets when the requests that follow end.
    pub(super) fn until(&mut self, by: Boot) -> &mut Self {
        self.by = by;
        self
    }

    /// Whether a request reached the system whole and was never answered: the server may still carry it out.
    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// The time from the last answered request to its answer; none where there was no answer yet.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Whether the peer has closed the connection, or said what nobody asked for.
    pub(super) fn is_stale(&self) -> bool {
        let peek = recv(self.socket.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        !matches!(peek, Err(Errno::EAGAIN | Errno::EINTR))
    }

    /// Writes a request after the unanswered one, as far as that goes without waiting, and closes the connection.
    pub(super) fn post_and_close(self, request: &[u8]) {
        let mut rest = request;
        while !rest.is_empty() {
            // Nobody waits for the answer, and nobody can do anything about an error.
            let Ok(count) = self.send(rest) else { return };
            rest = &rest[count..];
        }
    }

    /// Sends `request` and reads `count` answers. An error answer is a value here.
    pub(super) fn exchange(&mut self, request: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        if !self.open {
            return Err(RedisError::from(io::Error::from(io::ErrorKind::NotConnected)));
        }
        // Whatever happens from here on, half a request or half an answer leaves nothing to go on with.
        self.open = false;
        let begun = Boot::now();
        self.write(request)?;
        self.unanswered = true;
        let mut line =
            Line { wire: &self.socket, cancel: &self.cancel, by: self.by, bytes: LARGEST_ANSWER, lines: MOST_LINES };
        let mut answers = Vec::new();
        for _ in 0..count {
            answers.push(self.parser.parse_value(&mut line)?);
        }
        self.open = true;
        self.unanswered = false;
        self.round_trip = Some(Boot::now().since(begun));
        Ok(answers)
    }

    fn write(&self, request: &[u8]) -> io::Result<()> {
        let mut rest = request;
        while !rest.is_empty() {
            match self.send(rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::EAGAIN) => {
                    if !ready(&[(&self.socket, PollFlags::POLLOUT)], &self.cancel, self.by)? {
                        return Err(Cut::Late.into());
                    }
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn send(&self, bytes: &[u8]) -> nix::Result<usize> {
        send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)
    }
}

/// The reading side of one exchange.
struct Line<'a> {
    wire: &'a OwnedFd,
    cancel: &'a Cancel,
    by: Boot,
    bytes: usize,
    lines: usize,
}

impl Read for Line<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !ready(&[(self.wire, PollFlags::POLLIN)], self.cancel, self.by)? {
                return Err(Cut::Late.into());
            }
            let count = match recv(self.wire.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(count) => count,
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let lines = buffer[..count].split(|byte| *byte == b'\n').count() - 1;
            match (self.bytes.checked_sub(count), self.lines.checked_sub(lines)) {
                (Some(bytes), Some(lines)) => (self.bytes, self.lines) = (bytes, lines),
                _ => return Err(Cut::TooLarge.into()),
            }
            return Ok(count);
        }
    }
}

impl ConnectionLike for Wire {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        self.req_packed_commands(cmd, 0, 1)?.pop().ok_or_else(nothing)
    }

    fn req_packed_commands(&mut self, cmd: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let mut answers = self.exchange(cmd, offset + count)?;
        // What stands before the offset are the `QUEUED` of a MULTI; an error among them has a better text than EXEC's.
        for answer in answers.drain(..offset) {
            answer.extract_error()?;
        }
        Ok(answers)
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.open
    }
}

fn nothing() -> RedisError {
    (ErrorKind::Client, "no answer was asked for").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    fn pair() -> (Wire, OwnedFd, Cancel) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags).unwrap();
        let cancel = Cancel::new().unwrap();
        (Wire::new(ours, cancel.clone(), soon()), theirs, cancel)
    }

    fn soon() -> Boot {
        Boot::now() + Duration::from_millis(200)
    }

    fn answer(theirs: &OwnedFd, text: &[u8]) {
        nix::unistd::write(theirs, text).unwrap();
    }

    fn ping(wire: &mut Wire) -> RedisResult<Value> {
        redis::cmd("PING").query(wire)
    }

    #[test]
    fn a_silent_peer_ends_in_time() {
        let (mut wire, _theirs, _) = pair();
        let by = wire.by;
        assert_eq!(Cut::of(&ping(&mut wire).unwrap_err()), Some(Cut::Late));
        assert!(by.left().is_zero() && Boot::now().since(by) < Duration::from_secs(1));
        assert!(!wire.is_open() && wire.is_unanswered());
    }

    #[test]
    fn a_peer_that_always_has_one_more_byte_ends_in_time() {
        let (mut wire, theirs, _) = pair();
        let by = wire.by;
        let flooder =
            std::thread::spawn(move || while !matches!(nix::unistd::write(&theirs, b"+"), Err(Errno::EPIPE)) {});
        assert_eq!(Cut::of(&ping(&mut wire).unwrap_err()), Some(Cut::Late));
        assert!(Boot::now().since(by) < Duration::from_secs(1));
        drop(wire);
        flooder.join().unwrap();
    }

    #[test]
    fn a_cancel_ends_it_at_once() {
        let (mut wire, _theirs, cancel) = pair();
        wire.until(Boot::now() + Duration::from_secs(60));
        cancel.fire();
        assert_eq!(Cut::of(&ping(&mut wire).unwrap_err()), Some(Cut::Cancelled));
    }

    #[test]
    fn half_a_request_is_not_one_that_may_be_carried_out() {
        let (mut wire, _theirs, _) = pair();
        let request = vec![b'x'; 64 << 20];
        assert_eq!(Cut::of(&wire.exchange(&request, 1).unwrap_err()), Some(Cut::Late));
        assert!(!wire.is_open() && !wire.is_unanswered());
    }

    #[test]
    fn error_answers_keep_the_connection_and_a_bad_one_ends_it() {
        let (mut wire, theirs, _) = pair();
        answer(&theirs, b"-LOADING x\r\n");
        assert_eq!(ping(&mut wire).unwrap_err().code(), Some("LOADING"));
        assert!(wire.is_open() && !wire.is_stale());
        answer(&theirs, b"+stray\r\n");
        assert!(wire.is_stale());
        let (mut wire, theirs, _) = pair();
        answer(&theirs, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        assert_eq!(ping(&mut wire).unwrap_err().kind(), ErrorKind::Parse);
        assert!(!wire.is_open());
    }

    #[test]
    fn a_flood_is_cut() {
        for flood in [&b"*1000000000\r\n"[..], b"$1000000000000\r\n", b"+"] {
            let (mut wire, theirs, _) = pair();
            wire.until(Boot::now() + Duration::from_secs(60));
            let flooder = std::thread::spawn({
                let flood = flood.to_vec();
                move || {
                    answer(&theirs, &flood);
                    let cancel = Cancel::new().unwrap();
                    let ones = b":1\r\n".repeat(16 << 10);
                    let bytes = if flood == b"+" { vec![b'x'; 64 << 10] } else { ones };
                    while ready(&[(&theirs, PollFlags::POLLOUT)], &cancel, Boot::at(Duration::MAX)).unwrap() {
                        match nix::unistd::write(&theirs, &bytes) {
                            Ok(_) | Err(Errno::EAGAIN) => {}
                            Err(_) => return,
                        }
                    }
                }
            });
            assert_eq!(Cut::of(&ping(&mut wire).unwrap_err()), Some(Cut::TooLarge), "{flood:?}");
            drop(wire);
            flooder.join().unwrap();
        }
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let (mut wire, theirs, _) = pair();
        answer(&theirs, &b"*1\r\n".repeat(5000));
        assert_eq!(ping(&mut wire).unwrap_err().kind(), ErrorKind::Parse);
    }
}
