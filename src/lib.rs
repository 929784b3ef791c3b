//! rlock
pub mod claim;
pub mod clock;
pub mod error;
pub mod exit;
pub mod store;
pub mod timing;
