//! THE RULE: who holds a key, and who is next. No clock, no I/O, no randomness.
//!
//! A key has holders and a queue of waiters, oldest first. Everything follows from one sentence, *a claim may hold
//! while the holders and it together are no more than its limit, nor than any holder's*, and from one function,
//! [`Step::serve`], that runs before and after every operation. Exclusive locks, shared ones, permits and their
//! mixtures are limits of 1, none and N; order and no starvation of writers come from the queue.
//!
//! This file is the engine of the local store, the oracle that `store/redis/claim.lua` is compared with on random
//! histories, and the model of the simulator. Times are milliseconds of the store's clock unless a name says `us`.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::timing;

const HEARTBEAT_MS: u64 = timing::HEARTBEAT.as_secs() * 1000;
const TOMBSTONE_MS: u64 = timing::TOMBSTONE.as_secs() * 1000;
const WINDOW_MS: u64 = timing::WINDOW.as_secs() * 1000;

/// A claim's name: 128 random bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClaimId(u128);

impl ClaimId {
    /// The id with these bits.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The id that `text` writes: exactly 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        plain.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<ClaimId> for String {
    fn from(id: ClaimId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ClaimId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not a claim's id")
    }
}

/// How many may hold at once, the claim itself included. On the wire 0 stands for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub struct Limit(Option<NonZeroU32>);

impl Limit {
    /// One holder.
    pub const EXCLUSIVE: Self = Self(NonZeroU32::new(1));
    /// Any number of holders.
    pub const SHARED: Self = Self(None);

    /// `n` holders; 0 is no limit, as on the wire.
    pub const fn of(n: u32) -> Self {
        Self(NonZeroU32::new(n))
    }

    /// Whether this is the limit of one.
    pub fn is_exclusive(self) -> bool {
        self == Self::EXCLUSIVE
    }

    fn allows(self, holders: usize) -> bool {
        self.0.is_none_or(|most| holders <= most.get() as usize)
    }
}

impl From<u32> for Limit {
    fn from(n: u32) -> Self {
        Self::of(n)
    }
}

impl From<Limit> for u32 {
    fn from(limit: Limit) -> Self {
        limit.0.map_or(0, NonZeroU32::get)
    }
}

/// One claim as the store keeps it, waiting or holding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The claim.
    pub id: ClaimId,
    /// Its limit.
    pub limit: Limit,
    /// Whether a process stands behind it, that hears of a condemnation and stops its command.
    pub process: bool,
    /// The key's number when it was granted (the fencing token where the limit is exclusive); 0 while it waits.
    pub number: u64,
    /// Since when it holds or, in the queue, waits.
    pub since_ms: u64,
    /// When its lease or, in the queue, its heartbeat runs out.
    pub until_ms: u64,
    /// The lease it asks for.
    pub ttl_ms: u64,
    /// Who it is, for people. The rule does not look into it.
    pub record: String,
}

/// A trace that a claim leaves, so that a late message revives nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The claim.
    pub id: ClaimId,
    /// How long the trace stands.
    pub until_ms: u64,
    /// A condemned claim can renew no more; a dropped one (a tombstone) is gone for good.
    pub condemned: bool,
}

/// Everything a store keeps of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The last number given. It only grows.
    pub number: u64,
    /// Those who hold.
    pub holders: Vec<Entry>,
    /// Those who wait, oldest first.
    pub queue: Vec<Entry>,
    /// Tombstones and condemned marks.
    pub traces: Vec<Trace>,
}

/// What an ask says.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The claim.
    pub id: ClaimId,
    /// Its limit.
    pub limit: Limit,
    /// The lease it wants.
    pub ttl_ms: u64,
    /// Whether a process stands behind it.
    pub process: bool,
    /// Whether it queues when it cannot hold at once.
    pub wait: bool,
    /// Who it is, for people.
    pub record: String,
}

/// The answer to an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds, with this number, and its lease has this much left.
    Granted {
        /// The key's number at the grant.
        number: u64,
        /// What is left of the lease.
        left_ms: u64,
    },
    /// It waits.
    Waiting {
        /// 1 for the head of the queue.
        position: usize,
        /// When the next holder's lease runs out, if nothing else happens; none where the key is held without end.
        lapse_ms: Option<u64>,
        /// Those who hold; empty where what holds the key is not rlock's.
        holders: Vec<Entry>,
    },
    /// It neither holds nor waits.
    Busy {
        /// Those who hold; empty where what holds the key is not rlock's, or where only waiters are in the way.
        holders: Vec<Entry>,
    },
    /// Somebody removed this claim.
    Gone,
}

/// What a renewal says.
#[derive(Clone, Debug)]
pub struct Renew {
    /// The claim.
    pub id: ClaimId,
    /// Its limit, should it have to be taken again.
    pub limit: Limit,
    /// The lease it wants.
    pub ttl_ms: u64,
    /// Whether a process stands behind it; once said, it stays so.
    pub process: bool,
    /// Its number, with which it may be taken again; an adopter gives none.
    pub number: Option<u64>,
    /// Who it is, should it have to be taken again.
    pub record: String,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease has this much left.
    Renewed {
        /// What is left of the lease.
        left_ms: u64,
        /// The store did not know the claim and has taken it again.
        restored: bool,
    },
    /// The claim was condemned; its lease goes on to its end and no further.
    Condemned,
    /// The claim holds no more.
    Gone,
}

/// The answer to a drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It held.
    Held(Box<Entry>),
    /// It waited.
    Waited(Box<Entry>),
    /// The store did not know it.
    Unknown,
}

/// The answer to a condemnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condemnation {
    /// It holds; its lease ends in `left_ms` at the latest.
    Marked {
        /// What is left of the lease.
        left_ms: u64,
    },
    /// No process stood behind it, or it only waited: it was dropped at once.
    Dropped,
    /// The store does not know it just now; the mark stands all the same.
    Unknown,
}

/// Something that an operation brought about, for the log and for wake-ups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub what: What,
    /// To whom.
    pub entry: Entry,
}

/// The kinds of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Granted by its own ask.
    Acquired,
    /// Granted by somebody else's operation: to be woken.
    Served,
    /// Dropped, or finished: its entry then has the end it was given.
    Released,
    /// Taken again by a renewal.
    Restored,
    /// The lease ran out.
    Lost,
    /// Condemned: to be woken.
    Condemned,
}

impl State {
    /// The operations on this state at `now_us`, microseconds of the store's clock.
    pub fn at(&mut self, now_us: u64) -> Step<'_> {
        Step { state: self, now_us, events: Vec::new() }
    }
}

/// One operation at one instant, and what it brought about.
pub struct Step<'a> {
    state: &'a mut State,
    now_us: u64,
    /// What happened, in order.
    pub events: Vec<Event>,
}

impl Step<'_> {
    fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    /// Asks for the key: the first ask, the retry, the refresh and the confirmation of a grant.
    pub fn ask(&mut self, ask: &Ask) -> Answer {
        self.serve();
        if self.trace(ask.id).is_some() {
            return Answer::Gone;
        }
        let now = self.now_ms();
        if let Some(at) = self.holding(ask.id) {
            let held = &mut self.state.holders[at];
            held.until_ms = held.until_ms.max(now + ask.ttl_ms);
            held.ttl_ms = ask.ttl_ms;
            return Answer::Granted { number: held.number, left_ms: held.until_ms - now };
        }
        let entry = Entry {
            id: ask.id,
            limit: ask.limit,
            process: ask.process,
            number: 0,
            since_ms: now,
            until_ms: now + HEARTBEAT_MS,
            ttl_ms: ask.ttl_ms,
            record: ask.record.clone(),
        };
        let place = self.waiting(ask.id);
        if place.is_none() && self.state.queue.is_empty() && self.may_hold(ask.limit) {
            let number = self.grant(entry, ask.ttl_ms, What::Acquired);
            return Answer::Granted { number, left_ms: ask.ttl_ms };
        }
        if !ask.wait {
            if let Some(at) = place {
                self.state.queue.remove(at);
                self.serve();
            }
            return Answer::Busy { holders: self.state.holders.clone() };
        }
        let at = place.unwrap_or_else(|| {
            self.state.queue.push(entry);
            self.state.queue.len() - 1
        });
        self.state.queue[at].until_ms = now + HEARTBEAT_MS;
        Answer::Waiting {
            position: at + 1,
            lapse_ms: self.state.holders.iter().map(|held| held.until_ms - now).min(),
            holders: self.state.holders.clone(),
        }
    }

    /// Extends a lease, never shortens it. A claim that the store does not know is taken again with its number if it
    /// may hold at once, nobody waits, and no later number was given.
    pub fn renew(&mut self, renew: &Renew) -> Renewal {
        self.serve();
        match self.trace(renew.id) {
            Some(trace) if trace.condemned => return Renewal::Condemned,
            Some(_) => return Renewal::Gone,
            None => {}
        }
        let now = self.now_ms();
        if let Some(at) = self.holding(renew.id) {
            let held = &mut self.state.holders[at];
            held.until_ms = held.until_ms.max(now + renew.ttl_ms);
            held.process |= renew.process;
            return Renewal::Renewed { left_ms: held.until_ms - now, restored: false };
        }
        let Some(number) = renew.number.filter(|number| *number >= self.state.number) else {
            return Renewal::Gone;
        };
        if !self.state.queue.is_empty() || !self.may_hold(renew.limit) {
            return Renewal::Gone;
        }
        let entry = Entry {
            id: renew.id,
            limit: renew.limit,
            process: renew.process,
            number,
            since_ms: now,
            until_ms: now + renew.ttl_ms,
            ttl_ms: renew.ttl_ms,
            record: renew.record.clone(),
        };
        self.state.number = number;
        self.happened(What::Restored, entry.clone());
        self.state.holders.push(entry);
        Renewal::Renewed { left_ms: renew.ttl_ms, restored: true }
    }

    /// Releases, leaves the queue, removes. `ttl_ms` is the lease that a late message of this claim could still take.
    pub fn drop_claim(&mut self, id: ClaimId, ttl_ms: u64) -> Dropped {
        self.serve();
        let dropped = self.remove(id, ttl_ms);
        self.serve();
        dropped
    }

    /// A holder's last word: its lease ends in `left_ms`, and nobody renews it. On a condemned claim it is a drop.
    pub fn finish(&mut self, id: ClaimId, left_ms: u64, ttl_ms: u64) -> Renewal {
        self.serve();
        let condemned = self.trace(id).map(|trace| trace.condemned);
        let place = self.holding(id).filter(|_| condemned != Some(true));
        let Some(at) = place else {
            self.remove(id, ttl_ms);
            self.serve();
            return if condemned == Some(true) { Renewal::Condemned } else { Renewal::Gone };
        };
        let mut end = self.now_ms() + left_ms;
        let held = &mut self.state.holders[at];
        // A holder with a tombstone has said its last word before: the answer was lost, or this one is late.
        let repeated = condemned.is_some();
        if repeated {
            end = end.min(held.until_ms);
        }
        let stands = held.until_ms.max(end) + TOMBSTONE_MS;
        held.until_ms = end;
        held.process = false;
        let held = held.clone();
        if !repeated {
            self.happened(What::Released, held);
        }
        self.mark(id, stands, false);
        self.serve();
        Renewal::Renewed { left_ms: end - self.now_ms(), restored: false }
    }

    /// Marks a claim: it can renew no more. `ttl_ms` is the lease it was seen with.
    pub fn condemn(&mut self, id: ClaimId, ttl_ms: u64) -> Condemnation {
        self.serve();
        let now = self.now_ms();
        let answer = match self.holding(id) {
            Some(at) if self.state.holders[at].process => {
                let held = self.state.holders[at].clone();
                let left_ms = held.until_ms - now;
                self.mark(id, held.until_ms + TOMBSTONE_MS, true);
                self.happened(What::Condemned, held);
                Condemnation::Marked { left_ms }
            }
            None if self.waiting(id).is_none() => {
                self.mark(id, now + ttl_ms + TOMBSTONE_MS, true);
                Condemnation::Unknown
            }
            _ => {
                self.remove(id, ttl_ms);
                Condemnation::Dropped
            }
        };
        self.serve();
        answer
    }

    /// Drops what has run out and, while the first waiter may hold, gives it the key for the grant window.
    pub fn serve(&mut self) {
        let now = self.now_ms();
        self.state.traces.retain(|trace| trace.until_ms > now);
        while let Some(at) = self.state.holders.iter().position(|held| held.until_ms <= now) {
            let held = self.state.holders.remove(at);
            let finished = self.trace(held.id).is_some_and(|trace| !trace.condemned);
            if !finished {
                self.happened(What::Lost, held);
            }
        }
        while let Some(head) = self.state.queue.first() {
            if head.until_ms <= now {
                self.state.queue.remove(0);
            } else if self.may_hold(head.limit) {
                let head = self.state.queue.remove(0);
                let window = head.ttl_ms.min(WINDOW_MS);
                self.grant(head, window, What::Served);
            } else {
                break;
            }
        }
    }

    /// The holders and the claim together are no more than its limit, nor than any holder's.
    fn may_hold(&self, limit: Limit) -> bool {
        let holders = &self.state.holders;
        let together = holders.len() + 1;
        limit.allows(together) && holders.iter().all(|held| held.limit.allows(together))
    }

    /// An exclusive grant raises the key's number; others carry the current one. The floor of the store's clock in
    /// microseconds lets numbers grow over a loss of the counter.
    fn grant(&mut self, mut entry: Entry, lease_ms: u64, what: What) -> u64 {
        if entry.limit.is_exclusive() {
            self.state.number = (self.state.number + 1).max(self.now_us);
        }
        entry.number = self.state.number;
        // The log tells how long it waited, so the event still has the start of the wait.
        self.happened(what, entry.clone());
        entry.since_ms = self.now_ms();
        entry.until_ms = self.now_ms() + lease_ms;
        self.state.holders.push(entry);
        self.state.number
    }

    fn remove(&mut self, id: ClaimId, ttl_ms: u64) -> Dropped {
        let mut end = self.now_ms() + ttl_ms;
        let dropped = if let Some(at) = self.holding(id) {
            let held = self.state.holders.remove(at);
            end = end.max(held.until_ms);
            self.happened(What::Released, held.clone());
            Dropped::Held(Box::new(held))
        } else if let Some(at) = self.waiting(id) {
            Dropped::Waited(Box::new(self.state.queue.remove(at)))
        } else {
            Dropped::Unknown
        };
        self.mark(id, end + TOMBSTONE_MS, false);
        dropped
    }

    /// A tombstone outranks a condemned mark and is never taken back.
    fn mark(&mut self, id: ClaimId, until_ms: u64, condemned: bool) {
        if let Some(trace) = self.state.traces.iter_mut().find(|trace| trace.id == id) {
            trace.until_ms = trace.until_ms.max(until_ms);
            trace.condemned &= condemned;
        } else {
            self.state.traces.push(Trace { id, until_ms, condemned });
        }
    }

    fn trace(&self, id: ClaimId) -> Option<&Trace> {
        self.state.traces.iter().find(|trace| trace.id == id)
    }

    fn holding(&self, id: ClaimId) -> Option<usize> {
        self.state.holders.iter().position(|held| held.id == id)
    }

    fn waiting(&self, id: ClaimId) -> Option<usize> {
        self.state.queue.iter().position(|waiter| waiter.id == id)
    }

    fn happened(&mut self, what: What, entry: Entry) {
        self.events.push(Event { what, entry });
    }
}
