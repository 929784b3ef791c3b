//! rlock
pub mod child;
pub mod claim;
pub mod clock;
pub mod error;
pub mod exit;
pub mod keeper;
pub mod lease;
pub mod signal;
pub mod store;
pub mod sys;
pub mod timing;
