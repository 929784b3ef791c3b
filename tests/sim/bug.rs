//! Bugs that are put into the simulated parts on purpose. Each must be caught, and soon.

use crate::plan::Plan;
use crate::seeds::play;

/// Within so many seeds.
const SOON: u64 = 1000;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The deadline counts from the answer instead of from the request.
    DeadlineFromReply,
    /// A request without an answer moves the deadline.
    DeadlineFromUnanswered,
    /// After its drop the id asks once more.
    IdUsedAgain,
    /// A wait ends without its drop.
    NoDrop,
    /// A release frees the key whoever holds it.
    ReleaseOfAnybody,
    /// Signals go to the command's first process alone.
    SignalToOnePid,
    /// Without a keeper only rlock ends the command.
    NoKeeper,
    /// A waiter counts for ever.
    HeartbeatIgnored,
    /// A renewal follows the release.
    RenewAfterRelease,
    /// Nobody is called, and nobody looks by himself.
    NoWakeUp,
    /// A drop leaves no trace.
    NoTombstone,
}

/// What each must be caught by: a part of the law's words.
const CAUGHT_BY: [(Bug, &str); 11] = [
    (Bug::DeadlineFromReply, "goes by a deadline that is later than its lease"),
    (Bug::DeadlineFromUnanswered, "goes by a deadline that is later than its lease"),
    (Bug::IdUsedAgain, "uses its id after its drop"),
    (Bug::NoDrop, "got the key although its run is over"),
    (Bug::ReleaseOfAnybody, "was removed by Drop"),
    (Bug::SignalToOnePid, "runs and its lease has passed"),
    (Bug::NoKeeper, "died after its lease"),
    (Bug::HeartbeatIgnored, "was free"),
    (Bug::RenewAfterRelease, "uses its id after its drop"),
    (Bug::NoWakeUp, "was free"),
    (Bug::NoTombstone, "got the key although its run is over"),
];

#[test]
fn every_bug_is_caught() {
    for (bug, law) in CAUGHT_BY {
        let caught = (0..SOON / 50).find_map(|part| {
            let (_, broken) = play(part * 50, 50, Some(bug), Plan::of);
            broken.into_iter().find(|one| one.law.contains(law))
        });
        let caught = caught.unwrap_or_else(|| panic!("{bug:?} was not caught by \"{law}\" in {SOON} seeds"));
        println!("{bug:?}: seed {} {}", caught.seed, caught.law);
    }
}
