//! What is kept of a key, and what the kernel knows of it better.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::pulse::Pulses;
use crate::claim::{ClaimId, Entry, State};
use crate::clock::Boot;
use crate::timing;

/// The greatest number in a record: as far as every language counts exactly.
const GREATEST: u64 = (1 << 53) - 1;

/// What is kept of a key.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    /// The boot that its times belong to.
    pub(super) boot: String,
    pub(super) key: String,
    /// The wall clock, in microseconds, when this boot's `CLOCK_BOOTTIME` was zero, as it seemed to be when the record
    /// was begun.
    pub(super) origin_us: u64,
    pub(super) state: State,
}

impl Saved {
    pub(super) fn new(boot: &str, key: &str, number: u64) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin = wall.saturating_sub(Boot::now().since_boot());
        let state = State { number, ..State::default() };
        Self { boot: boot.to_owned(), key: key.to_owned(), origin_us: us(origin), state }
    }

    /// Whether every number is one that rlock could have written: then no sum of two runs over.
    pub(super) fn is_sane(&self) -> bool {
        let State { number, holders, queue, traces } = &self.state;
        let entries = holders.iter().chain(queue);
        let entries = entries.flat_map(|entry| [entry.number, entry.since_ms, entry.until_ms, entry.ttl_ms]);
        let all = entries.chain(traces.iter().map(|trace| trace.until_ms)).chain([*number, self.origin_us]);
        all.max().is_some_and(|greatest| greatest <= GREATEST)
    }

    pub(super) fn now_us(&self) -> u64 {
        self.origin_us + us(Boot::now().since_boot())
    }

    /// Ends the leases of holders whose processes are dead, and takes dead waiters out of the queue: those at its head,
    /// up to the first that lives, and those right before `asker`, which watches the nearest that lives. Who was buried.
    pub(super) fn bury(&mut self, pulses: &Pulses, asker: Option<ClaimId>) -> Vec<ClaimId> {
        let now_ms = self.now_us() / 1000;
        let is_dead = |entry: &Entry| entry.process && pulses.is_dead(entry.id);
        let mut buried = Vec::new();
        for held in self.state.holders.iter_mut().filter(|held| is_dead(held)) {
            held.until_ms = held.until_ms.min(now_ms);
            buried.push(held.id);
        }
        let queue = &mut self.state.queue;
        while queue.first().is_some_and(is_dead) {
            buried.push(queue.remove(0).id);
        }
        let place = asker.and_then(|asker| queue.iter().position(|waiter| waiter.id == asker)).unwrap_or(queue.len());
        let mut before = if asker.is_some() { place } else { 0 };
        while before > 0 && is_dead(&queue[before - 1]) {
            before -= 1;
            buried.push(queue.remove(before).id);
        }
        buried
    }

    /// Takes back the tombstone of a claim whose last message was answered. With those of a minute and a ttl, a key
    /// that is taken often had a record of hundreds of KiB, which every operation reads and writes.
    pub(super) fn forget(&mut self, id: ClaimId) {
        let holds = self.state.holders.iter().any(|held| held.id == id);
        self.state.traces.retain(|trace| trace.id != id || holds);
    }

    /// Whether nothing is left that anybody could miss but the number, which the clock stands in for: not for one that
    /// was given just now, since the wall clock may have been set back a little since this record was begun.
    pub(super) fn is_idle(&self) -> bool {
        let State { number, holders, queue, traces } = &self.state;
        let is_old = number.saturating_add(us(timing::TOMBSTONE)) < self.now_us();
        holders.is_empty() && queue.is_empty() && traces.is_empty() && is_old
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
