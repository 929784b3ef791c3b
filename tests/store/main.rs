//! The Redis store and its script on real servers.

mod same;
mod servers;
