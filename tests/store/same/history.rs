//! Random histories of one key: what is done to the server, and what the rule answers to it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use redis::Cmd;
use rlock::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Entry, Event, Limit, Renew, Renewal, State, What};
use rlock::store::Key;
use rlock::store::redis::script::{self, Call};

use super::look::Seen;

/// Stands in the oracle's state for what holds the key and is not rlock's.
const FOREIGN: ClaimId = ClaimId::from_bits(u128::MAX);
/// How many clients of a key there are at a time: more holders than an answer shows.
const CLIENTS: usize = 16;
/// The end of what has none.
const NEVER: u64 = 1 << 53;

/// Random numbers, the same for the same seed.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("an index")
    }
}

/// The answer of any operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Ask(Answer),
    Renew(Renewal),
    Drop(Dropped),
    Condemn(Condemnation),
}

/// How many there are of [`Reply::word`].
pub(crate) const WORDS: usize = 14;

impl Reply {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Ask(Answer::Granted { .. }) => "granted",
            Self::Ask(Answer::Waiting { .. }) => "waiting",
            Self::Ask(Answer::Busy { .. }) => "busy",
            Self::Ask(Answer::Gone) => "ask gone",
            Self::Renew(Renewal::Renewed { restored: false, .. }) => "renewed",
            Self::Renew(Renewal::Renewed { restored: true, .. }) => "restored",
            Self::Renew(Renewal::Condemned) => "condemned",
            Self::Renew(Renewal::Gone) => "renew gone",
            Self::Drop(Dropped::Held(_)) => "drop held",
            Self::Drop(Dropped::Waited(_)) => "drop waited",
            Self::Drop(Dropped::Unknown) => "drop unknown",
            Self::Condemn(Condemnation::Marked { .. }) => "condemn marked",
            Self::Condemn(Condemnation::Dropped) => "condemn dropped",
            Self::Condemn(Condemnation::Unknown) => "condemn unknown",
        }
    }
}

/// One operation with what comes before it on the server, and what the rule says.
pub(crate) struct Step {
    pub(crate) label: String,
    /// What others do to the key just before.
    pub(crate) before: Vec<Cmd>,
    /// Whether what has run out by now is removed first, as the server would.
    pub(crate) run_out: bool,
    pub(crate) call: Call,
    pub(crate) reply: Reply,
    pub(crate) seen: Seen,
    /// Those woken by this operation.
    pub(crate) fresh: Vec<ClaimId>,
}

impl Step {
    pub(crate) fn is_finish(&self) -> bool {
        self.call.to_string().starts_with("finish")
    }
}

/// A claim as its client knows it.
#[derive(Clone, Copy)]
struct Client {
    id: ClaimId,
    limit: Limit,
    number: Option<u64>,
}

/// One key and its clients.
pub(crate) struct Place {
    pub(crate) key: Key,
    limits: &'static [u32],
    /// Whether few leave, so that many hold at once.
    calm: bool,
    state: State,
    clients: Vec<Client>,
    wakes: BTreeMap<ClaimId, u64>,
}

impl Place {
    pub(crate) fn new(key: &str, limits: &'static [u32], calm: bool, rng: &mut Rng) -> Self {
        let mut place = Self {
            key: Key::parse(key).expect("a key"),
            limits,
            calm,
            state: State::default(),
            clients: vec![],
            wakes: BTreeMap::new(),
        };
        for _ in 0..CLIENTS {
            let client = place.new_client(rng);
            place.clients.push(client);
        }
        place
    }

    /// The next instant at which something of it runs out.
    pub(crate) fn next_end(&self, now_ms: u64) -> Option<u64> {
        let entries = self.state.holders.iter().chain(&self.state.queue).map(|entry| entry.until_ms);
        let traces = self.state.traces.iter().map(|trace| trace.until_ms);
        entries.chain(traces).filter(|end| *end > now_ms && *end < NEVER).min()
    }

    /// The claims whose wake lists are looked at.
    pub(crate) fn ids(&self) -> Vec<ClaimId> {
        let mut ids: Vec<_> = self.clients.iter().map(|client| client.id).chain(self.wakes.keys().copied()).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// A woken client takes its wake list.
    pub(crate) fn take_wake(&mut self, id: ClaimId) {
        self.wakes.remove(&id);
    }

    /// The next operation, at `now_us`.
    pub(crate) fn step(&mut self, now_us: u64, rng: &mut Rng) -> Step {
        let now = now_us / 1000;
        let mut label = format!("{now}.{:03} {}:", now_us % 1000, self.key);
        let foreign_end = self.foreign().map(|held| held.until_ms);
        let run_out = foreign_end.is_some_and(|end| end <= now) || rng.percent(40);
        if run_out && self.state.holders.iter().all(|held| held.until_ms <= now) {
            label += " (run out)";
            self.state.holders.clear();
        }
        let before =
            if rng.percent(if self.calm { 3 } else { 12 }) { self.others(now, &mut label, rng) } else { vec![] };
        let queued: Vec<_> = self.state.queue.iter().map(|waiter| (waiter.id, waiter.since_ms)).collect();
        let at = self.choose(rng);
        let id = self.clients[at].id;
        let is_condemned =
            self.state.traces.iter().any(|trace| trace.id == id && trace.condemned && trace.until_ms > now);
        let (call, reply, events) = self.operation(at, now_us, rng);
        let _ = write!(label, " {call} -> {reply:?}");
        let mut fresh = self.wake(&events);
        // A drop takes with it what calls the claim, unless that tells of a condemnation.
        if call.to_string().starts_with("drop") && !is_condemned {
            self.wakes.remove(&id);
            fresh.retain(|woken| *woken != id);
        }
        let enqueued = self.state.queue.iter().any(|waiter| waiter.id == id && waiter.since_ms == now)
            && !queued.contains(&(id, now));
        if enqueued {
            self.wakes.remove(&id);
        }
        // A finish tells of its end at once; on a condemned claim it is a drop.
        let finished = call.to_string().starts_with("finish") && matches!(reply, Reply::Renew(Renewal::Renewed { .. }));
        let seen = self.seen(&events, now, finished);
        Step { label, before, run_out, call, reply: shown(reply), seen, fresh }
    }

    fn foreign(&self) -> Option<&Entry> {
        self.state.holders.iter().find(|held| held.id == FOREIGN)
    }

    fn new_client(&mut self, rng: &mut Rng) -> Client {
        let bits = u128::from(rng.next()) << 64 | u128::from(rng.next());
        Client { id: ClaimId::from_bits(bits), limit: Limit::of(rng.pick(self.limits)), number: None }
    }

    /// Any client, or more often one that holds or waits.
    fn choose(&self, rng: &mut Rng) -> usize {
        let known = self.state.holders.iter().chain(&self.state.queue).map(|entry| entry.id);
        let known: Vec<_> = known.filter_map(|id| self.clients.iter().position(|client| client.id == id)).collect();
        if known.is_empty() || rng.percent(40) { rng.index(CLIENTS) } else { rng.pick(&known) }
    }

    fn operation(&mut self, at: usize, now_us: u64, rng: &mut Rng) -> (Call, Reply, Vec<Event>) {
        let Client { id, limit, number } = self.clients[at];
        let ttl_ms = rng.pick(&[2000, 2500, 5000, 30_000]);
        let process = rng.percent(75);
        let record = rng.pick(&["", r#""host":"db1","pid":4121"#, r#""host":"a, \"b\"}","label":"ü""#]).to_owned();
        let last = self.state.number;
        let mut step = self.state.at(now_us);
        let (call, reply) = match rng.below(if self.calm { 78 } else { 100 }) {
            0..50 => {
                let ask = Ask { id, limit, ttl_ms, process, wait: rng.percent(75), record };
                (Call::ask(&self.key, &ask), Reply::Ask(step.ask(&ask)))
            }
            50..75 => {
                let any = rng.pick(&[None, Some(last), Some(last.saturating_sub(1)), Some(last + 1000)]);
                let number = if rng.percent(60) { number } else { any };
                let renew = Renew { id, limit, ttl_ms, process, number, record };
                (Call::renew(&self.key, &renew), Reply::Renew(step.renew(&renew)))
            }
            75..87 => (Call::drop_claim(&self.key, id, ttl_ms), Reply::Drop(step.drop_claim(id, ttl_ms))),
            87..94 => {
                let left_ms = rng.pick(&[0, 1, 500, 4000, 40_000]);
                (Call::finish(&self.key, id, left_ms, ttl_ms), Reply::Renew(step.finish(id, left_ms, ttl_ms)))
            }
            _ => (Call::condemn(&self.key, id, ttl_ms), Reply::Condemn(step.condemn(id, ttl_ms))),
        };
        let events = step.events;
        if let Reply::Ask(Answer::Granted { number, .. }) = reply {
            self.clients[at].number = Some(number);
        }
        let over = matches!(reply, Reply::Ask(Answer::Gone) | Reply::Renew(Renewal::Gone) | Reply::Drop(_));
        // The old one is never heard of again, dead or not, or its late messages come after all.
        if rng.percent(if over { 50 } else { 2 }) {
            self.clients[at] = self.new_client(rng);
        }
        (call, reply, events)
    }

    /// What other programs, operators and evictions do to the keys, and what that makes of the state.
    fn others(&mut self, now: u64, label: &mut String, rng: &mut Rng) -> Vec<Cmd> {
        let key = self.key.as_str();
        let del = |name: &str| redis::cmd("DEL").arg(script::side_key(&self.key, name)).clone();
        let del_key = redis::cmd("DEL").arg(key).clone();
        let end = now + rng.pick(&[700, 3000, 20_000]);
        let value = foreign_value(rng);
        // What has lapsed would be gone on a real clock.
        let lapsed = self.state.holders.iter().all(|held| held.until_ms <= now);
        let mut before = if lapsed { vec![del_key.clone()] } else { vec![] };
        if lapsed {
            self.state.holders.clear();
        }
        let holders = &mut self.state.holders;
        let marked = holders.iter().all(|held| held.id != FOREIGN && (!held.limit.is_exclusive()));
        let what = match rng.below(100) {
            0..30 => {
                holders.clear();
                before.push(del_key);
                "DEL"
            }
            30..50 => {
                before.push(redis::cmd("SET").arg(key).arg(value).arg("NX").arg("PXAT").arg(end).clone());
                if holders.is_empty() {
                    holders.push(foreign(end));
                }
                "SET NX"
            }
            50..58 => {
                before.push(redis::cmd("SET").arg(key).arg(value).arg("PXAT").arg(end).clone());
                *holders = vec![foreign(end)];
                "SET"
            }
            58..62 => {
                before.push(redis::cmd("SET").arg(key).arg(value).clone());
                *holders = vec![foreign(NEVER)];
                "SET without end"
            }
            62..66 => {
                before.extend([del_key, redis::cmd("HSET").arg(key).arg("field").arg(1).clone()]);
                *holders = vec![foreign(NEVER)];
                "HSET"
            }
            66..75 => {
                before.push(del("holders"));
                let last = holders.iter().map(|held| held.until_ms).max();
                if let Some(end) = last.filter(|_| marked) {
                    *holders = vec![foreign(end)];
                }
                "lost holders"
            }
            75..83 => {
                before.push(del("token"));
                self.state.number = 0;
                "lost token"
            }
            83..91 => {
                before.push(del("gone"));
                self.state.traces.clear();
                "lost gone"
            }
            other => {
                before.push(del(if other % 2 == 0 { "queue" } else { "waiters" }));
                self.state.queue.clear();
                "lost queue or waiters"
            }
        };
        let _ = write!(label, " ({what})");
        before
    }

    fn wake(&mut self, events: &[Event]) -> Vec<ClaimId> {
        let woken = events.iter().filter(|event| matches!(event.what, What::Served | What::Condemned));
        let fresh: Vec<_> = woken.map(|event| event.entry.id).collect();
        for id in &fresh {
            *self.wakes.entry(*id).or_default() += 1;
        }
        fresh
    }

    fn seen(&self, events: &[Event], now: u64, finished: bool) -> Seen {
        let holders = self.state.holders.iter().filter(|held| held.id != FOREIGN).cloned().collect();
        let ours = events.iter().filter(|event| event.entry.id != FOREIGN);
        let events = ours.map(|Event { what, entry }| {
            let (word, until) = match what {
                What::Acquired | What::Served => ("acquired", now),
                What::Released => ("released", if finished { entry.until_ms.max(now) } else { now }),
                What::Restored => ("restored", now),
                What::Lost => ("lost", entry.until_ms),
                What::Condemned => ("condemned", now),
            };
            (word.to_owned(), entry.id, entry.number, until.saturating_sub(entry.since_ms))
        });
        Seen {
            foreign: self.foreign().is_some(),
            holders,
            queue: self.state.queue.clone(),
            number: self.state.number,
            traces: self.state.traces.clone(),
            events: events.collect(),
            wakes: self.wakes.clone(),
        }
        .sorted()
    }
}

fn foreign(until_ms: u64) -> Entry {
    Entry {
        id: FOREIGN,
        limit: Limit::EXCLUSIVE,
        process: false,
        number: 0,
        since_ms: 0,
        until_ms,
        ttl_ms: 0,
        record: String::new(),
    }
}

/// Values that are nobody's, some of them nearly an entry.
fn foreign_value(rng: &mut Rng) -> String {
    let near = script::entry_text(&foreign(0));
    match rng.below(8) {
        7 => near.replace('}', &format!(r#","label":"{}"}}"#, "x".repeat(script::LONGEST_VALUE))),
        0 => "x".repeat(script::LONGEST_VALUE + 1),
        1 => near.replace(r#""rlock":1"#, r#""rlock":2"#),
        2 => near.replace("ffff", "FFFF"),
        3 => near.replace(r#""process":0"#, r#""process":7"#),
        4 => near.replace('}', ""),
        5 => String::new(),
        _ => "4f2b-another-library".into(),
    }
}

/// An answer as it goes over the wire: no more than eight holders, and none that is not rlock's.
fn shown(reply: Reply) -> Reply {
    let few = |mut holders: Vec<Entry>| {
        holders.retain(|held| held.id != FOREIGN);
        holders.sort_by_key(|held| (held.since_ms, held.id));
        holders.truncate(8);
        holders
    };
    match reply {
        Reply::Ask(Answer::Busy { holders }) => Reply::Ask(Answer::Busy { holders: few(holders) }),
        Reply::Ask(Answer::Waiting { position, lapse_ms, holders }) => {
            let lapse_ms = lapse_ms.filter(|lapse| *lapse < NEVER / 4);
            Reply::Ask(Answer::Waiting { position, lapse_ms, holders: few(holders) })
        }
        reply => reply,
    }
}
