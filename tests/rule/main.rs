//! The rule on its own: every small history, many random ones, and those that once went wrong.

mod explore;
mod histories;
mod laws;
mod random;
