//! rlock
pub mod claim;
pub mod clock;
pub mod error;
pub mod exit;
pub mod lease;
pub mod store;
pub mod timing;
