//! Whole worlds of rlocks under faults from a seed, and a judge of what the commands themselves wrote.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]
#![allow(clippy::print_stdout, reason = "figures, and what was left out")]

mod command;
#[path = "../dice.rs"]
mod dice;
mod history;
mod judge;
mod place;
mod plan;
#[path = "../proxy.rs"]
#[allow(dead_code, reason = "shared with tests that need another part of it")]
mod proxy;
#[path = "../../cli/rlock.rs"]
#[allow(dead_code, reason = "shared with the other tests of the command line, each of which needs a part of it")]
mod rlock;
#[path = "../../store/servers.rs"]
mod servers;
mod table;
mod world;

use std::env;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ::rlock::clock::{Boot, wall_ms};
use libtest_mimic::{Arguments, Failed, Trial};

use judge::Figures;
use plan::{Ground, HOSTS, Line, Plan, Upheaval, What};

/// Worlds side by side: most of the time of a run is waiting.
const LANES: u64 = 3;
/// How long faults come in one world.
const LASTS: Duration = Duration::from_secs(15);
/// How long new worlds begin, unless `RLOCK_SECONDS` says.
const SECONDS: u64 = 30;
const GROUNDS: [Ground; 5] = [Ground::Server, Ground::Directory, Ground::Server, Ground::Stepped, Ground::Server];

fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().collect();
    if let Some(code) = command::main(&words) {
        return code;
    }
    let trials: [(&str, fn()); 5] = [
        ("the_checks_see_what_they_are_to_see", history::sees),
        ("a_step_of_the_servers_clock_is_seen", a_step_is_seen),
        ("commands_that_go_on_without_their_lease_are_seen", warned_is_seen),
        ("side_by_side_with_other_wrappers", table::side_by_side),
        ("whatever_befalls_no_two_are_inside_at_once", worlds),
    ];
    let trials = trials.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            let done = std::panic::catch_unwind(test);
            done.map_err(|_| Failed::without_message())
        })
    });
    let mut arguments = Arguments::from_args();
    // The machine's time is shared within each.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn given(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

fn worlds() {
    let seed = given("RLOCK_SEED").unwrap_or_else(|| wall_ms() % 1_000_000);
    let seconds = given("RLOCK_SECONDS").unwrap_or(SECONDS);
    let lanes = given("RLOCK_LANES").unwrap_or(LANES);
    let only = given("RLOCK_WORLD");
    println!("RLOCK_SEED={seed} RLOCK_SECONDS={seconds}");
    let end = Boot::now() + Duration::from_secs(seconds);
    let (next, sum) = (AtomicU64::new(only.unwrap_or(0)), Mutex::new(Figures::default()));
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let world = next.fetch_add(1, Ordering::Relaxed);
                    let figures = play(seed, world);
                    let mut sum = sum.lock().unwrap();
                    sum.add(figures);
                    if seconds > 10 * SECONDS && world % 50 == 49 {
                        println!("so far: {sum}");
                    }
                    drop(sum);
                    if only.is_some() || Boot::now() >= end {
                        return;
                    }
                }
            });
            if only.is_some() {
                break;
            }
        }
    });
    let sum = sum.into_inner().unwrap();
    println!("{sum}");
    assert!(sum.is_clean());
    assert!(!sum.loses_too_many());
    assert!(sum.grants() > 10, "nothing ran");
}

fn play(seed: u64, world: u64) -> Figures {
    let ground = GROUNDS[usize::try_from(world).unwrap() % GROUNDS.len()];
    let plan = Plan::new(seed, world, ground, LASTS);
    if given("RLOCK_WORLD").is_some() {
        println!("{:#?}", plan.faults.iter().map(|fault| format!("{fault:?}")).collect::<Vec<_>>());
    }
    let past = world::play(plan);
    let figures = judge::judge(&past);
    if !figures.is_clean() {
        println!("RLOCK_SEED={seed} RLOCK_WORLD={world} is kept in {}\n{figures}", past.keep().display());
    }
    figures
}

/// What is outside the promise is seen in one of a few worlds.
fn is_seen(plan: impl Fn(u64) -> Plan) {
    let seen = (0..3).any(|world| {
        let figures = judge::judge(&world::play(plan(world)));
        println!("{} overlaps among {} grants", figures.overlaps.len(), figures.grants());
        // Where it cannot be made there is nothing to see.
        !figures.overlaps.is_empty() || !figures.left_out.is_empty()
    });
    assert!(seen, "the checks are blind");
}

fn a_step_is_seen() {
    // Each of them ends every lease that there is.
    let steps = [(What::Server(Upheaval::ClockForward(10_000)), 10); 4];
    is_seen(|world| Plan::only(world, Ground::Stepped, &steps));
}

fn warned_is_seen() {
    let cuts: Vec<_> = (1..HOSTS).map(|host| (What::Line { host, how: Line::LostLost }, 5_000)).collect();
    is_seen(|world| Plan { warns: true, ..Plan::only(world, Ground::Server, &cuts) });
}
