//! The report of `run`: one JSON object on one line, with which no outcome can be mistaken for another.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde::Serialize;

use super::HolderView;
use crate::claim::ClaimId;
use crate::error::Error;
use crate::settings::ReportTarget;
use crate::store::Key;
use crate::sys;
use crate::text::safe_json;

/// How long writing the report may take.
const LIMIT: Duration = Duration::from_secs(2);

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The command ran under the lock and ended by itself; `code` and `signal` are its own.
    Ran,
    /// The lock was not obtained.
    Busy,
    /// The lease was lost. With `--on-lost warn` the command ended by itself all the same.
    Lost,
    /// The command ran as long as `--max-runtime` allows, and was stopped.
    MaxRuntime,
    /// A signal ended the wait.
    Interrupted,
    /// The command was not found or cannot be run.
    CannotRun,
    /// The store did not answer or is failing.
    Unavailable,
    /// The store refused.
    Refused,
    /// The configuration is wrong, or the store cannot do it.
    Config,
    /// rlock or the operating system failed.
    Failed,
}

impl From<&Error> for Outcome {
    fn from(error: &Error) -> Self {
        match error {
            Error::Unavailable(_) => Self::Unavailable,
            Error::Refused(_) => Self::Refused,
            Error::Config(_) | Error::Usage(_) => Self::Config,
            Error::CannotRun(_) | Error::NotFound(_) => Self::CannotRun,
            Error::Software(_) | Error::Os(_) | Error::CannotCreate(_) => Self::Failed,
        }
    }
}

/// The report. Fields are only ever added.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this form.
    pub v: u8,
    /// What became of the run.
    pub outcome: Outcome,
    /// The exit code, as a shell shows it.
    pub code: u8,
    /// The signal that the command or the wait ended by.
    pub signal: Option<i32>,
    /// What was locked.
    pub key: String,
    /// This run's claim.
    pub claim: Option<ClaimId>,
    /// Its fencing token.
    pub token: Option<u64>,
    /// The store, without secrets.
    pub store: String,
    /// How long the lock was waited for.
    pub waited_ms: u64,
    /// How long it was held, if it was.
    pub held_ms: Option<u64>,
    /// How often the lease was renewed.
    pub renewals: u64,
    /// How many processes of the command were left running.
    pub left_running: u32,
    /// The processes that could not be ended.
    pub unkilled: Vec<i32>,
    /// Why, where the outcome needs a reason: the line that was said.
    pub why: Option<String>,
    /// Who was in the way.
    pub holder: Option<HolderView>,
}

impl Report {
    /// A report of a run that came to nothing yet.
    pub fn new(key: &Key, store: String) -> Self {
        Self {
            v: 1,
            outcome: Outcome::Failed,
            code: crate::exit::SOFTWARE,
            signal: None,
            key: key.to_string(),
            claim: None,
            token: None,
            store,
            waited_ms: 0,
            held_ms: None,
            renewals: 0,
            left_running: 0,
            unkilled: Vec::new(),
            why: None,
            holder: None,
        }
    }
}

/// Where the report goes, open.
#[derive(Debug)]
pub struct ReportFile(File);

impl ReportFile {
    /// Opens it. A descriptor is taken over, so this comes before rlock opens descriptors to keep.
    pub fn open(target: &ReportTarget) -> Result<Self, Error> {
        let (opened, name) = match target {
            ReportTarget::File(path) => (append(path), path.display().to_string()),
            ReportTarget::Fd(fd) => {
                (sys::take_fd(*fd).and_then(|owned| writable(File::from(owned))), format!("fd:{fd}"))
            }
        };
        opened.map(Self).map_err(|error| {
            Error::CannotCreate(format!("cannot open the report {name}: {error}; nothing was run, correct --report"))
        })
    }

    /// Writes it, in one write. Takes at most 2 s; an error is the rest of "the report …".
    pub fn write(mut self, report: &Report) -> Result<(), String> {
        let json = serde_json::to_string(report).map_err(|error| format!("cannot be made: {error}"))?;
        let line = safe_json(&json) + "\n";
        let (done, written) = mpsc::channel();
        let writing = Builder::new().spawn(move || {
            // Whoever asked may have given up.
            let _ = done.send(self.0.write_all(line.as_bytes()));
        });
        writing.map_err(|error| format!("was not written: {error}"))?;
        match written.recv_timeout(LIMIT) {
            Ok(result) => result.map_err(|error| format!("was not written: {error}")),
            Err(_) => Err("was not written: nobody takes it".into()),
        }
    }
}

/// A pipe without a reader is an error at once, instead of a wait for one.
fn append(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path)?;
    let flags = fcntl(file.as_fd(), FcntlArg::F_GETFL).map(OFlag::from_bits_retain)?;
    fcntl(file.as_fd(), FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(file)
}

fn writable(file: File) -> io::Result<File> {
    let flags = fcntl(file.as_fd(), FcntlArg::F_GETFL).map(OFlag::from_bits_retain)?;
    if flags & OFlag::O_ACCMODE == OFlag::O_RDONLY {
        return Err(io::Error::other("it is open for reading only"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn report() -> Report {
        Report::new(&Key::parse("job:\"a\"").unwrap(), "redis://h".into())
    }

    #[test]
    fn a_report_is_appended_as_one_line_of_json() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        std::fs::write(&path, "before\n").unwrap();
        for _ in 0..2 {
            ReportFile::open(&ReportTarget::File(path.clone())).unwrap().write(&report()).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, "before"));
        let value: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
        assert_eq!((&value["v"], &value["outcome"], &value["key"]), (&1.into(), &"failed".into(), &"job:\"a\"".into()));
        assert!(value["token"].is_null() && value["holder"].is_null());
    }

    #[test]
    fn what_cannot_be_opened_is_73() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let file = |path: &Path| ReportTarget::File(path.into());
        for target in [file(dir.path()), file(Path::new("/nonexistent/r")), file(&fifo), ReportTarget::Fd(987)] {
            let error = ReportFile::open(&target).unwrap_err();
            assert_eq!(error.code(), crate::exit::CANNOT_CREATE);
            assert!(error.to_string().contains("nothing was run, correct --report"), "{error}");
        }
    }

    #[test]
    fn a_full_pipe_does_not_hang() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut reader = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path).unwrap();
        let target = ReportTarget::File(path.clone());
        ReportFile::open(&target).unwrap().write(&report()).unwrap();
        let mut text = [0; 4096];
        let n = reader.read(&mut text).unwrap();
        assert!(text[..n].ends_with(b"}\n"));

        let mut filler = OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path).unwrap();
        while filler.write(&[b'x'; 4096]).is_ok() {}
        while filler.write(b"x").is_ok() {}
        assert_eq!(ReportFile::open(&target).unwrap().write(&report()), Err("was not written: nobody takes it".into()));
    }
}
