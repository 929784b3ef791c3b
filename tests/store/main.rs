//! The Redis store and its script on real servers.

mod same;
mod script;
mod servers;
