//! Why rlock itself did not do its job: one small enum, each case with its exit code.
//!
//! The text is one line for the person on call: what happened, then what to do. Lower layers have narrow types of
//! their own; `anyhow` carries an `Error` (found by downcast) and adds context at the edges.

use std::fmt;

use crate::exit;

/// What went wrong, with the line that is printed after `rlock: `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The command line asks for something that cannot be.
    Usage(String),
    /// The store did not answer in time or is failing.
    Unavailable(String),
    /// A fault of rlock's own.
    Software(String),
    /// The operating system refused something.
    Os(String),
    /// The report cannot be opened.
    CannotCreate(String),
    /// The store refused the login or a right.
    Refused(String),
    /// The configuration is bad, or the store cannot do what was asked.
    Config(String),
    /// The command exists and cannot be run.
    CannotRun(String),
    /// The command was not found.
    NotFound(String),
}

impl Error {
    /// The exit code of this case.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => exit::USAGE,
            Self::Unavailable(_) => exit::UNAVAILABLE,
            Self::Software(_) => exit::SOFTWARE,
            Self::Os(_) => exit::OS,
            Self::CannotCreate(_) => exit::CANNOT_CREATE,
            Self::Refused(_) => exit::REFUSED,
            Self::Config(_) => exit::CONFIG,
            Self::CannotRun(_) => exit::CANNOT_RUN,
            Self::NotFound(_) => exit::NOT_FOUND,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text)
        | Self::Unavailable(text)
        | Self::Software(text)
        | Self::Os(text)
        | Self::CannotCreate(text)
        | Self::Refused(text)
        | Self::Config(text)
        | Self::CannotRun(text)
        | Self::NotFound(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Error {}
