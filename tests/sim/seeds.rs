//! Many worlds, one for each seed.

use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bug::Bug;
use crate::checker::Counts;
use crate::clock::{S, seconds};
use crate::plan::{Clockwork, Kind, Plan};
use crate::world;

/// How many seeds there are where `RLOCK_SEEDS` does not say.
const SEEDS: u64 = 4000;

/// A seed that broke a law.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    pub(crate) law: String,
}

pub(crate) fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Plays seeds on every core: what they came to, and those that broke a law.
pub(crate) fn play(
    first: u64,
    seeds: u64,
    bug: Option<Bug>,
    plan: impl Fn(u64) -> Plan + Sync,
) -> (Counts, Vec<Broken>) {
    let next = AtomicU64::new(first);
    let all = Mutex::new((Counts::default(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return;
            }
            let plan = plan(seed);
            let kind = plan.kind;
            // A panic of the real code is one of rlock's.
            let (counts, law) = catch_unwind(|| world::play(plan, seed, bug, false))
                .unwrap_or_else(|_| (Counts::default(), Some("something panicked".into())));
            let mut all = all.lock().expect("what others found");
            all.0.add(&counts);
            all.1.extend(law.map(|law| Broken { seed, kind, law }));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    let (counts, mut broken) = all.into_inner().expect("what all found");
    broken.sort_by_key(|one| one.seed);
    (counts, broken)
}

#[test]
fn the_laws_hold_in_every_world() {
    if let Some(seed) = given("RLOCK_SEED") {
        let (counts, broken) = world::play(Plan::of(seed), seed, None, true);
        println!("{counts:#?}");
        assert_eq!(broken, None);
        return;
    }
    let seeds = given("RLOCK_SEEDS").unwrap_or(SEEDS);
    let (counts, broken) = play(given("RLOCK_FIRST").unwrap_or(0), seeds, None, Plan::of);
    println!("{seeds} seeds: {counts:#?}");
    for Broken { seed, kind, law } in broken.iter().take(20) {
        println!("seed {seed} ({kind:?}): {law}");
    }
    assert!(
        broken.is_empty(),
        "{} of {seeds} seeds broke a law; RLOCK_SEED=n with --nocapture shows all that happens in one",
        broken.len()
    );
    // A world where nothing happens would break no law.
    assert!(counts.commands > 4 * seeds && counts.hand_overs > seeds && counts.late > seeds / 100, "{counts:?}");
}

/// The law of 14 s where it matters most: chance seldom comes near it, and a heartbeat of 20 s breaks it here in every
/// world.
#[test]
fn however_many_waiters_died_the_next_has_the_key_in_time() {
    let (counts, broken) = play(0, 500, None, Plan::deserted);
    assert!(broken.is_empty(), "{} of 500, the first {:?}", broken.len(), broken.first());
    println!("the longest {:.2} s", seconds(counts.longest_idle));
    assert!(counts.longest_idle > 12 * S, "{counts:?}");
}

/// The store's clock is set, or a replica's is another one: what DESIGN assumes not to happen.
#[test]
fn a_clock_that_is_wrong_is_seen() {
    for clockwork in [Clockwork::Step, Clockwork::Replica] {
        let (_, broken) = play(0, 100, None, |seed| Plan::of_kind(seed, Kind::Quiet, clockwork));
        println!("{clockwork:?}: {} of 100, the first {:?}", broken.len(), broken.first());
        assert!(broken.len() > 50, "{clockwork:?} was seen in {} worlds of 100 only", broken.len());
        let deadly = |one: &Broken| one.law.contains("the command of");
        let worst = (0..40).find_map(|part| {
            let (_, broken) = play(part * 50, 50, None, |seed| Plan::of_kind(seed, Kind::All, clockwork));
            broken.into_iter().find(deadly)
        });
        assert!(worst.is_some(), "{clockwork:?} has let no command run beyond its lease");
    }
}
