//! What the constants of `timing.rs` cost and bring, measured: leases that are lost needlessly, the time from one
//! holder to the next, and places that are lost in the queue. `RLOCK_MEASURE=n cargo test --test sim measure --
//! --nocapture` measures the constants as they are; `tests/sim/tune.sh` measures others beside them and printed what
//! follows (`tune.sh 6`).
//!
//! # The lease
//!
//! Needless losses in 1,000 h of holding (600 h were held), for a ttl and a share of lost messages. A lost message is a
//! connection that is silent from then on. The halting server freezes every two minutes, half the time for less than a
//! second, one time in four for more than two, which is more than a ttl of 5 s endures for certain.
//!
//! | | 30 s, 10 % lost | 5 s, 5 % | 2 s, 5 % | 5 s, 1 %, halting server | requests a minute |
//! |---|---|---|---|---|---|
//! | as it is | 50 | 2 | 29 | 5168 | 74 |
//! | renew every ttl/2 | 604 | 172 | 425 | 6734 | 50 |
//! | renew every ttl/4 | 19 | 0 | 12 | 4543 | 97 |
//! | renew every ttl/5 | 8 | 2 | 2 | 4392 | 121 |
//! | grace ttl/10 | 8 | 2 | 5 | 3966 | 74 |
//! | grace ttl/4 | 50 | 30 | 129 | 6161 | 74 |
//! | try ttl/30 | 0 | 0 | 0 | 4946 | 76 |
//! | try ttl/8 | 50 | 1510 | 3371 | 5158 | 72 |
//! | try ttl/5 | 8220 | 7001 | 19190 | 5409 | 72 |
//! | longest try 1 s | 0 | 2 | 29 | 5168 | 74 |
//!
//! Renewing every ttl/2 loses ten times as many; ttl/4 and ttl/5 win little for a third and two thirds more requests.
//! Half the grace would save a few more, and is what a command has to end cleanly. A try of ttl/8 leaves too few tries
//! before the signal. One of ttl/30, or of 1 s, would do better here, and worse on a real line: a first packet that is
//! lost is sent again after a second (RFC 6298, 2.1), which a try of 2 s lives to see and one of 1 s does not. The
//! pause after a failed try, 10 to 200 ms, makes no difference.
//!
//! # The queue
//!
//! A hundred waiters for one key, one in twenty of whom dies (round trip 0.4 ms): the mean time of a hand-over and the
//! longest that the key was free, dead waiters' windows included; the requests for each command, asks and waits of the
//! whole queue included; and how many of 2,300 lost their place although they lived, in the last column where every
//! second one does not get to run once, for a second in the middle.
//!
//! | | hand-over, 1 % lost | 5 % | longest idle | requests a command | places lost | the same with pauses |
//! |---|---|---|---|---|---|---|
//! | as it is | 94 ms | 187 ms | 4.2 s | 32 | 1 | 12 |
//! | waiter's try window/10 | 73 ms | 127 ms | 5.7 s | 32 | 0 | 9 |
//! | waiter's try window/2 | 132 ms | 429 ms | 7.0 s | 38 | 20 | 12 |
//! | window 1.5 s | 44 ms | 126 ms | 2.0 s | 34 | 15 | 57 |
//! | window 2 s | 62 ms | 152 ms | 2.4 s | 27 | 0 | 19 |
//! | window 5 s | 128 ms | 272 ms | 7.0 s | 39 | 0 | 2 |
//! | refresh 0.5 s for all | 82 ms | 176 ms | 6.0 s | 80 | 0 | 11 |
//! | refresh 1 s for all | 89 ms | 191 ms | 3.6 s | 40 | 0 | 11 |
//! | refresh 2 s for all | 120 ms | 231 ms | 3.6 s | 30 | 2 | 11 |
//! | refresh up to 2.5 s | 92 ms | 214 ms | 3.6 s | 29 | 1 | 9 |
//! | refresh up to 5 s | 78 ms | 201 ms | 3.1 s | 27 | 2 | 9 |
//! | heartbeat 5 s | 75 ms | 174 ms | 4.2 s | 30 | 1 | 19 |
//! | heartbeat 20 s | 104 ms | 222 ms | 4.2 s | 32 | 1 | 12 |
//!
//! A window of 2 s costs half as many places more by pauses, one of 5 s a third more time for the dead. Who asks again
//! every half second sends more than twice the requests and is not faster; every 2 s loses places with a wake-up that
//! is lost. A heartbeat of 5 s takes places from who was paused, one of 20 s keeps the dead longer and lets the next
//! one wait for up to 24 s instead of 14. A waiter's try of window/2 eats the window; window/10 would do better here,
//! and breaks every waiter's connection when a server halts for a third of a second, as it does to write its data out.

use crate::checker::Counts;
use crate::clock::seconds;
use crate::plan::Plan;
use crate::seeds::{Broken, given, play};

fn of(seeds: u64, plan: impl Fn(u64) -> Plan + Sync) -> Counts {
    let (counts, broken) = play(0, seeds, None, plan);
    let first = broken.first().map(|Broken { seed, law, .. }| format!("seed {seed}: {law}"));
    assert_eq!(first, None);
    counts
}

fn many(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("a count"))
}

fn hours(counts: &Counts) -> f64 {
    seconds(counts.held_ns) / 3600.0
}

/// A line that loses one message in fifty loses no lease of 30 s.
#[test]
fn measure_needless_losses() {
    let more = given("RLOCK_MEASURE");
    println!("ttl, lost messages, losses in 1,000 h, the same with a server that halts, requests a minute");
    for ttl in [30, 5, 2] {
        for percent in [1, 2, 5] {
            if more.is_none() && (ttl, percent) != (30, 2) {
                continue;
            }
            let seeds = 5 * more.unwrap_or(1);
            let steady = of(seeds, |seed| Plan::steady(seed, ttl, percent * 10_000));
            let halting = of(seeds, |seed| Plan::halting(seed, ttl, percent * 10_000));
            let rate = |counts: &Counts| many(counts.late) * 1000.0 / hours(counts);
            let a_minute = many(steady.requests) / hours(&steady) / 60.0;
            println!("{ttl:2} s, {percent} %, {:7.1}, {:7.1}, {a_minute:5.1}", rate(&steady), rate(&halting));
            if (ttl, percent) == (30, 2) {
                assert_eq!(steady.late, 0, "leases lost in {:.0} h", hours(&steady));
            }
        }
    }
}

/// A hundred waiters, of whom one in twenty dies; nobody who lives is passed, and hardly anybody loses its place.
#[test]
fn measure_hand_over() {
    println!("lost messages, mean hand-over, longest idle, places lost of commands, requests a command");
    for percent in [0, 1, 5] {
        let counts = of(4 * given("RLOCK_MEASURE").unwrap_or(1), |seed| Plan::crowd(seed, percent * 10_000));
        println!(
            "{percent} %, {:6.1} ms, {:5.2} s, {} of {}, {:.1}",
            seconds(counts.hand_over_ns) * 1000.0 / many(counts.hand_overs),
            seconds(counts.longest_idle),
            counts.missed,
            counts.commands,
            many(counts.requests) / many(counts.commands),
        );
        assert!(counts.passed * 1000 <= counts.commands && counts.missed * 100 <= counts.commands, "{counts:?}");
    }
}

/// One line of the table of variants: what the constants cost and bring that `timing.rs` has now.
#[test]
fn measure_variant() {
    let more = given("RLOCK_MEASURE").unwrap_or(1);
    let mut laws = 0;
    let mut of = |seeds: u64, plan: &(dyn Fn(u64) -> Plan + Sync)| {
        let (counts, broken) = play(0, seeds * more, None, plan);
        laws += broken.len();
        counts
    };
    let losses = [(30, 10), (5, 5), (2, 5)].map(|(ttl, percent)| {
        let counts = of(5, &|seed| Plan::steady(seed, ttl, percent * 10_000));
        many(counts.late) * 1000.0 / hours(&counts)
    });
    let halting = of(5, &|seed| Plan::halting(seed, 5, 10_000));
    let crowds = [0, 1, 5].map(|percent| of(4, &|seed| Plan::crowd(seed, percent * 10_000)));
    let hand_overs = crowds.each_ref().map(|crowd| seconds(crowd.hand_over_ns) * 1000.0 / many(crowd.hand_overs));
    let paused = of(4, &|seed| Plan::paused_crowd(seed, 10_000));
    let [_, _, lossy] = &crowds;
    println!(
        "VARIANT {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} ms | {:.0} ms | {:.0} ms | {:.1} s | {} of {} | {:.0} | {} of {} | {laws} |",
        losses[0],
        losses[1],
        losses[2],
        many(halting.late) * 1000.0 / hours(&halting),
        many(halting.requests) / hours(&halting) / 60.0,
        hand_overs[0],
        hand_overs[1],
        hand_overs[2],
        seconds(lossy.longest_idle),
        lossy.missed,
        lossy.commands,
        many(lossy.requests) / many(lossy.commands),
        paused.missed,
        paused.commands,
    );
    assert!(laws == 0 || given("RLOCK_MEASURE").is_some(), "{laws} seeds broke a law");
}
