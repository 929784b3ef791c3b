//! What goes to `claim.lua` and what comes back: names of keys, calls, answers, and the text of an entry. No I/O.
//!
//! The key itself is a string. For one exclusive holder it is the holder's entry as text ([`entry_text`]); otherwise
//! it is [`MARKER`], and the entries are the values of the hash `holders`, which counts only while the marker stands.
//! The queue is the sorted set `queue` of ids with the hash `waiters` of their entries. `gone` is a sorted set of
//! traces with their ends: an id is a tombstone, an id behind `c:` a condemned mark.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use redis::{Cmd, Value};

use crate::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Entry, Limit, Renew, Renewal};
use crate::store::Key;
use crate::text::cut;

/// The script.
pub const SOURCE: &str = include_str!("claim.lua");
/// The script's name for `EVALSHA`. A test asks a server for it.
pub const SHA1: &str = "abb53ad5c0b4ff2b235ffe6c6ebfbf60dd7a1169";
/// What the key holds while its holders stand in the side key `holders`.
pub const MARKER: &str = r#"{"rlock":1,"holders":"aside"}"#;
/// A string longer than this is not rlock's, and is not read.
pub const LONGEST_VALUE: usize = 4096;
/// The greatest number that both languages of the rule write exactly.
const GREATEST: u64 = (1 << 53) - 1;

/// The side key `name` of `key`, in the slot of the key.
pub fn side_key(key: &Key, name: &str) -> String {
    match key.hash_tag() {
        Some(_) => format!("{key}:rlock1:{name}"),
        None => format!("{key}:rlock1:{name}:{{{key}}}"),
    }
}

/// The list on which `id` is woken.
pub fn wake_key(key: &Key, id: ClaimId) -> String {
    side_key(key, &format!("wake:{id}"))
}

/// The key whose side key `name` is `side`, if it is one.
pub fn key_of(side: &str, name: &str) -> Option<Key> {
    // A key that ends in `:rlock1` overlaps with what follows it.
    let ends = (0..side.len()).filter(|at| side.as_bytes()[*at..].starts_with(b":rlock1:"));
    let mut keys = ends.filter_map(|end| Key::parse(&side[..end]).ok());
    keys.find(|key| side_key(key, name) == side)
}

/// One operation, ready to be sent.
#[derive(Clone, Debug)]
pub struct Call {
    keys: [String; 8],
    args: Vec<String>,
}

impl Call {
    /// See [`crate::claim::Step::ask`]. The record is the text of an object's members, as in [`entry_text`].
    pub fn ask(key: &Key, ask: &Ask) -> Self {
        let call = Self::new("ask", key, ask.id, ask.ttl_ms);
        call.with_claim(ask.limit, ask.process, &ask.record).with(&u8::from(ask.wait))
    }

    /// See [`crate::claim::Step::renew`].
    pub fn renew(key: &Key, renew: &Renew) -> Self {
        let call = Self::new("renew", key, renew.id, renew.ttl_ms);
        let number = renew.number.map(|number| number.to_string()).unwrap_or_default();
        call.with_claim(renew.limit, renew.process, &renew.record).with(&number)
    }

    /// See [`crate::claim::Step::drop_claim`].
    pub fn drop_claim(key: &Key, id: ClaimId, ttl_ms: u64) -> Self {
        Self::new("drop", key, id, ttl_ms)
    }

    /// See [`crate::claim::Step::finish`].
    pub fn finish(key: &Key, id: ClaimId, left_ms: u64, ttl_ms: u64) -> Self {
        Self::new("finish", key, id, ttl_ms).with(&left_ms)
    }

    /// See [`crate::claim::Step::condemn`].
    pub fn condemn(key: &Key, id: ClaimId, ttl_ms: u64) -> Self {
        Self::new("condemn", key, id, ttl_ms)
    }

    /// The command that names the script; a server that does not know it says `NOSCRIPT`.
    pub fn by_name(&self) -> Cmd {
        self.command("EVALSHA", SHA1)
    }

    /// The command that carries the script; the server knows it from then on.
    pub fn by_text(&self) -> Cmd {
        self.command("EVAL", SOURCE)
    }

    /// The command that runs another `script` with these keys and arguments.
    pub fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        command
    }

    /// Appends an argument.
    #[must_use]
    pub fn with(mut self, arg: &impl ToString) -> Self {
        self.args.push(arg.to_string());
        self
    }

    fn new(operation: &str, key: &Key, id: ClaimId, ttl_ms: u64) -> Self {
        let side = |name| side_key(key, name);
        let keys = [
            key.to_string(),
            side("queue"),
            side("waiters"),
            side("holders"),
            side("token"),
            side("gone"),
            side("log"),
            wake_key(key, id),
        ];
        Self { keys, args: vec![operation.to_owned(), id.to_string(), ttl_ms.to_string()] }
    }

    fn with_claim(self, limit: Limit, process: bool, record: &str) -> Self {
        self.with(&u32::from(limit)).with(&u8::from(process)).with(&record)
    }
}

/// The operation and its arguments, to tell what was sent.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.args.join(" "))
    }
}

/// An answer of the script, and the server's time at which it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told<T> {
    /// The answer.
    pub answer: T,
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
}

/// The answer to [`Call::ask`], or what is wrong with it.
pub fn read_answer(value: &Value) -> Result<Told<Answer>, String> {
    Words::of(value)?.told(|words| {
        Some(match &*words.word {
            "granted" => Answer::Granted { number: words.number(2)?, left_ms: words.number(3)? },
            "waiting" => Answer::Waiting {
                position: usize::try_from(words.number(2)?).ok()?,
                lapse_ms: if words.all.get(3)? == &Value::Int(-1) { None } else { Some(words.number(3)?) },
                holders: words.entries(4)?,
            },
            "busy" => Answer::Busy { holders: words.entries(2)? },
            "gone" => Answer::Gone,
            _ => return None,
        })
    })
}

/// The answer to [`Call::renew`] and [`Call::finish`], or what is wrong with it.
pub fn read_renewal(value: &Value) -> Result<Told<Renewal>, String> {
    Words::of(value)?.told(|words| {
        Some(match &*words.word {
            "renewed" => Renewal::Renewed { left_ms: words.number(2)?, restored: words.number(3)? == 1 },
            "condemned" => Renewal::Condemned,
            "gone" => Renewal::Gone,
            _ => return None,
        })
    })
}

/// The answer to [`Call::drop_claim`], or what is wrong with it.
pub fn read_dropped(value: &Value) -> Result<Told<Dropped>, String> {
    Words::of(value)?.told(|words| {
        Some(match &*words.word {
            "held" => Dropped::Held(Box::new(words.entry(2)?)),
            "waited" => Dropped::Waited(Box::new(words.entry(2)?)),
            "unknown" => Dropped::Unknown,
            _ => return None,
        })
    })
}

/// The answer to [`Call::condemn`], or what is wrong with it.
pub fn read_condemnation(value: &Value) -> Result<Told<Condemnation>, String> {
    Words::of(value)?.told(|words| {
        Some(match &*words.word {
            "marked" => Condemnation::Marked { left_ms: words.number(2)? },
            "dropped" => Condemnation::Dropped,
            "unknown" => Condemnation::Unknown,
            _ => return None,
        })
    })
}

/// A reply of the script, taken apart.
struct Words<'a> {
    word: Cow<'a, str>,
    all: &'a [Value],
}

impl<'a> Words<'a> {
    fn of(value: &'a Value) -> Result<Self, String> {
        match value {
            Value::Array(all) => all.first().and_then(text).map(|word| Self { word, all }),
            _ => None,
        }
        .ok_or_else(|| nonsense(value))
    }

    fn told<T>(self, answer: impl Fn(&Self) -> Option<T>) -> Result<Told<T>, String> {
        let told = answer(&self).and_then(|answer| Some(Told { answer, now_ms: self.number(1)? }));
        told.ok_or_else(|| nonsense(&self.all))
    }

    fn number(&self, at: usize) -> Option<u64> {
        match self.all.get(at)? {
            Value::Int(number) => u64::try_from(*number).ok(),
            value => digits(&text(value)?),
        }
    }

    fn entry(&self, at: usize) -> Option<Entry> {
        self.all.get(at).and_then(entry)
    }

    fn entries(&self, from: usize) -> Option<Vec<Entry>> {
        self.all.get(from..)?.iter().map(entry).collect()
    }
}

/// What a string answer says. Bytes that are not UTF-8 become U+FFFD: the script reads past them in a record, and who
/// holds a lock must not depend on who reads it.
pub(super) fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes)),
        Value::SimpleString(text) => Some(text.into()),
        _ => None,
    }
}

/// The entry that an answer holds.
pub(super) fn entry(value: &Value) -> Option<Entry> {
    parse_entry(&text(value)?)
}

fn nonsense(value: &impl fmt::Debug) -> String {
    let mut dump = Beginning(String::new());
    // It ends with an error where the rest is not wanted.
    let _ = write!(dump, "{value:?}");
    format!("the server's answer makes no sense: {}", cut(&dump.0.escape_debug().to_string(), MOST_SHOWN))
}

/// As much of an answer as is shown, in bytes.
const MOST_SHOWN: usize = 200;

/// The beginning of a text that may be long.
struct Beginning(String);

impl fmt::Write for Beginning {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0.push_str(cut(part, MOST_SHOWN));
        if self.0.len() < MOST_SHOWN { Ok(()) } else { Err(fmt::Error) }
    }
}

/// An entry as the store keeps it: compact JSON whose own members come first and in this order, so that the script
/// reads them with one pattern. `record` is the text of further members, such as `"host":"db1","pid":4121`, or empty.
pub fn entry_text(entry: &Entry) -> String {
    let Entry { id, limit, process, number, since_ms, until_ms, ttl_ms, record } = entry;
    let (limit, process) = (u32::from(*limit), u8::from(*process));
    let comma = if record.is_empty() { "" } else { "," };
    format!(
        r#"{{"rlock":1,"id":"{id}","limit":{limit},"process":{process},"token":{number},"since_ms":{since_ms},"until_ms":{until_ms},"ttl_ms":{ttl_ms}{comma}{record}}}"#
    )
}

/// The entry that `text` writes.
pub fn parse_entry(text: &str) -> Option<Entry> {
    let mut rest = text.strip_prefix(r#"{"rlock":1,"id":""#)?.strip_suffix('}')?;
    // Ends with the member's value; what follows it is left in `rest`.
    let mut value = |next: &str| -> Option<&str> {
        let (value, after) = rest.split_once(next)?;
        rest = after;
        Some(value)
    };
    let id = ClaimId::parse(value(r#"","limit":"#)?)?;
    let limit = digits(value(r#","process":"#)?)?;
    let process = match value(r#","token":"#)? {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    let number = digits(value(r#","since_ms":"#)?)?;
    let since_ms = digits(value(r#","until_ms":"#)?)?;
    let until_ms = digits(value(r#","ttl_ms":"#)?)?;
    let (ttl_ms, record) = match rest.split_once(',') {
        Some((ttl_ms, record)) => (ttl_ms, record),
        None => (rest, ""),
    };
    Some(Entry {
        id,
        limit: Limit::of(u32::try_from(limit).ok()?),
        process,
        number,
        since_ms,
        until_ms,
        ttl_ms: digits(ttl_ms)?,
        record: record.to_owned(),
    })
}

fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| plain && *number <= GREATEST)
}

/// What a string at a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// One exclusive holder.
    Holder(Box<Entry>),
    /// The holders stand in the side key `holders`.
    Aside,
    /// The lock of a newer rlock, whose layout this one does not know.
    Newer,
    /// Not rlock's.
    Foreign,
}

impl Stored {
    /// What `value` is.
    pub fn of(value: &[u8]) -> Self {
        if value.len() > LONGEST_VALUE {
            return Self::Foreign;
        }
        if value == MARKER.as_bytes() {
            return Self::Aside;
        }
        let text = String::from_utf8_lossy(value);
        let layout = text.strip_prefix(r#"{"rlock":"#).map_or("", |rest| rest.split([',', '}']).next().unwrap_or(""));
        match parse_entry(&text) {
            Some(entry) => Self::Holder(Box::new(entry)),
            None if digits(layout).is_some_and(|layout| layout > 1) => Self::Newer,
            None => Self::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing;

    fn key(text: &str) -> Key {
        Key::parse(text).expect("a key")
    }

    fn entry(record: &str) -> Entry {
        Entry {
            id: ClaimId::from_bits(0xab),
            limit: Limit::EXCLUSIVE,
            process: true,
            number: 1_700_000_000_000_000,
            since_ms: 1_700_000_000_000,
            until_ms: 1_700_000_030_000,
            ttl_ms: 30_000,
            record: record.to_owned(),
        }
    }

    #[test]
    fn side_keys_share_the_slot() {
        assert_eq!(side_key(&key("job:backup"), "queue"), "job:backup:rlock1:queue:{job:backup}");
        assert_eq!(side_key(&key("job:{a}:b"), "queue"), "job:{a}:b:rlock1:queue");
        let id = ClaimId::from_bits(1);
        assert_eq!(wake_key(&key("k{t}"), id), "k{t}:rlock1:wake:00000000000000000000000000000001");
        assert!(wake_key(&key("k"), id).ends_with("01:{k}"));
        for text in ["job:backup", "job:{a}:b", "a b", "job:rlock1", ":rlock1", "{a}:rlock1"] {
            assert_eq!(key_of(&side_key(&key(text), "token"), "token"), Some(key(text)));
        }
        for other in
            ["job", "job:rlock1:token", "job:rlock1:queue:{job}", "job:rlock1:token:{jobs}", ":rlock1:token:{}"]
        {
            assert_eq!(key_of(other, "token"), None, "{other}");
        }
    }

    #[test]
    fn entries_survive_the_text() {
        for record in ["", r#""host":"db1","pid":4121,"label":"a, \"b\"}""#] {
            let text = entry_text(&entry(record));
            assert_eq!(parse_entry(&text), Some(entry(record)));
            assert_eq!(Stored::of(text.as_bytes()), Stored::Holder(Box::new(entry(record))));
        }
        let text = entry_text(&entry(r#""host":"db1""#));
        let json: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!((&json["host"], &json["process"]), (&"db1".into(), &1.into()));
    }

    #[test]
    fn other_texts_are_not_entries() {
        let good = entry_text(&entry(r#""a":1"#));
        for (from, to) in [
            ("}", ""),
            (r#""process":1"#, r#""process":2"#),
            ("30000,", "30000x,"),
            ("00ab\"", "00AB\""),
            ("00ab\"", "0ab\""),
            (r#""limit":1"#, r#""limit":4294967296"#),
            (r#""token":1"#, r#""token":991"#),
            (r#""limit":1,"process":1"#, r#""process":1,"limit":1"#),
            (r#""rlock":1"#, r#""rlock": 1"#),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            assert_eq!(Stored::of(bad.as_bytes()), Stored::Foreign, "{bad}");
        }
        assert_eq!(Stored::of(MARKER.as_bytes()), Stored::Aside);
        assert_eq!(Stored::of(br#"{"rlock":2,"anything":[]}"#), Stored::Newer);
        assert_eq!(Stored::of(br#"{"rlock":0}"#), Stored::Foreign);
        assert_eq!(Stored::of(b"\xff"), Stored::Foreign);
        assert_eq!(Stored::of(b""), Stored::Foreign);
    }

    #[test]
    fn a_record_that_is_not_utf8_is_a_record() {
        let mut value = entry_text(&entry(r#""host":"db?""#)).into_bytes();
        let at = value.iter().position(|byte| *byte == b'?').expect("the mark");
        value[at] = 0xff;
        let Stored::Holder(held) = Stored::of(&value) else { panic!("not a holder") };
        assert_eq!(held.record, "\"host\":\"db\u{fffd}\"");
        assert_eq!(super::entry(&Value::BulkString(value)), Some(*held));
    }

    #[test]
    fn nonsense_is_cut_between_characters() {
        for shift in 0..4 {
            let text = format!("{}{}", "x".repeat(shift), "鍵".repeat(200));
            let told = read_answer(&Value::Array(vec![Value::BulkString(text.into())])).unwrap_err();
            assert!(told.contains('鍵') && told.len() < 300, "{told}");
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        let word = |text: &str| Value::BulkString(text.into());
        for bad in [
            Value::Nil,
            Value::Okay,
            Value::Int(3),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(3)]),
            Value::Array(vec![word("granted")]),
            Value::Array(vec![word("granted"), Value::Int(1), word("x"), Value::Int(1)]),
            Value::Array(vec![word("granted"), Value::Int(1), word("5"), Value::Int(-1)]),
            Value::Array(vec![word("busy"), Value::Int(1), word("{}")]),
            Value::Array(vec![word("held"), Value::Int(1)]),
            Value::Array(vec![Value::BulkString(vec![0xff; 900])]),
        ] {
            assert!(read_answer(&bad).is_err(), "{bad:?}");
            assert!(read_renewal(&bad).is_err());
            assert!(read_dropped(&bad).is_err());
            assert!(read_condemnation(&bad).is_err());
        }
        let good = Value::Array(vec![word("waiting"), Value::Int(7), Value::Int(2), Value::Int(-1)]);
        let answer = Answer::Waiting { position: 2, lapse_ms: None, holders: vec![] };
        assert_eq!(read_answer(&good), Ok(Told { answer, now_ms: 7 }));
    }

    #[test]
    fn the_script_has_the_constants_of_the_rule() {
        let ms = |time: std::time::Duration| time.as_millis();
        let constants = format!(
            "HEARTBEAT, WINDOW, TOMBSTONE, WEEK = {}, {}, {}, {}",
            ms(timing::HEARTBEAT),
            ms(timing::WINDOW),
            ms(timing::TOMBSTONE),
            7 * 24 * 60 * 60 * 1000
        );
        assert!(SOURCE.contains(&constants));
        assert!(SOURCE.contains(&format!("MARKER = '{MARKER}'")));
        assert!(SOURCE.contains(&format!("LONGEST_VALUE, MOST_SHOWN = {LONGEST_VALUE}, 8")));
    }
}
