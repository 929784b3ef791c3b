//! The connection to a Redis server and what stands on it, against real servers and a proxy that misbehaves.
//!
//! `cfg(test)` tells clippy that the helpers are tests too.

#[cfg(test)]
mod deadlines;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod kit;
#[cfg(test)]
mod listing;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod script;
#[path = "../store/servers.rs"]
mod servers;
