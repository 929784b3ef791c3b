//! What stands in the server after an operation, and what should.

use std::collections::BTreeMap;

use redis::Value;
use rlock::claim::{ClaimId, Entry, Trace};
use rlock::store::redis::script::{self, Stored};

/// Reads everything of one key at once. KEYS: the key and its seven side keys without the wake list, then wake lists.
/// ARGV: for each wake list whether it is taken (1), as the woken client would. What is read is kept from running
/// out in real time, and the log is emptied, so that it holds the next operation's entries only.
pub(crate) const LOOK: &str = r"
local day, ends, wakes = 86400000, {}, {}
for i = 1, 7 do ends[i] = redis.call('PEXPIRETIME', KEYS[i]) end
for i = 8, #KEYS do
  wakes[i - 7] = { redis.call('LLEN', KEYS[i]), redis.call('PTTL', KEYS[i]) }
  if ARGV[i - 7] == '1' then redis.call('DEL', KEYS[i]) else redis.call('PEXPIRE', KEYS[i], day) end
end
redis.call('PEXPIRE', KEYS[2], day)
local clock, log, kind = redis.call('TIME'), redis.call('XRANGE', KEYS[7], '-', '+'), redis.call('TYPE', KEYS[1]).ok
redis.call('DEL', KEYS[7])
return {
  kind, kind == 'string' and redis.call('GET', KEYS[1]) or '', redis.call('HVALS', KEYS[4]),
  redis.call('ZRANGE', KEYS[2], 0, -1), redis.call('HGETALL', KEYS[3]), redis.call('GET', KEYS[5]) or '0',
  redis.call('ZRANGE', KEYS[6], 0, -1, 'WITHSCORES'), log, ends, wakes, clock[1] * 1000 + math.floor(clock[2] / 1000),
}";

/// Removes what has run out by the simulated clock in ARGV[1], as the server itself does by its own.
pub(crate) const RUN_OUT: &str = r"
for _, key in ipairs(KEYS) do
  local ends = redis.call('PEXPIRETIME', key)
  if ends > 0 and ends <= tonumber(ARGV[1]) then redis.call('DEL', key) end
end";

/// The state of one key, from either side, in an order that both share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) foreign: bool,
    pub(crate) holders: Vec<Entry>,
    pub(crate) queue: Vec<Entry>,
    pub(crate) number: u64,
    pub(crate) traces: Vec<Trace>,
    /// What the log says of one operation: event, claim, number, milliseconds.
    pub(crate) events: Vec<(String, ClaimId, u64, u64)>,
    /// The wake lists and their lengths.
    pub(crate) wakes: BTreeMap<ClaimId, u64>,
}

impl Seen {
    pub(crate) fn sorted(mut self) -> Self {
        self.holders.sort_by_key(|held| held.id);
        self.traces.sort_by_key(|trace| trace.id);
        self.events.sort();
        self
    }
}

/// What a look found, and the server's own clock in milliseconds.
pub(crate) struct Looked {
    pub(crate) seen: Seen,
    pub(crate) real_ms: u64,
    /// Whether the key of the number is there, by which locks are listed.
    pub(crate) listed: bool,
}

type LookReply = (
    String,
    Vec<u8>,
    Vec<String>,
    Vec<String>,
    BTreeMap<String, String>,
    u64,
    Vec<(String, u64)>,
    Vec<(String, BTreeMap<String, String>)>,
    Vec<i64>,
    Vec<(u64, i64)>,
    u64,
);

/// Reads the answer of [`LOOK`], for the wake lists of `ids`, of which those in `fresh` were written just now.
/// What is wrong in itself, a key without an end or an end that does not match, is an error.
pub(crate) fn read(value: Value, ids: &[ClaimId], fresh: &[ClaimId]) -> Result<Looked, String> {
    let reply: LookReply = redis::from_redis_value(value).map_err(|error| error.to_string())?;
    let (kind, value, aside, order, waiters, number, gone, log, ends, lists, real_ms) = reply;
    let entry = |text: &String| script::parse_entry(text).ok_or_else(|| format!("not an entry: {text}"));
    let (foreign, holders) = match Stored::of(&value) {
        _ if kind != "string" => (kind != "none", vec![]),
        Stored::Holder(held) => (false, vec![*held]),
        Stored::Aside if !aside.is_empty() => (false, aside.iter().map(entry).collect::<Result<_, _>>()?),
        _ => (true, vec![]),
    };
    let queue = order.iter().map(|id| waiters.get(id).ok_or(format!("{id} has no entry")).and_then(entry));
    let queue: Vec<_> = queue.collect::<Result<_, _>>()?;
    if queue.len() != waiters.len() {
        return Err(format!("the queue has {} and the waiters {}", queue.len(), waiters.len()));
    }
    let traces: Vec<_> = gone.iter().map(trace).collect::<Result<_, _>>()?;
    check_ends(&ends, foreign, &holders, &queue, &traces)?;
    let mut wakes = BTreeMap::new();
    for (id, (length, left)) in ids.iter().zip(lists) {
        if length > 0 {
            wakes.insert(*id, length);
        }
        if length > 0 && fresh.contains(id) && !(1..=3000).contains(&left) {
            return Err(format!("the wake list of {id} ends in {left} ms"));
        }
    }
    let events = log.iter().map(|(_, fields)| event(fields)).collect::<Option<_>>().ok_or("the log makes no sense")?;
    Ok(Looked {
        seen: Seen { foreign, holders, queue, number, traces, events, wakes }.sorted(),
        real_ms,
        listed: ends[4] > 0,
    })
}

fn id(text: &str) -> Result<ClaimId, String> {
    ClaimId::parse(text).ok_or_else(|| format!("not an id: {text}"))
}

fn trace((member, until_ms): &(String, u64)) -> Result<Trace, String> {
    let plain = member.strip_prefix("c:");
    Ok(Trace { id: id(plain.unwrap_or(member))?, until_ms: *until_ms, condemned: plain.is_some() })
}

fn event(fields: &BTreeMap<String, String>) -> Option<(String, ClaimId, u64, u64)> {
    let number = |name| fields.get(name).and_then(|text: &String| text.parse().ok());
    let ms = number("held_ms").or_else(|| number("waited_ms"))?;
    Some((fields.get("event")?.clone(), ClaimId::parse(fields.get("id")?)?, number("token")?, ms))
}

/// Every key has an end, and the end that its contents say.
fn check_ends(ends: &[i64], foreign: bool, holders: &[Entry], queue: &[Entry], traces: &[Trace]) -> Result<(), String> {
    for (at, end) in ends.iter().enumerate() {
        if *end == -1 && !(at == 0 && foreign) {
            return Err(format!("key {at} has no end"));
        }
    }
    let last = |ends: Vec<u64>| ends.into_iter().max().and_then(|end| i64::try_from(end).ok()).unwrap_or(-2);
    let lease = last(holders.iter().map(|held| held.until_ms).collect());
    if !foreign && ends[0] != lease {
        return Err(format!("the key ends at {}, its last lease at {lease}", ends[0]));
    }
    let aside = holders.len() > 1 || holders.iter().any(|held| !held.limit.is_exclusive());
    if aside && ends[3] != lease {
        return Err(format!("the holders end at {}, the last lease at {lease}", ends[3]));
    }
    let beat = last(queue.iter().map(|waiter| waiter.until_ms).collect());
    if ends[2] < beat || (queue.is_empty() && ends[1] != -2) {
        return Err(format!("the waiters end at {}, the last heartbeat at {beat}, the queue at {}", ends[2], ends[1]));
    }
    let trace = last(traces.iter().map(|trace| trace.until_ms).collect());
    if ends[5] < trace || (traces.is_empty() && ends[5] != -2) {
        return Err(format!("the traces end at {}, the last one at {trace}", ends[5]));
    }
    Ok(())
}
