//! The Redis store.

pub mod script;
