//! The lines of `run` about its lease, its command and its store.

use std::time::Duration;

use super::inspect_hint;
use super::lines::{by, is_local, key};
use crate::child::{Left, Why};
use crate::claim::Entry;
use crate::lease::{Loss, OnLost};
use crate::store::{Look, Trouble};
use crate::text::{short, shown};
use crate::timing;

/// How many processes are named.
const MOST_NAMED: usize = 5;

/// That the lease is lost, why, and what becomes of the command; `on_lost` is none where it was not started. `trouble` is
/// why the last renewal failed, `seen` what held the key then.
pub fn lost(name: &str, loss: Loss, trouble: Option<&str>, seen: Option<&Look>, on_lost: Option<OnLost>) -> String {
    let why = match loss {
        Loss::Late => format!("not renewed in time ({})", trouble.unwrap_or("this process did not get to run")),
        Loss::Condemned => "force-release asks for it".into(),
        Loss::Gone => match seen {
            Some(Look { foreign: Some(foreign), .. }) => format!("the key is now {}", shown(&foreign.what, 120)),
            Some(look) if !look.holders.is_empty() => format!("the key is now {}", by(&look.holders, look.now_ms)),
            _ => "the store no longer knows this claim".into(),
        },
    };
    let then = match on_lost {
        None => "not run",
        Some(OnLost::Terminate) => "the command is stopped",
        Some(OnLost::Kill) => "the command is killed",
        Some(OnLost::Warn) => "the command runs on without it (--on-lost warn)",
    };
    format!("`{}`: the lease is lost: {why}; {then} ({})", key(name), inspect_hint(name))
}

/// That a wait could never end, since the holder waits for it.
pub fn hopeless(name: &str, around: &Entry) -> String {
    let claim = around.id;
    format!(
        "`{}` is held by the rlock around this one (claim {claim}), which waits for it to end; not run: \
         take the lock once, outside, or use another key",
        key(name)
    )
}

/// That the keeper is gone, and what becomes of the command.
pub fn keeper_gone(name: &str, has_started: bool) -> String {
    let then = if has_started { "the command is killed with it" } else { "not run, run it again" };
    format!("`{}`: the keeper, the process that guards the command, was killed; {then}", key(name))
}

/// That rlock stops with its command, and how long the lease lasts.
pub fn stopped(name: &str, left: Option<Duration>) -> String {
    match left {
        Some(left) => {
            format!("`{}`: stopped; the lease ends in {}, and the command before it", key(name), short(left))
        }
        None => format!(
            "waiting for `{}`: stopped; the place in the queue lapses in {}",
            key(name),
            short(timing::HEARTBEAT)
        ),
    }
}

/// That a waiter was removed.
pub fn removed(name: &str) -> String {
    format!(
        "`{}`: somebody removed this run from the queue (force-release); not run ({})",
        key(name),
        inspect_hint(name)
    )
}

/// That a store gave no answer of use for so long; `last` is the last trouble with it, which names it.
pub fn silent(after: Duration, last: &Trouble) -> String {
    let text = last.to_string();
    let then = match last {
        Trouble::Os(_) => "",
        _ if is_local(&text) => "",
        Trouble::Later(_) => ": see to the server",
        _ => ": see whether the server is up and can be reached",
    };
    format!("{text}; tried for {}, not run{then}", short(after))
}

/// That a renewal failed.
pub fn not_renewed(name: &str, why: &str) -> String {
    format!("`{}`: not renewed just now: {why}", key(name))
}

/// That rlock's own thread is gone, and whether it had the key by then.
pub fn thread_gone(name: &str, holds: bool) -> String {
    if !holds {
        return format!("`{}`: rlock can no longer ask for it; not run", key(name));
    }
    format!("`{}`: rlock can no longer renew the lease; it ends by itself, and the command before it", key(name))
}

/// That a claim was taken again.
pub fn restored(name: &str) -> String {
    format!("`{}`: the store had lost the lock, and it was taken again with its token", key(name))
}

/// That a store's clock was set, by so many milliseconds.
pub fn clock_jumped(name: &str, store: &str, ms: i64) -> String {
    let by = short(Duration::from_millis(ms.unsigned_abs()));
    let (which, then) = if ms > 0 {
        ("forward", "leases end sooner than their holders count, and another may hold the key")
    } else {
        ("back", "leases end later than they should")
    };
    format!("`{}`: the clock of {store} was set {which} by at least {by}: {then}; see to its time service", key(name))
}

/// That a ttl is too short for a store.
pub fn short_ttl(ttl: Duration, round_trip: Duration) -> String {
    format!(
        "--ttl {} is short for a store whose answers take {}; give {} or more",
        short(ttl),
        short(round_trip),
        short(round_trip.saturating_mul(100))
    )
}

/// That the command has run as long as it may.
pub fn overran(name: &str, most: Duration, signal: &str, grace: Duration) -> String {
    format!(
        "`{}`: the command has run for {} (--max-runtime); it gets {signal}, and KILL after {}",
        key(name),
        short(most),
        short(grace)
    )
}

/// That the lock is asked for only after a random delay.
pub fn delayed(name: &str, delay: Duration) -> String {
    format!("`{}`: asking for it in {} (--jitter)", key(name), short(delay))
}

/// That a lock could not be kept.
pub fn not_kept(name: &str, why: &str, left: Duration) -> String {
    format!(
        "`{}`: not kept as --hold-at-least asks ({why}); the lease ends by itself within {}",
        key(name),
        short(left)
    )
}

/// That processes could not be stopped.
pub fn cannot_stop(left: &[Left]) -> String {
    let named = left.iter().take(MOST_NAMED).map(|left| {
        let why = match left.why {
            Why::NotPermitted => "not ours to signal",
            Why::NotDead => "does not die",
        };
        format!("pid {} ({}, {why})", left.pid, shown(&left.comm, 32))
    });
    let named: Vec<String> = named.collect();
    let more = left.len().saturating_sub(MOST_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("cannot stop {}{more}; see to it by hand, and run rlock as a user who may", named.join(", "))
}

/// That the lock was lost unnoticed before the command's end.
pub fn was_not_ours(name: &str, was_to_be_kept: bool) -> String {
    let not_kept = if was_to_be_kept { ", and it is not kept as --hold-at-least asks" } else { "" };
    format!(
        "`{}`: when the command ended the lock was no longer held; another may have run{not_kept} ({})",
        key(name),
        inspect_hint(name)
    )
}

/// That a release failed.
pub fn unreleased(name: &str, why: &str, left: Duration) -> String {
    format!("`{}`: not released ({why}); the lease ends by itself within {}", key(name), short(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_says_why_and_what_follows() {
        let line = lost("job", Loss::Late, Some("no answer"), None, Some(OnLost::Terminate));
        assert_eq!(
            line,
            "`job`: the lease is lost: not renewed in time (no answer); the command is stopped (see: rlock inspect job)"
        );
        assert!(lost("job", Loss::Condemned, None, None, Some(OnLost::Kill)).contains("force-release"));
        let gone = lost("job", Loss::Gone, None, Some(&Look::default()), Some(OnLost::Warn));
        assert!(gone.contains("no longer knows this claim") && gone.contains("runs on"), "{gone}");
    }

    #[test]
    fn those_that_stay_are_named_and_counted() {
        let left = |pid| Left { pid, comm: "x\u{1b}y".into(), why: Why::NotPermitted };
        let line = cannot_stop(&(1..=7).map(left).collect::<Vec<_>>());
        assert!(line.starts_with(r"cannot stop pid 1 (x\x1by, not ours to signal), pid 2 "), "{line}");
        assert!(line.contains("and 2 more"), "{line}");
    }
}
