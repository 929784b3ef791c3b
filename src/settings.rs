//! From what was typed, the environment and the file to what is meant: every default and every rule between options.
//!
//! The order is option, environment, file, default. [`Settings::read`] does the reading, `resolve` the deciding.

mod duration;
mod file;
mod given;
mod resolve;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::claim::ClaimId;
use crate::cli::Cli;
use crate::error::Error;
use crate::lease::OnLost;
use crate::store::{Key, Url};
pub use file::DEFAULT_PATH;
use file::File;
use resolve::resolve;

/// What holds for every subcommand.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where claims live.
    pub store: StoreSettings,
    /// How rlock speaks.
    pub output: Output,
}

/// Where claims live.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The store.
    pub url: Url,
    /// Nothing names a store, so it is the local one, in a directory that this user has.
    pub unconfigured: bool,
    /// The file that holds its password.
    pub password_file: Option<PathBuf>,
    /// How long it may be silent.
    pub timeout: Duration,
}

/// How rlock speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// JSON instead of tables.
    pub json: bool,
    /// No busy and no waiting lines.
    pub quiet: bool,
    /// More lines.
    pub verbose: bool,
}

/// What to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// Run a command under the lock.
    Run(Box<RunSettings>),
    /// Show these keys.
    Inspect(Vec<Key>),
    /// List the keys that the glob matches, or all.
    List(Option<String>),
    /// Print the leases of these keys.
    Ttl {
        /// The keys.
        keys: Vec<Key>,
        /// As bare milliseconds.
        ms: bool,
    },
    /// Take a key away.
    ForceRelease(ForceReleaseSettings),
}

/// What `run` does.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// What is locked.
    pub key: Key,
    /// The lease.
    pub ttl: Duration,
    /// How long to wait for the lock.
    pub wait: Wait,
    /// The exit code when the lock is busy.
    pub busy_code: u8,
    /// What happens when the lease is about to be lost.
    pub on_lost: OnLost,
    /// The first signal of `OnLost::Terminate`.
    pub signal: i32,
    /// The time between that signal and KILL.
    pub grace: Duration,
    /// How long the command may run.
    pub max_runtime: Option<Duration>,
    /// How long after the command's start the lock is kept, if the command ends sooner.
    pub hold_at_least: Option<Duration>,
    /// The longest random delay before the lock is asked for.
    pub jitter: Duration,
    /// How many replicas must have a grant or a renewal.
    pub replicas: u32,
    /// A word for people.
    pub label: Option<String>,
    /// Where the report goes.
    pub report: Option<ReportTarget>,
    /// Whether signals are forwarded to the command.
    pub forward: bool,
    /// The command.
    pub command: Command,
}

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    For(Duration),
    /// Without end.
    Forever,
}

/// Where the report goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportTarget {
    /// Appended to this file.
    File(PathBuf),
    /// Written to this open descriptor, 3 or higher.
    Fd(i32),
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A line for `/bin/sh -c`.
    Shell(OsString),
    /// A program and its arguments, at least one word.
    Argv(Vec<OsString>),
}

/// What `force-release` does.
#[derive(Clone, Debug)]
pub struct ForceReleaseSettings {
    /// What is locked.
    pub key: Key,
    /// Only this claim.
    pub claim: Option<ClaimId>,
    /// Without a question.
    pub yes: bool,
    /// Pass the key on at once.
    pub now: bool,
    /// How long to wait until it has passed; none for the lease's end and 2 s.
    pub wait: Option<Duration>,
}

impl Settings {
    /// Reads the file and decides. Errors are 64 where the command line is wrong, else 78.
    pub fn read(cli: &Cli) -> Result<(Self, Task), Error> {
        let file = File::read(cli.global.config.as_deref())?;
        let (settings, task) = resolve(cli, &file)?;
        if let Some(path) = &settings.store.password_file {
            let readable = path.metadata().and_then(|meta| {
                if !meta.is_file() {
                    return Err(std::io::Error::other("it is not a regular file"));
                }
                std::fs::File::open(path)?;
                Ok(meta.len())
            });
            let length = readable.map_err(|error| {
                Error::Config(format!(
                    "cannot read the password file {}: {error}; correct --password-file",
                    path.display()
                ))
            })?;
            if length == 0 {
                return Err(Error::Config(format!(
                    "the password file {} is empty; write the password into it, or name another with --password-file",
                    path.display()
                )));
            }
        }
        Ok((settings, task))
    }
}

#[cfg(test)]
mod tests;
