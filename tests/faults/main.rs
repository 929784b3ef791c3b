//! Faults of the network and of the server, met by the binary as users run it: cut off, slow, frozen, started again,
//! emptied, full, and changed under its feet. Every test has a server, and where it needs one a proxy, of its own.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod proxy;
#[path = "../cli/rlock.rs"]
#[allow(dead_code, reason = "shared with the other tests of the command line, each of which needs a part of it")]
mod rlock;
#[path = "../store/servers.rs"]
mod servers;

type Stage = rlock::Stage<rlock::Redis>;

/// What the server counts for each hand-over.
mod costs;
/// Cut off from the server: both ways or one, for longer and for less than the tolerance.
mod cut;
/// Messages that arrive after whoever sent them has given up.
mod late;
/// Many runs at once, killed at random, on servers that freeze; what they wrote is checked.
mod stress;
/// A server that is emptied, started again, frozen, full, demoted, or that changes who may do what.
mod upheaval;

/// How often the server has carried out this command, in scripts or not.
fn calls(stage: &Stage, command: &str) -> u64 {
    let info: String = stage.redis(&["INFO", "commandstats"]);
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}
