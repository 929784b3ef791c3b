//! What must be true of any one operation of the rule, judged from the state before and after it.

use rlock::claim::{ClaimId, Entry, State, Trace};

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Deed {
    /// Asked; whether the claim would queue.
    Ask(bool),
    Renew,
    Drop,
    /// A last word; what is left then.
    Finish(u64),
    Condemn,
}

/// Which law `deed` of `by` at `now_ms` broke, if any.
pub(crate) fn broken(old: &State, new: &State, deed: Deed, by: ClaimId, now_ms: u64) -> Option<&'static str> {
    let laws: [(&'static str, bool); 10] = [
        ("more hold than a limit allows", limits_hold(new)),
        ("a claim stands twice", all_different(new)),
        ("a head that could be granted is left", head_is_blocked(new, now_ms)),
        ("a holder was removed", holders_stay(old, new, deed, by, now_ms)),
        ("a waiter was removed", waiters_stay(old, new, deed, by, now_ms)),
        ("a waiter was passed", order_is_kept(old, new, by)),
        ("a lease was shortened", leases_grow(old, new, deed, by)),
        ("the number fell, was given twice or raised in vain", numbers_grow(old, new, deed, by)),
        ("a trace was lost or ignored", traces_stand(old, new, now_ms)),
        ("no trace was left, or too short a one", traces_are_left(old, new, deed, by, now_ms)),
    ];
    laws.into_iter().find(|(_, kept)| !kept).map(|(law, _)| law)
}

/// The limit as a count; no limit is the greatest.
fn most(entry: &Entry) -> usize {
    match u32::from(entry.limit) {
        0 => usize::MAX,
        limit => limit as usize,
    }
}

fn find(entries: &[Entry], id: ClaimId) -> Option<&Entry> {
    entries.iter().find(|entry| entry.id == id)
}

fn trace(state: &State, id: ClaimId) -> Option<&Trace> {
    state.traces.iter().find(|trace| trace.id == id)
}

fn limits_hold(new: &State) -> bool {
    new.holders.iter().all(|held| new.holders.len() <= most(held))
}

fn all_different(new: &State) -> bool {
    let mut ids: Vec<_> = new.holders.iter().chain(&new.queue).map(|entry| entry.id).collect();
    ids.sort();
    ids.windows(2).all(|pair| pair[0] != pair[1])
}

fn head_is_blocked(new: &State, now_ms: u64) -> bool {
    let none_lapsed = new.holders.iter().all(|held| held.until_ms > now_ms);
    let together = new.holders.len() + 1;
    none_lapsed
        && new.queue.first().is_none_or(|head| {
            head.until_ms > now_ms && (together > most(head) || new.holders.iter().any(|held| together > most(held)))
        })
}

fn holders_stay(old: &State, new: &State, deed: Deed, by: ClaimId, now_ms: u64) -> bool {
    old.holders.iter().all(|held| {
        let own = held.id == by
            && match deed {
                Deed::Drop => true,
                Deed::Finish(left_ms) => left_ms == 0 || trace(old, by).is_some_and(|before| before.condemned),
                Deed::Condemn => !held.process,
                Deed::Ask(_) | Deed::Renew => false,
            };
        held.until_ms <= now_ms || own || find(&new.holders, held.id).is_some()
    })
}

fn waiters_stay(old: &State, new: &State, deed: Deed, by: ClaimId, now_ms: u64) -> bool {
    old.queue.iter().all(|waiter| {
        let own = waiter.id == by && !matches!(deed, Deed::Ask(true) | Deed::Renew);
        let stands = find(&new.queue, waiter.id).or_else(|| find(&new.holders, waiter.id)).is_some();
        waiter.until_ms <= now_ms || own || stands
    })
}

/// Who still waits does so in the order before, newcomers at the tail; who was served stood before all who still
/// wait; who had no place and holds now passed nobody.
fn order_is_kept(old: &State, new: &State, by: ClaimId) -> bool {
    // Whoever lost its place and queues again is a newcomer.
    let stood = |entry: &Entry| old.queue.iter().position(|old| old.id == entry.id && old.since_ms == entry.since_ms);
    let places: Vec<_> = new.queue.iter().map(|waiter| stood(waiter).unwrap_or(usize::MAX)).collect();
    let newcomers = places.iter().filter(|place| **place == usize::MAX).count();
    let in_order = newcomers <= 1 && places.windows(2).all(|pair| pair[0] < pair[1]);
    let arrived = new.holders.iter().filter(|held| find(&old.holders, held.id).is_none());
    let none_passed = arrived.into_iter().all(|held| match old.queue.iter().position(|waiter| waiter.id == held.id) {
        Some(served) => places.iter().all(|waiting| served < *waiting),
        None => held.id == by && new.queue.is_empty(),
    });
    in_order && none_passed
}

fn leases_grow(old: &State, new: &State, deed: Deed, by: ClaimId) -> bool {
    old.holders.iter().all(|before| {
        let Some(after) = find(&new.holders, before.id) else { return true };
        let granted_anew = after.since_ms > before.since_ms;
        let finished = matches!(deed, Deed::Finish(_)) && before.id == by;
        let same = after.until_ms == before.until_ms;
        let grown = after.until_ms > before.until_ms && trace(old, before.id).is_none();
        granted_anew || finished || same || grown
    })
}

fn numbers_grow(old: &State, new: &State, deed: Deed, by: ClaimId) -> bool {
    let mut arrived = new.holders.iter().filter(|held| find(&old.holders, held.id).is_none());
    let kept = old.holders.iter().all(|before| {
        find(&new.holders, before.id)
            .is_none_or(|after| after.number == before.number || after.since_ms > before.since_ms)
    });
    // The claim that was granted it may have been removed by the same deed.
    let own = deed == Deed::Renew || find(&old.queue, by).is_some_and(|waiter| waiter.limit.is_exclusive());
    let exclusive = |held: &Entry| held.limit.is_exclusive() && held.number == new.number;
    let due = new.number == old.number || own || new.holders.iter().any(exclusive);
    let given = arrived.all(|held| match deed {
        Deed::Renew => held.number >= old.number,
        _ if held.limit.is_exclusive() => held.number > old.number && held.number == new.number,
        _ => held.number <= new.number,
    });
    new.number >= old.number && kept && given && due
}

/// A trace stands to its end and keeps its claim out; a tombstone is never taken back.
fn traces_stand(old: &State, new: &State, now_ms: u64) -> bool {
    let stand = old.traces.iter().filter(|before| before.until_ms > now_ms).all(|before| {
        trace(new, before.id)
            .is_some_and(|after| after.until_ms >= before.until_ms && (before.condemned || !after.condemned))
    });
    let out = new.queue.iter().all(|waiter| trace(new, waiter.id).is_none());
    let kept_out = |id| trace(old, id).is_some_and(|before| before.until_ms > now_ms);
    let held = new.holders.iter().all(|held| !kept_out(held.id) || find(&old.holders, held.id).is_some());
    stand && out && held
}

/// What removes or ends a claim leaves a trace that outlives the lease by a minute, as far as it is known.
fn traces_are_left(old: &State, new: &State, deed: Deed, by: ClaimId, now_ms: u64) -> bool {
    let lease = find(&old.holders, by).map_or(0, |held| held.until_ms).max(now_ms);
    let left = trace(new, by).is_some_and(|after| after.until_ms >= lease + 60_000);
    let tombstone = left && trace(new, by).is_some_and(|after| !after.condemned);
    match deed {
        Deed::Drop | Deed::Finish(_) => tombstone,
        Deed::Condemn => left,
        Deed::Ask(_) | Deed::Renew => true,
    }
}
