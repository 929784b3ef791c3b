//! What holds a key and is not rlock's: telling whose it probably is, and removing just that.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value, cmd};

use super::look::{items, send};
use super::script::{LONGEST_VALUE, side_key, text};
use super::wire::Wire;
use crate::store::{Foreign, Key};

/// Removes what was shown, if it is still that. KEYS: the key, its queue; ARGV: the type, then the value or, of a hash,
/// fields and values. Its first command is a write for the reason of `claim.lua`: a replica must say READONLY.
pub(super) const REMOVE: &str = "
redis.call('PEXPIRE', KEYS[2], 10000)
if redis.call('TYPE', KEYS[1]).ok ~= ARGV[1] then
  return 0
end
if ARGV[1] == 'string' then
  if redis.call('STRLEN', KEYS[1]) ~= #ARGV[2] or redis.call('GET', KEYS[1]) ~= ARGV[2] then
    return 0
  end
else
  if redis.call('HLEN', KEYS[1]) * 2 ~= #ARGV - 1 then
    return 0
  end
  for i = 2, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then
      return 0
    end
  end
end
return redis.call('DEL', KEYS[1])
";

/// The request that removes what is marked in `seen`; none where that cannot be removed.
pub(super) fn removal(key: &Key, seen: &[u8]) -> Option<Cmd> {
    let parts = unpack(seen)?;
    let mut command = cmd("EVAL");
    command.arg(REMOVE).arg(2).arg(key.as_str()).arg(side_key(key, "queue")).arg(parts);
    Some(command)
}

/// A string of `length` bytes. `value` is all of it, unless it is too long to be shown.
pub(super) fn string(value: &[u8], length: usize, what: &str, left: Option<Duration>) -> Foreign {
    let mut found = Foreign { kind: "string".into(), what: what.into(), value: Vec::new(), left, seen: Vec::new() };
    if length > LONGEST_VALUE {
        found.what = format!("a string of another program's, {length} bytes long");
        return found;
    }
    if what.is_empty() {
        found.what = std::str::from_utf8(value).map_or_else(|_| of_bytes(value), of_text).into();
    }
    found.value = value.into();
    found.seen = pack([b"string", value]);
    found
}

/// Looks at what is not a string. Every read is of something small: the server packs only small values tightly, and
/// only those are fetched. A refused read leaves less to tell.
pub(super) fn describe(wire: &mut Wire, key: &Key, found: &mut Foreign) -> RedisResult<()> {
    let length = match found.kind.as_str() {
        "hash" => "HLEN",
        "list" => "LLEN",
        "set" => "SCARD",
        "zset" => "ZCARD",
        "stream" => "XLEN",
        kind => {
            found.what = format!("a value of the type {kind}");
            return Ok(());
        }
    };
    let asks = [cmd(length).arg(key.as_str()).clone(), cmd("OBJECT").arg("ENCODING").arg(key.as_str()).clone()];
    let answers = send(wire, &asks)?;
    let count = |one: &str, more: &str| match answers.first() {
        Some(Value::Int(1)) => format!("1 {one}"),
        Some(Value::Int(count)) => format!("{count} {more}"),
        _ => format!("some {more}"),
    };
    let is_small = answers.get(1).and_then(text).is_some_and(|how| matches!(&*how, "listpack" | "ziplist"));
    let read = match found.kind.as_str() {
        "hash" if is_small => Some(cmd("HGETALL").arg(key.as_str()).clone()),
        "zset" if is_small => Some(cmd("ZRANGE").arg(key.as_str()).arg(0).arg(9).clone()),
        _ => None,
    };
    let content = send(wire, read.as_slice())?;
    let parts: Vec<&[u8]> = content.iter().flat_map(items).filter_map(bytes).collect();
    found.what = match found.kind.as_str() {
        "hash" => {
            let fields = || format!("a hash of another program's with {}", count("field", "fields"));
            hash(key, &parts, found).unwrap_or_else(fields)
        }
        "zset" => {
            let members = || format!("a sorted set of another program's with {}", count("member", "members"));
            sorted_set(key, &parts).unwrap_or_else(members)
        }
        "list" => format!("a list of another program's with {}", count("element", "elements")),
        "set" => format!("a set of another program's with {}", count("member", "members")),
        _ => format!("a stream with {}", count("entry", "entries")),
    };
    Ok(())
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn of_bytes(value: &[u8]) -> &'static str {
    if value.len() == 20 { "probably a lock of rslock's" } else { "a string of another program's" }
}

/// Whose lock a text probably is. The forms are those that the libraries write.
fn of_text(value: &str) -> &'static str {
    let is = |kind: fn(&u8) -> bool| !value.is_empty() && value.bytes().all(|byte| kind(&byte));
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
    if value.starts_with("ADDED:") && value.contains('@') {
        "probably a lock of ShedLock's"
    } else if is_hex(value) && value[12..13] == *"1" {
        "probably a lock of redis-py's"
    } else if is_hex(value) {
        "probably a lock of node-redlock's, or another's that writes 32 hexadecimal digits"
    } else if is_uuid(value) {
        "probably a lock of Spring's, RedLock.net's or redlock-rb's"
    } else if value.rsplit('_').next().is_some_and(is_hex) || value.ends_with("_WRITERWAITING") {
        "probably a lock of DistributedLock's"
    } else if value.len() == 24 && value.ends_with("==") && is(base64) {
        "probably a lock of redsync's"
    } else if value.len() == 24 && is(base64) {
        "probably a lock of python-redis-lock's"
    } else if value.parse().is_ok_and(|number: f64| number > 1e9) && is(|b| b.is_ascii_digit() || *b == b'.') {
        "probably a lock that is the time of its end (redis-mutex, cronlock)"
    } else if value.parse::<i64>().is_ok() {
        "a number: a semaphore or a counter of another program's"
    } else if value.len() == 16 && is(u8::is_ascii_alphanumeric) {
        "probably a lock of Laravel's"
    } else if value.len() >= 22 && value.bytes().take(22).all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    {
        "probably a lock of bsm/redislock's"
    } else {
        "a string of another program's"
    }
}

/// Whose lock a hash probably is. What it holds becomes the value shown and, where it is not too much, the mark by
/// which it is removed.
fn hash(key: &Key, parts: &[&[u8]], found: &mut Foreign) -> Option<String> {
    let mut pairs: Vec<_> = parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.sort_unstable();
    let (first, _) = pairs.first()?;
    let mut shown = Vec::new();
    for (field, value) in &pairs {
        shown.extend([*field, b"=", *value, b" "].concat());
    }
    if shown.len() <= LONGEST_VALUE {
        shown.pop();
        found.value = shown;
        let content = pairs.iter().flat_map(|(field, value)| [*field, *value]);
        found.seen = pack(std::iter::once(&b"hash"[..]).chain(content));
    }
    let fields: Vec<_> = pairs.iter().filter_map(|(field, _)| std::str::from_utf8(field).ok()).collect();
    let client = |field: &&str| field.split_once(':').is_some_and(|(client, _)| is_uuid(client));
    let mode = pairs.iter().find(|(field, _)| *field == b"mode").map(|(_, mode)| String::from_utf8_lossy(mode));
    let what = if let (Some(mode), Some(_)) = (mode, fields.iter().find(|field| client(field))) {
        format!("a read-write lock of Redisson's ({mode})")
    } else if fields.iter().any(|field| field.ends_with(":lock_count")) {
        "a multi-lock of Redisson's".into()
    } else if let Some((client, thread)) =
        fields.iter().find(|field| client(field)).and_then(|field| field.split_once(':'))
    {
        format!("a lock of Redisson's, held by client {client} thread {thread}")
    } else if key.as_str().ends_with(":LOCKED") && first.len() == 24 {
        "probably a lock of sidekiq-unique-jobs'".into()
    } else if key.as_str().ends_with(":GRABBED") {
        "probably a semaphore of redis-semaphore's".into()
    } else {
        return None;
    };
    Some(what)
}

fn sorted_set(key: &Key, members: &[&[u8]]) -> Option<String> {
    let what = if key.as_str().starts_with("redisson_lock_timeout:") {
        "the waiters of a fair lock of Redisson's"
    } else if key.as_str().ends_with(":timeout") && members.first()?.len() == 16 {
        "the permits of a semaphore of Redisson's"
    } else if members.contains(&&b"__write__"[..]) || members.first()?.len() == 44 {
        "probably a lock of Symfony's"
    } else if std::str::from_utf8(members.first()?).is_ok_and(|member| member.rsplit('_').next().is_some_and(is_hex)) {
        "probably a semaphore of DistributedLock's"
    } else {
        return None;
    };
    Some(what.into())
}

fn is_hex(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_uuid(text: &str) -> bool {
    let dashes = [8, 13, 18, 23].iter().all(|at| text.as_bytes().get(*at) == Some(&b'-'));
    text.len() == 36 && dashes && is_hex(&text.replace('-', ""))
}

/// Several parts in one, each behind its length.
fn pack<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut packed = Vec::new();
    for part in parts {
        packed.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        packed.extend_from_slice(part);
    }
    packed
}

/// The parts that were packed, at least a type and something of it.
fn unpack(mut packed: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = packed.split_first_chunk() {
        let (part, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        parts.push(part);
        packed = rest;
    }
    (packed.is_empty() && parts.len() >= 2).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart() {
        for (value, part) in [
            ("2b8fd0a6c3f611ee8a6a0242ac120002", "redis-py"),
            ("0123456789abcdef0123456789abcdef", "node-redlock"),
            ("7d1b3f0e-8f0a-4e5b-9d53-0a5a1c1f2b3c", "Spring"),
            ("ADDED:2026-01-01T00:00:00.000Z@db1", "ShedLock"),
            ("host_12_0123456789abcdef0123456789abcdef", "DistributedLock"),
            ("AAAAAAAAAAAAAAAAAAAAAA==", "redsync"),
            ("AAAAAAAAAAAAAAAAAAAAAAAA", "python-redis-lock"),
            ("1764536400.25", "redis-mutex"),
            ("3", "semaphore"),
            ("aB3dE6gH9jK2mN5p", "Laravel"),
            ("abcdefghijklmnopqrstuv{meta}", "bsm"),
            ("whatever", "a string of another"),
            ("ü", "a string of another"),
            ("", "a string of another"),
        ] {
            let told = of_text(value);
            assert!(told.contains(part), "{value}: {told}");
        }
    }

    #[test]
    fn parts_are_packed_and_unpacked() {
        let parts = [&b"string"[..], b"a\0b", b""];
        assert_eq!(unpack(&pack(parts)), Some(parts.to_vec()));
        for bad in [&b""[..], b"\0\0\0\x01", b"\0\0\0\x01a", b"abc", b"\xff\xff\xff\xffabc"] {
            assert_eq!(unpack(bad), None, "{bad:?}");
        }
    }
}
