//! The commands that look, as users run them, against a real server. The holders here speak through the library.
//!
//! `server.rs` starts servers and rlock, `looking.rs` is inspect, list and ttl, `clearing.rs` is force-release,
//! `failing.rs` is everything that has an exit code of rlock's own.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod clearing;
mod failing;
mod looking;
mod server;
