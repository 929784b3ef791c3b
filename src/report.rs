//! Every line rlock prints, and the report of `run`.
//!
//! What did not originate in rlock is escaped and cut before anybody sees it, and every line is escaped once more as
//! a whole when it is written.

mod lines;
mod outcome;
mod run_lines;
mod view;
mod voice;
mod who;

use std::io::{ErrorKind, Write as _};

use crate::error::Error;

pub use lines::{Waiting, busy, held, inspect_hint, store_error, unconfigured};
pub use outcome::{Outcome, Report, ReportFile};
pub use run_lines::{
    cannot_stop, clock_jumped, delayed, hopeless, keeper_gone, lost, not_kept, not_renewed, overran, removed, restored,
    short_ttl, silent, stopped, thread_gone, unreleased, was_not_ours,
};
pub use view::{ForeignView, HolderView, KeyView, WaiterView, aligned};
pub use voice::Voice;
pub use who::Who;

/// Prints what was asked for to stdout. A reader that went away is no error.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Os(format!("cannot write to stdout: {error}; see whether its disk is full")))
        }
        _ => Ok(()),
    }
}
