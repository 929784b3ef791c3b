//! Where a server is and who we are to it, as a URL says it. No message repeats a password, nor any part of the URL
//! that could be one whose special characters were not encoded.

use std::fmt;
use std::path::PathBuf;

use crate::store::decode;

/// A server, a database and a login.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// Where to connect.
    pub(super) place: Place,
    /// The database; 0 is where a connection begins.
    pub(super) db: u32,
    /// The user, where one is named.
    pub(super) user: Option<String>,
    /// The password, where the URL has one.
    pub(super) password: Option<String>,
}

/// Where to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A name or an address, and a port.
    Tcp { host: String, port: u16 },
    /// A socket's path.
    Unix(PathBuf),
}

const PORT: u16 = 6379;
const ENCODE: &str = "special characters in a user or a password must be percent-encoded, `@` as %40, `/` as %2F";

impl Address {
    /// The address that `rest`, the URL after `redis://`, names; or the rest of a sentence "the URL …".
    pub(crate) fn parse_tcp(rest: &str) -> Result<Self, String> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        if tail.contains('@') {
            return Err(format!("has an `@` after the host; {ENCODE}"));
        }
        if tail.contains('#') {
            return Err("has a `#`, which means nothing here".into());
        }
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let (login, place) =
            authority.rsplit_once('@').map_or((None, authority), |(login, place)| (Some(login), place));
        let (user, password) = login.map_or(Ok((None, None)), parse_login)?;
        let (host, port) = parse_host(place)?;
        match pairs(query).next() {
            Some(("db", _)) => return Err("has `?db=`; after a host the database is written `/3`".into()),
            Some((name, _)) => return Err(unknown(name)),
            None => {}
        }
        let db = path.strip_prefix('/').unwrap_or(path);
        Ok(Self { place: Place::Tcp { host, port }, db: parse_db(db)?, user, password })
    }

    /// The address that `rest`, the URL after `unix://`, names; or the rest of a sentence "the URL …".
    pub(crate) fn parse_unix(rest: &str) -> Result<Self, String> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !path.starts_with('/') || path.len() < 2 {
            return Err("has no absolute path of a socket; write unix:///run/redis/redis.sock".into());
        }
        if rest.contains('#') {
            return Err("has a `#`, which means nothing here; in a path or a password it is written %23".into());
        }
        let path = decode(path).ok_or("has a path with a bad percent-encoding")?;
        let mut address = Self { place: Place::Unix(path.into()), db: 0, user: None, password: None };
        for (name, value) in pairs(query) {
            match name {
                "db" => address.db = parse_db(value)?,
                "user" => address.user = some(decode(value).ok_or_else(bad_login)?),
                "pass" => address.password = some(decode(value).ok_or_else(bad_login)?),
                _ => return Err(unknown(name)),
            }
        }
        Ok(address)
    }

    /// Whether the URL has a password in it.
    pub(crate) fn has_password(&self) -> bool {
        self.password.is_some()
    }
}

/// The address as messages name it: no user, no password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp { host, port } if host.contains(':') => write!(f, "redis://[{host}]:{port}")?,
            Place::Tcp { host, port } => write!(f, "redis://{host}:{port}")?,
            Place::Unix(path) => write!(f, "unix://{}", path.display())?,
        }
        match (&self.place, self.db) {
            (_, 0) => Ok(()),
            (Place::Tcp { .. }, db) => write!(f, "/{db}"),
            (Place::Unix(_), db) => write!(f, "?db={db}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn parse_login(text: &str) -> Result<(Option<String>, Option<String>), String> {
    let (user, password) = text.split_once(':').map_or((text, None), |(user, password)| (user, Some(password)));
    let user = decode(user).ok_or_else(bad_login)?;
    let password = password.map(|text| decode(text).ok_or_else(bad_login)).transpose()?;
    Ok((some(user), password.and_then(some)))
}

fn parse_host(text: &str) -> Result<(String, u16), String> {
    if text.contains(',') {
        return Err("names several hosts; clusters and sentinels are not there yet".into());
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("has a `[` without its `]`")?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':').unwrap_or("")) })
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("has several `:` in its host; an IPv6 address is written in brackets, [::1]".into());
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    let host = decode(host).filter(|host| host.chars().all(plain)).ok_or("has a host that cannot be one")?;
    if host.is_empty() {
        return Err("has no host; write redis://host:6379".into());
    }
    let number = port.map_or(Some(PORT), |port| digits(port).and_then(|port| port.try_into().ok()));
    let port = number.filter(|port| *port != 0);
    // The text is not repeated: `user:password` without its `@host` would stand here.
    let port = port.ok_or("has a port that is not a number from 1 to 65535 (after a password comes `@host`)")?;
    Ok((host, port))
}

fn parse_db(text: &str) -> Result<u32, String> {
    if text.is_empty() {
        return Ok(0);
    }
    digits(text).ok_or_else(|| "has a database that is not a number".into())
}

fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Names a query key only where it looks like one.
fn unknown(name: &str) -> String {
    let plain = !name.is_empty() && name.len() <= 20 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    if plain {
        format!("has `?{name}=`, which is not known")
    } else {
        format!("has a `?` that asks for nothing known; {ENCODE}")
    }
}

fn bad_login() -> String {
    format!("has a login that cannot be read; {ENCODE}")
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, db: u32, user: Option<&str>, password: Option<&str>) -> Address {
        let place = Place::Tcp { host: host.into(), port };
        Address { place, db, user: user.map(Into::into), password: password.map(Into::into) }
    }

    #[test]
    fn hosts_ports_logins_and_databases() {
        for (text, wanted) in [
            ("db1", tcp("db1", 6379, 0, None, None)),
            ("db1/", tcp("db1", 6379, 0, None, None)),
            ("db1:6380/3", tcp("db1", 6380, 3, None, None)),
            (":pw@db1", tcp("db1", 6379, 0, None, Some("pw"))),
            ("bob@db1", tcp("db1", 6379, 0, Some("bob"), None)),
            ("bob:@db1", tcp("db1", 6379, 0, Some("bob"), None)),
            ("b%40b:p%3Aw%2f@db1", tcp("db1", 6379, 0, Some("b@b"), Some("p:w/"))),
            ("bob:a:b@db1", tcp("db1", 6379, 0, Some("bob"), Some("a:b"))),
            ("bob:a@b@db1", tcp("db1", 6379, 0, Some("bob"), Some("a@b"))),
            ("[::1]", tcp("::1", 6379, 0, None, None)),
            ("[fe80::1%25eth0]:7/1", tcp("fe80::1%eth0", 7, 1, None, None)),
        ] {
            assert_eq!(Address::parse_tcp(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn a_bad_url_is_told_without_its_secret() {
        for text in [
            "",
            ":6379",
            "db1:0",
            "db1:65536",
            "db1:+1",
            "db1:",
            "[::1",
            "[::1]x",
            "::1",
            "a,b",
            "db1/x",
            "db1/-1",
            "db1/1/2",
            "db1?db=3",
            "db1?protocol=resp3",
            "db1#x",
            "d b",
            "db%zz",
            "%ff@db1",
            "a%00@db1",
            "user:hunter2",
            ":hun/ter2@db1",
            ":hun?ter2@db1",
            ":hun#ter2@db1",
            "u:hunter2%zz@db1",
            "hunter2:hunter2:hunter2",
        ] {
            let told = Address::parse_tcp(text).expect_err(text);
            assert!(!told.contains("hun") && !told.contains("ter2"), "{text}: {told}");
        }
        assert!(Address::parse_tcp("db1?protocol=resp3").unwrap_err().contains("protocol"));
        assert!(Address::parse_tcp("db1?db=3").unwrap_err().contains("/3"));
    }

    #[test]
    fn sockets() {
        let read = Address::parse_unix("/run/a%20b.sock?db=2&user=bob&pass=p%26w").unwrap();
        assert_eq!(read.place, Place::Unix("/run/a b.sock".into()));
        assert_eq!((read.db, read.user.as_deref(), read.password.as_deref()), (2, Some("bob"), Some("p&w")));
        assert_eq!(read.to_string(), "unix:///run/a b.sock?db=2");
        for text in ["", "/", "run/x", "host/run/x", "/x?db=x", "/x?timeout=3", "/x#y", "/x?pass=hunter2%z"] {
            let told = Address::parse_unix(text).expect_err(text);
            assert!(!told.contains("hunter2"), "{told}");
        }
    }

    #[test]
    fn a_name_has_no_login() {
        let read = Address::parse_tcp("bob:hunter2@[::1]:7/3").unwrap();
        assert_eq!(read.to_string(), "redis://[::1]:7/3");
        assert_eq!(format!("{read:?}"), "redis://[::1]:7/3");
        assert!(read.has_password());
    }
}
