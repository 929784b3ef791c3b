//! From an address to a connection that is logged in and in its database, within one deadline.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrLike, SockaddrStorage, UnixAddr, connect, getpeername, getsockname,
    getsockopt, setsockopt, socket, sockopt,
};
use redis::{RedisError, RedisResult};

use super::errors::{self, At, Wants};
use super::url::{Address, Place};
use super::wire::{Cut, Wire, ready, sleep};
use crate::clock::Boot;
use crate::store::{Cancel, Key, Reply, Trouble};

/// How long an address has before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);
/// How long a full backlog of a unix socket is left alone.
const BACKLOG: Duration = Duration::from_millis(20);
/// The largest password file, in bytes.
const LONGEST_PASSWORD: u64 = 4096;

/// Makes connections to one address.
pub(super) struct Dialer {
    address: Address,
    password_file: Option<PathBuf>,
    cancel: Cancel,
    /// A look-up that is still under way; the next try goes on with it.
    lookup: Option<Lookup>,
    /// Which of a name's addresses comes first. It moves on when a connection fails.
    turn: usize,
    /// Whether the store has answered a request yet.
    answered: bool,
    /// What the server was told at the last login.
    password: Option<String>,
}

impl Dialer {
    pub(super) fn new(address: Address, password_file: Option<&Path>, cancel: Cancel) -> Self {
        let password_file = password_file.map(Into::into);
        Self { address, password_file, cancel, lookup: None, turn: 0, answered: false, password: None }
    }

    /// Notes that the store has answered: from now on what looks like a wrong setting may pass.
    pub(super) fn note_answer(&mut self) {
        self.answered = true;
    }

    /// Where a request happened, for its errors.
    pub(super) fn at<'a>(&'a self, key: Option<&'a Key>, wants: Wants) -> At<'a> {
        At { address: &self.address, key, wants, password: self.password.as_deref(), answered: self.answered }
    }

    /// Where it connects to.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Prefers another of the name's addresses from now on: this one did not answer, or is a replica.
    pub(super) fn turn(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// A new connection.
    pub(super) fn dial(&mut self, by: Boot) -> Reply<Wire> {
        self.password = self.password()?;
        let socket = match self.connected(by) {
            Ok(socket) => socket,
            Err(err) => return Err(self.unreachable(err)),
        };
        let mut wire = Wire::new(socket, self.cancel.clone(), by);
        if let Err(err) = greet(&mut wire, &self.login(), self.address.db) {
            self.turn();
            return Err(errors::fault(&err, &self.at(None, Wants::Greet)).trouble);
        }
        Ok(wire)
    }

    fn password(&self) -> Reply<Option<String>> {
        // A file that was right once is being written anew.
        let trouble = if self.answered { Trouble::Later } else { Trouble::Config };
        match (&self.address.password, &self.password_file) {
            (Some(password), _) => Ok(Some(password.clone())),
            (None, Some(path)) => read_password(path).map(Some).map_err(trouble),
            (None, None) => Ok(None),
        }
    }

    /// What AUTH is told; empty where there is nothing to tell.
    fn login(&self) -> Vec<&str> {
        match (self.address.user.as_deref(), self.password.as_deref()) {
            (None, password) => password.into_iter().collect(),
            // A user may have no password, and then any is right.
            (Some(user), password) => vec![user, password.unwrap_or_default()],
        }
    }

    fn connected(&mut self, by: Boot) -> io::Result<OwnedFd> {
        match &self.address.place {
            Place::Unix(path) => connect_unix(path, &self.cancel, by),
            Place::Tcp { host, port } => {
                let mut found = match host.parse::<IpAddr>() {
                    Ok(ip) => vec![SocketAddr::new(ip, *port)],
                    Err(_) => look_up(&mut self.lookup, host, *port, &self.cancel, by)?,
                };
                let first = self.turn % found.len().max(1);
                found.rotate_left(first);
                connect_tcp(&found, &self.cancel, by)
            }
        }
    }

    fn unreachable(&self, err: io::Error) -> Trouble {
        let name = &self.address;
        if err.kind() == io::ErrorKind::PermissionDenied && matches!(name.place, Place::Unix(_)) {
            return Trouble::Refused(format!(
                "{name} may not be opened by this user; join the group that owns the socket"
            ));
        }
        let errno = Errno::from_raw(err.raw_os_error().unwrap_or_default());
        if let Some(trouble) = Trouble::of_os(name, "cannot be reached", errno) {
            return trouble;
        }
        let err = RedisError::from(err);
        match Cut::of(&err) {
            Some(Cut::Cancelled) => Trouble::Interrupted,
            Some(_) => Trouble::Unknown(format!("{name} cannot be reached: no connection in time")),
            None => Trouble::Unknown(format!("{name} cannot be reached: {err}")),
        }
    }
}

/// Logs in and goes to the database, in one round trip; in none where there is nothing to say. Not together with the
/// first request: where the login is refused, the request would run as the default user.
fn greet(wire: &mut Wire, login: &[&str], db: u32) -> RedisResult<()> {
    let mut greeting = redis::pipe();
    if !login.is_empty() {
        greeting.cmd("AUTH").arg(login);
    }
    if db != 0 {
        greeting.cmd("SELECT").arg(db);
    }
    if !greeting.is_empty() {
        for answer in wire.exchange(&greeting.get_packed_pipeline(), greeting.len())? {
            answer.extract_error()?;
        }
    }
    Ok(())
}

/// The file's content without the newline at its end, or why not.
fn read_password(path: &Path) -> Result<String, String> {
    let told = |what: String| format!("the password file {} {what}", path.display());
    // Nothing that could block: the open of a pipe would wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = file.map_err(|err| told(format!("cannot be read: {err}")))?;
    let regular = file.metadata().is_ok_and(|about| about.is_file());
    if !regular {
        return Err(told("is not a regular file".into()));
    }
    let mut text = String::new();
    file.take(LONGEST_PASSWORD + 1).read_to_string(&mut text).map_err(|err| told(format!("cannot be read: {err}")))?;
    if text.len() as u64 > LONGEST_PASSWORD {
        return Err(told(format!("has more than {LONGEST_PASSWORD} bytes")));
    }
    let line = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    if line.is_empty() {
        let what = if text.is_empty() { "is empty" } else { "has an empty line and no password" };
        return Err(told(format!("{what}; write the password into it")));
    }
    Ok(line.to_owned())
}

/// A look-up on a thread of its own: the system's has no time limit.
struct Lookup {
    result: Receiver<io::Result<Vec<SocketAddr>>>,
    done: Cancel,
}

fn no_host(why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("the host's address was not found: {why}"))
}

fn look_up(
    under_way: &mut Option<Lookup>,
    host: &str,
    port: u16,
    cancel: &Cancel,
    by: Boot,
) -> io::Result<Vec<SocketAddr>> {
    let lookup = match under_way.take() {
        Some(lookup) => lookup,
        None => Lookup::begin(host.to_owned(), port)?,
    };
    let done = ready(&[(&lookup.done, PollFlags::POLLIN)], cancel, by);
    if !matches!(done, Ok(true)) {
        *under_way = Some(lookup);
        return Err(done.err().unwrap_or_else(|| no_host(&"no answer from the resolver in time")));
    }
    match lookup.result.try_recv() {
        Ok(Ok(found)) if found.is_empty() => Err(no_host(&"the name has none")),
        Ok(Ok(found)) => Ok(found),
        Ok(Err(err)) if err.raw_os_error().is_some() => Err(err),
        Ok(Err(err)) => Err(no_host(&err)),
        Err(_) => Err(no_host(&"the look-up failed")),
    }
}

impl Lookup {
    fn begin(host: String, port: u16) -> io::Result<Self> {
        let (sender, result) = channel();
        let done = Cancel::new()?;
        let fired = done.clone();
        std::thread::Builder::new().name("look-up".into()).spawn(move || {
            // Nobody may be there any more to hear of it.
            let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
            // A resolver that could open nothing says that there is no such name.
            let _ = sender.send(found.map_err(|error| File::open("/dev/null").err().unwrap_or(error)));
            fired.fire();
        })?;
        Ok(Self { result, done })
    }
}

fn connect_unix(path: &Path, cancel: &Cancel, by: Boot) -> io::Result<OwnedFd> {
    let address = UnixAddr::new(path)?;
    loop {
        match begin(AddressFamily::Unix, &address) {
            // Nothing tells when a full backlog has room again.
            Err(Errno::EAGAIN) if !by.left().is_zero() => sleep(cancel, by.min(Boot::now() + BACKLOG))?,
            Err(Errno::EAGAIN) => return Err(Cut::Late.into()),
            Err(errno) => return Err(errno.into()),
            Ok(socket) => return Ok(socket),
        }
    }
}

/// The first connection that comes about. Each address has a head start on the next one, so that a silent one costs
/// only that.
fn connect_tcp(addresses: &[SocketAddr], cancel: &Cancel, by: Boot) -> io::Result<OwnedFd> {
    let head_start = HEAD_START.min(by.left() / u32::try_from(addresses.len() + 1).unwrap_or(u32::MAX));
    let mut waiting = addresses.iter();
    let mut begun: Vec<OwnedFd> = Vec::new();
    let mut last = Errno::EADDRNOTAVAIL;
    loop {
        let next = if let Some(address) = waiting.next() {
            match begin(family(address), &SockaddrStorage::from(*address)) {
                Ok(socket) => begun.push(socket),
                Err(errno) => last = errno,
            }
            by.min(Boot::now() + head_start)
        } else {
            by
        };
        while !begun.is_empty() {
            let polled: Vec<_> = begun.iter().map(|one| (one as &dyn std::os::fd::AsFd, PollFlags::POLLOUT)).collect();
            if !ready(&polled, cancel, next)? {
                break;
            }
            let mut pending = Vec::new();
            for socket in begun {
                match state(&socket) {
                    Ok(true) => return Ok(socket),
                    Ok(false) => pending.push(socket),
                    Err(errno) => last = errno,
                }
            }
            begun = pending;
        }
        if begun.is_empty() && waiting.len() == 0 {
            return Err(last.into());
        }
        if by.left().is_zero() {
            return Err(Cut::Late.into());
        }
    }
}

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn begin(family: AddressFamily, address: &dyn SockaddrLike) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Stream, flags, None)?;
    if family != AddressFamily::Unix {
        setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
    }
    match connect(fd.as_raw_fd(), address) {
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// Whether a TCP socket has been connected, is still at it, or has failed.
fn state(socket: &OwnedFd) -> nix::Result<bool> {
    match getsockopt(socket, sockopt::SocketError)? {
        0 => {}
        errno => return Err(Errno::from_raw(errno)),
    }
    match getpeername::<SockaddrStorage>(socket.as_raw_fd()) {
        // A port of this host that nobody listens at can be connected to itself.
        Ok(peer) if getsockname(socket.as_raw_fd()) == Ok(peer) => Err(Errno::ECONNREFUSED),
        Ok(_) => Ok(true),
        Err(Errno::ENOTCONN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    use nix::sys::socket::{Backlog, bind, listen};

    fn soon() -> Boot {
        Boot::now() + Duration::from_secs(2)
    }

    fn cancel() -> Cancel {
        Cancel::new().unwrap()
    }

    /// An address that lets no connection come about: its backlog is full. And what keeps it so.
    fn silent() -> (SocketAddr, Vec<OwnedFd>) {
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
        listen(&fd, Backlog::new(0).unwrap()).unwrap();
        let own: SockaddrStorage = getsockname(fd.as_raw_fd()).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], own.as_sockaddr_in().unwrap().port()));
        let mut kept = vec![fd];
        for _ in 0..4 {
            kept.push(begin(AddressFamily::Inet, &own).unwrap());
        }
        (address, kept)
    }

    #[test]
    fn a_silent_address_does_not_eat_the_time_of_the_next() {
        let (silent, _kept) = silent();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let alive = listener.local_addr().unwrap();
        let by = soon();
        let fd = connect_tcp(&[silent, silent, alive], &cancel(), by).unwrap();
        assert!(by.left() > Duration::from_millis(500));
        assert_eq!(getpeername::<SockaddrStorage>(fd.as_raw_fd()).unwrap(), SockaddrStorage::from(alive));
        assert!(FdFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFD).unwrap()).contains(FdFlag::FD_CLOEXEC));
        assert!(getsockopt(&fd, sockopt::TcpNoDelay).unwrap());
        // With nobody else the time is used up, and no more than that.
        let by = Boot::now() + Duration::from_millis(200);
        let err = RedisError::from(connect_tcp(&[silent], &cancel(), by).unwrap_err());
        assert_eq!(Cut::of(&err), Some(Cut::Late));
        assert!(by.left().is_zero() && Boot::now().since(by) < Duration::from_secs(1));
    }

    #[test]
    fn a_refused_address_leads_to_the_next_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let alive = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(connect_tcp(&[closed, alive], &cancel(), soon()).is_ok());
        let by = soon();
        assert_eq!(connect_tcp(&[closed, closed], &cancel(), by).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(by.left() > Duration::from_secs(1));
        assert!(connect_tcp(&[], &cancel(), by).is_err());
    }

    #[test]
    fn a_unix_socket_whose_backlog_is_full_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _first = connect_unix(&path, &cancel(), soon()).unwrap();
        let by = Boot::now() + Duration::from_millis(100);
        let err = RedisError::from(connect_unix(&path, &cancel(), by).unwrap_err());
        assert_eq!(Cut::of(&err), Some(Cut::Late));
        let fired = cancel();
        fired.fire();
        let err = RedisError::from(connect_unix(&path, &fired, soon()).unwrap_err());
        assert_eq!(Cut::of(&err), Some(Cut::Cancelled));
        let accepting = std::thread::spawn(move || (listener.accept().unwrap(), listener));
        assert!(connect_unix(&path, &cancel(), soon()).is_ok());
        accepting.join().unwrap();
    }

    #[test]
    fn a_look_up_goes_on_where_the_last_try_left_it() {
        let (sender, result) = channel();
        let done = cancel();
        let mut under_way = Some(Lookup { result, done: done.clone() });
        let by = Boot::now() + Duration::from_millis(50);
        assert!(look_up(&mut under_way, "host", 1, &cancel(), by).is_err());
        assert!(by.left().is_zero() && under_way.is_some());
        let fired = cancel();
        fired.fire();
        let err = RedisError::from(look_up(&mut under_way, "host", 1, &fired, soon()).unwrap_err());
        assert!(Cut::of(&err) == Some(Cut::Cancelled) && under_way.is_some());
        let found = vec![SocketAddr::from(([127, 0, 0, 1], 1))];
        sender.send(Ok(found.clone())).unwrap();
        done.fire();
        assert_eq!(look_up(&mut under_way, "host", 1, &cancel(), soon()).unwrap(), found);
        assert!(under_way.is_none());
        assert!(!look_up(&mut None, "localhost", 1, &cancel(), soon()).unwrap().is_empty());
    }
}
