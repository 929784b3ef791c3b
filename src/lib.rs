//! rlock
pub mod claim;
pub mod cli;
pub mod clock;
pub mod error;
pub mod exit;
pub mod settings;
pub mod signal;
pub mod store;
pub mod text;
pub mod timing;
