//! What the constants of `timing.rs` cost and bring, measured: leases that are lost needlessly, and the time from one
//! holder to the next. `RLOCK_MEASURE=n cargo test --test sim measure -- --nocapture --test-threads=1` prints `n` times as
//! much as the short form needs. To try a constant, change it and measure again.
//!
//! As they are, with `RLOCK_MEASURE=2`, 200 h for each: losses in 1,000 h of holding, where 1, 2 and 5 % of the messages
//! are lost, and the same with a server that freezes every two minutes, half the time for less than a second, one time in
//! four for more than two (more than a ttl of 5 s or 2 s endures).
//!
//! | ttl | 1 % | 2 % | 5 % | 1 %, frozen | 2 % | 5 % | requests a minute |
//! |---|---|---|---|---|---|---|---|
//! | 30 s | 0 | 0 | 0 | 0 | 0 | 0 | 12 |
//! | 5 s | 0 | 0 | 0 | 5,340 | 5,432 | 5,388 | 72 |
//! | 2 s | 0 | 0 | 15 | 16,986 | 16,618 | 16,653 | 179 |
//!
//! A hundred waiters for one key, one in twenty of whom dies (round trip 0.4 ms):
//!
//! | lost messages | mean hand-over | longest idle | places lost | requests a command |
//! |---|---|---|---|---|
//! | 0 | 7.5 ms | 0.1 s | 0 of 800 | 5 |
//! | 1 % | 75 ms | 5.6 s | 0 of 778 | 27 |
//! | 5 % | 176 ms | 3.3 s | 0 of 764 | 58 |

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

/// A hundred waiters, of whom one in twenty dies; nobody who lives loses its place.
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
        assert!(counts.missed * 1000 <= counts.commands, "{counts:?}");
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
