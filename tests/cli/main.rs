//! The binary as users run it, on real servers. Every test has a server and a directory of its own, and waits for
//! facts; none sleeps and hopes.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod rlock;
#[path = "../store/servers.rs"]
mod servers;

/// SIGKILL, SIGSTOP and signals to anybody at random instants.
mod chance;
/// Codes and signals of the command, rlock's own codes, and `--report`.
mod exit_codes;
/// SIGKILL and SIGSTOP of rlock, its keeper, its tree and of waiters.
mod kills;
/// Renewal, release, and what a key looks like meanwhile.
mod lease;
/// What `inspect`, `list` and `ttl` show.
mod looking;
/// The lease is lost: replaced, condemned, frozen, cut off.
mod lost;
/// Order, wake-ups, and what a wait says.
mod queue;
/// What `run` refuses before it asks, and how it says so.
mod refused;
/// Signals to rlock, to the command and to both; what is left after a stop signal.
mod signals;
/// Descriptors, environment, dispositions, secrets.
mod surroundings;
/// Job control, the keyboard's signals, pagers and live lines on a real terminal.
mod terminal;
