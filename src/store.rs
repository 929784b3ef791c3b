//! The port: what rlock asks of a store, and what a store can answer. It names no store but in [`open`].
//!
//! An `Err` never means *no*: "held by another" and "gone" are answers. [`Trouble::Unknown`] means *not known*: the
//! operation may or may not have been done. Every operation may be repeated with the same claim id.

mod glob;
mod local;
pub mod redis;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Entry, Renew, Renewal};
use crate::clock::Boot;
use crate::timing;

/// What is locked: 1 to 512 bytes of UTF-8 without control characters and without `:rlock1:`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// The greatest length of a key, in bytes.
pub const LONGEST_KEY: usize = 512;
/// The greatest length of a claim's record, in bytes.
pub const LONGEST_RECORD: usize = 1024;

impl Key {
    /// The key that `text` names, or why it cannot be one: the rest of the sentence "the key …".
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty; it must have 1 to 512 bytes".into());
        }
        if text.len() > LONGEST_KEY {
            return Err(format!("has {} bytes; at most {LONGEST_KEY} are allowed", text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err("has a control character; only printable text is allowed".into());
        }
        if text.contains(":rlock1:") {
            return Err("contains `:rlock1:`, which rlock keeps for its own keys".into());
        }
        if text.contains(['{', '}']) && hash_tag(text).is_none() {
            return Err("has a brace but no usable Redis hash tag; write `{tag}` with something between the first \
                        braces, or no brace at all"
                .into());
        }
        Ok(Self(text.to_owned()))
    }

    /// The key as it was typed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key's Redis hash tag, which alone decides its slot.
    pub fn hash_tag(&self) -> Option<&str> {
        hash_tag(&self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What stands between the first `{` and the next `}` after it, as Redis Cluster reads it, if that is not empty.
fn hash_tag(text: &str) -> Option<&str> {
    let open = text.find('{')?;
    let rest = &text[open + 1..];
    let close = rest.find('}')?;
    // A brace before the tag would end or begin a tag in a side key that appends one.
    (close > 0 && !text[..open].contains('}')).then(|| &rest[..close])
}

/// What a store can do. A request that goes beyond it is refused (78) with the store's reason.
#[derive(Clone, Debug)]
pub struct Can {
    /// The least lease it keeps.
    pub least_ttl: Duration,
    /// The greatest lease it keeps.
    pub greatest_ttl: Duration,
    /// Which limits it keeps.
    pub limits: Limits,
    /// Whether waiters are served in the order in which they came.
    pub ordered: bool,
    /// Whether a claim can be condemned.
    pub condemn: bool,
    /// How far it reaches, for people: "this host", "every host that uses the server".
    pub reach: &'static str,
}

/// The limits that a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    /// One holder only.
    Exclusive,
    /// One holder, or any number.
    ExclusiveAndShared,
    /// Every limit.
    Any,
}

/// Ends a store's request, or its wait, from another thread: what it does at that moment answers
/// [`Trouble::Interrupted`], and so does everything it begins until the cancel is cleared.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<EventFd>);

impl Cancel {
    /// A cancel that has not fired.
    pub fn new() -> io::Result<Self> {
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Fires. Never blocks.
    pub fn fire(&self) {
        // It fails only where the counter is full, and then it has fired already.
        let _ = self.0.write(1);
    }

    /// Whether it has fired.
    pub fn is_fired(&self) -> bool {
        matches!(poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO), Ok(1..))
    }

    /// Makes the store usable again.
    pub fn clear(&self) {
        // It fails only where it had not fired.
        let _ = self.0.read();
    }
}

impl AsFd for Cancel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No answer in time, or the connection failed: not known whether it was done. Asking again is safe.
    Unknown(String),
    /// The store answered that it cannot do this just now; nothing was done. Asking again may help.
    Later(String),
    /// This host has no more of what it takes (descriptors, memory, threads); nothing was done. Asking again may help.
    Os(String),
    /// It was done, but fewer replicas have it in time than [`Store::need_replicas`] asks for.
    TooFew(String),
    /// The login or a right is missing; the text says what to add.
    Refused(String),
    /// This is not a store that can do what was asked.
    Config(String),
    /// The [`Cancel`] fired before there was an answer.
    Interrupted,
}

impl Trouble {
    /// This host's refusal to do `what` for the store called `name`, if `errno` is one that says so.
    fn of_os(name: &impl fmt::Display, what: &str, errno: Errno) -> Option<Self> {
        let limits = match errno {
            Errno::EMFILE | Errno::ENFILE => "ulimit -n",
            Errno::EAGAIN | Errno::ENOMEM => "ulimit -u and -v",
            _ => return None,
        };
        Some(Self::Os(format!("{name}: {what}: {} (see {limits})", io::Error::from(errno))))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(text)
            | Self::Later(text)
            | Self::Os(text)
            | Self::TooFew(text)
            | Self::Refused(text)
            | Self::Config(text) => f.write_str(text),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// The answer of a store, or why there is none.
pub type Reply<T> = Result<T, Trouble>;

/// What a look finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Those who hold; a lease that ran out is left out.
    pub holders: Vec<Entry>,
    /// Those who wait, oldest first; those whose heartbeat ran out are left out.
    pub queue: Vec<Entry>,
    /// Those of them that are condemned.
    pub condemned: Vec<ClaimId>,
    /// The last number given, 0 if none is known.
    pub number: u64,
    /// What holds the key, if that is not rlock's.
    pub foreign: Option<Foreign>,
    /// The store's clock, in milliseconds since 1970.
    pub now_ms: u64,
}

impl Look {
    /// Whether nobody holds the key.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.foreign.is_none()
    }
}

/// Something that holds the key and is not rlock's, or a newer rlock's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// What it is, in the store's words: `string`, `hash`, `list`, …
    pub kind: String,
    /// What it is, in words for people: "a string of another program", "a newer rlock's lock".
    pub what: String,
    /// Its value as far as it is shown, unescaped; empty where it was not read.
    pub value: Vec<u8>,
    /// What is left of it; none where it has no end.
    pub left: Option<Duration>,
    /// The store's own mark of what was shown, compared before it is removed; empty where it cannot be removed.
    pub seen: Vec<u8>,
}

/// One key of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Key,
    /// What is known of it.
    pub look: Look,
}

/// What a search tells on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Find {
    /// A key that somebody holds or waits for.
    Key(Box<Listed>),
    /// So many of the store's keys were looked through, about, and so many there are, if that is known.
    Searched(u64, Option<u64>),
}

/// A store of claims. Requests end at `by`, an instant of the local clock, with or without an answer; a
/// [`Trouble::Interrupted`] ends them sooner. Not shared between threads: each has a store of its own.
pub trait Store: Send {
    /// What it can do.
    fn can(&self) -> Can;

    /// Announces a claim before its process forks its keeper and asks for the key. A store that hears from the kernel
    /// when a claim's processes are dead returns the descriptor by which it does; whoever acts for the claim keeps a
    /// copy of it, and the claim ends with the last of them. Where that cannot be had, the lease alone counts.
    fn enrol(&mut self, _id: ClaimId) -> Option<BorrowedFd<'_>> {
        None
    }

    /// From now on a grant and a renewal count only when so many replicas have them; else they answer
    /// [`Trouble::TooFew`]. A store without replicas cannot do it.
    fn need_replicas(&mut self, _count: u32) -> Reply<()> {
        Err(Trouble::Config(format!("{}: a store without replicas; leave --wait-replicas out", self.name())))
    }

    /// Its name for messages and reports, without secrets.
    fn name(&self) -> String;

    /// Asks for the key. See [`crate::claim::Step::ask`].
    fn ask(&mut self, key: &Key, ask: &Ask, by: Boot) -> Reply<Answer>;

    /// Extends a lease. See [`crate::claim::Step::renew`].
    fn renew(&mut self, key: &Key, renew: &Renew, by: Boot) -> Reply<Renewal>;

    /// Releases, leaves the queue, removes. See [`crate::claim::Step::drop_claim`]. Where it gets no answer, it is also
    /// sent after every earlier request that got none, on the same connection, so that it comes later than they do.
    fn drop_claim(&mut self, key: &Key, id: ClaimId, ttl: Duration, by: Boot) -> Reply<Dropped>;

    /// A holder's last word. See [`crate::claim::Step::finish`].
    fn finish(&mut self, key: &Key, id: ClaimId, left: Duration, ttl: Duration, by: Boot) -> Reply<Renewal>;

    /// Marks a claim. See [`crate::claim::Step::condemn`].
    fn condemn(&mut self, key: &Key, id: ClaimId, ttl: Duration, by: Boot) -> Reply<Condemnation>;

    /// Plain reads; changes nothing and needs no right to write.
    fn look(&mut self, key: &Key, by: Boot) -> Reply<Look>;

    /// Calls `each` with every key that `pattern` (a glob; none for all) matches and that somebody holds or waits
    /// for, in no order, and with how far the search is, until it returns false. A step that takes longer than `step`
    /// without an answer ends it.
    fn search(&mut self, pattern: Option<&str>, step: Duration, each: &mut dyn FnMut(Find) -> bool) -> Reply<()>;

    /// A search for the keys alone.
    fn list(&mut self, pattern: Option<&str>, step: Duration, each: &mut dyn FnMut(Listed) -> bool) -> Reply<()> {
        self.search(pattern, step, &mut |find| match find {
            Find::Key(listed) => each(*listed),
            Find::Searched(..) => true,
        })
    }

    /// Removes what is not rlock's, only if it is still what was shown. False where it has changed.
    fn remove_foreign(&mut self, key: &Key, shown: &Foreign, by: Boot) -> Reply<bool>;

    /// Blocks until something may have changed for this claim (true) or until `until` (false). A hint, nothing more.
    /// Trouble ends it sooner, and then nobody listened: whatever was to be heard may have been missed.
    fn wait(&mut self, key: &Key, id: ClaimId, until: Boot) -> Reply<bool>;

    /// How long the waiter at this place of the queue rests at most before it asks again; `lapse` is the time to the next
    /// end of a holder's lease.
    fn rest(&self, position: usize, lapse: Option<Duration>) -> Duration {
        timing::rest(position, lapse)
    }

    /// The store's clock now, in milliseconds since 1970, as its last answer tells: to show to people.
    fn clock_ms(&self) -> u64;

    /// The clock of the store's server at its last answer, in milliseconds since 1970, and when that came; none where
    /// there is no clock but this host's.
    fn server_clock(&self) -> Option<(u64, Boot)> {
        None
    }

    /// The last measured time from a request to its answer.
    fn round_trip(&self) -> Option<Duration>;

    /// Whether the next request goes over a connection that has answered before.
    fn is_connected(&self) -> bool;

    /// Closes the connection, if there is one: the next request begins on a new one.
    fn disconnect(&mut self);
}

/// Where a store is, as the user wrote it. Its `Debug` form has no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url(Place);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Local(local::Address),
    Redis(redis::Address),
}

/// Schemes that are known and not there yet.
const LATER: [&str; 7] = ["rediss", "valkeys", "redis+sentinel", "redis+cluster", "etcd", "zk", "consul"];

/// What can be written instead.
const FORMS: &str = "write local:, redis://host:6379 or unix:///path";

impl Url {
    /// The local store in this user's own directory.
    pub fn local() -> Self {
        Self(Place::Local(local::Address::own()))
    }

    /// The place that `text` names, or why it names none: the rest of the sentence "the URL …". It repeats no part of
    /// the text that could be a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once(':').unwrap_or(("", text));
        let place = match (scheme, rest.strip_prefix("//")) {
            ("local", None) if text.contains(':') => local::Address::parse(rest).map(Place::Local),
            ("redis" | "valkey", Some(rest)) => redis::Address::parse_tcp(rest).map(Place::Redis),
            ("unix" | "redis+unix" | "valkey+unix", Some(rest)) => redis::Address::parse_unix(rest).map(Place::Redis),
            ("local", Some(_)) => {
                Err("names a host, which the local store has not; write local: or local:/path".into())
            }
            (scheme, _) if LATER.contains(&scheme) => {
                Err(format!("has the scheme `{scheme}`, which is not there yet; {FORMS}"))
            }
            _ => Err(format!("begins with no scheme that is known; {FORMS}")),
        };
        place.map(Self)
    }

    /// Whether it is a directory of this host.
    pub fn is_local(&self) -> bool {
        matches!(self.0, Place::Local(_))
    }

    /// Whether it names a place at all: a user without a home has no directory of their own, and the first request says
    /// so.
    pub fn is_somewhere(&self) -> bool {
        match &self.0 {
            Place::Local(address) => address.is_known(),
            Place::Redis(_) => true,
        }
    }

    /// Whether it has a password in it.
    pub fn has_password(&self) -> bool {
        match &self.0 {
            Place::Local(_) => false,
            Place::Redis(address) => address.has_password(),
        }
    }

    /// The place for messages, without user and password.
    pub fn name(&self) -> String {
        match &self.0 {
            Place::Local(address) => address.to_string(),
            Place::Redis(address) => address.to_string(),
        }
    }
}

/// The text with `%41` written out; none where that is not UTF-8 or has a NUL.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let pair = after.get(..2).filter(|pair| pair.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// The store at `url`, which connects at its first request; the only list of stores. The password is read from
/// `password_file` at each connection, where the URL has none. `cancel` ends its requests and waits.
pub fn open(url: &Url, password_file: Option<&Path>, cancel: &Cancel) -> Box<dyn Store> {
    match &url.0 {
        Place::Local(address) => Box::new(local::Local::new(address.clone(), cancel.clone())),
        Place::Redis(address) => Box::new(redis::Redis::new(address.clone(), password_file, cancel.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        for good in ["a", "job:backup", "mit leer zeichen", "it's \"quoted\"", "schlüssel", "{tags}", "a{b}c", "a{b}{"]
        {
            assert!(Key::parse(good).is_ok(), "{good}");
        }
        assert!(Key::parse(&"x".repeat(512)).is_ok());
        for bad in ["", "a\nb", "a\u{7f}", "a\u{85}b", "x:rlock1:y", "a}b", "{}a", "a{b", "a{}b", "}{a}"] {
            assert!(Key::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Key::parse(&"x".repeat(513)).unwrap_err().contains("513"));
    }

    #[test]
    fn the_local_store_has_a_directory_and_no_host() {
        let url = Url::parse("local:/x").expect("a URL");
        assert_eq!((url.name().as_str(), url.is_local(), url.has_password()), ("local:/x", true, false));
        assert!(
            Url::parse("local:").expect("a URL") == Url::local() && !Url::parse("redis://a").expect("one").is_local()
        );
        for bad in ["local://host/x", "local:///x", "local:x", "local:/x?db=1"] {
            assert!(Url::parse(bad).unwrap_err().contains("local:/"), "{bad}");
        }
    }

    #[test]
    fn urls_are_told_apart() {
        for (good, name) in [
            ("redis://db1", "redis://db1:6379"),
            ("valkey://bob:hunter2@db1:7/2", "redis://db1:7/2"),
            ("unix:///run/r.sock?db=3", "unix:///run/r.sock?db=3"),
            ("redis+unix:///r", "unix:///r"),
            ("valkey+unix:///r", "unix:///r"),
        ] {
            let url = Url::parse(good).expect(good);
            assert_eq!(url.name(), name);
            assert_eq!(url.has_password(), good.contains("hunter2"));
            assert!(!format!("{url:?}").contains("hunter2"));
        }
        for later in ["rediss://db1", "redis+sentinel://a,b/x", "etcd://a", "zk://a", "consul://a"] {
            let told = Url::parse(later).unwrap_err();
            assert!(told.contains("not there yet") && told.contains(later.split(':').next().unwrap()), "{told}");
        }
        for bad in
            ["", "db1:6379", "local", "redis:", "redis:/db1", "http://db1", "hunter2", "hunter2:x@db1", "hunter2://"]
        {
            let told = Url::parse(bad).unwrap_err();
            assert!(told.contains("redis://host") && !told.contains("hunter2"), "{told}");
        }
    }
}
