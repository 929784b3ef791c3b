use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlock::claim::{Answer, Ask, ClaimId, Limit};
use rlock::clock::Boot;
use rlock::store::{self, Cancel, Key, Look, Store, Url};
use tempfile::TempDir;

/// A server on a socket of its own, ended when dropped.
pub(crate) struct Server {
    dir: TempDir,
    child: Child,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", socket.to_str().unwrap()])
            .args(options)
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be installed; tests/run.sh does that");
        let server = Self { dir, child };
        until("the server answers", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.dir.path().join("redis.sock").display())
    }

    pub(crate) fn open(&self) -> Box<dyn Store> {
        store::open(&Url::parse(&self.url()).unwrap(), None, &Cancel::new().unwrap())
    }

    /// Keeps the server from answering.
    pub(crate) fn freeze(&self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGSTOP).unwrap();
    }

    /// Lets it answer again.
    pub(crate) fn thaw(&self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGCONT).unwrap();
    }

    /// What redis-cli says to these words.
    pub(crate) fn cli(&self, words: &[&str]) -> String {
        let socket = self.dir.path().join("redis.sock");
        let output = Command::new("redis-cli").arg("-s").arg(socket).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Takes a key, or a place in its queue.
    pub(crate) fn ask(&self, name: &str, id: u128, ttl_ms: u64, record: &str) -> Answer {
        let ask = Ask {
            id: ClaimId::from_bits(id),
            limit: Limit::EXCLUSIVE,
            ttl_ms,
            process: true,
            wait: true,
            record: record.into(),
        };
        self.open().ask(&key(name), &ask, soon()).unwrap()
    }

    pub(crate) fn look(&self, name: &str) -> Look {
        self.open().look(&key(name), soon()).unwrap()
    }

    /// rlock with this store.
    pub(crate) fn rlock(&self, words: &[&str]) -> Ended {
        self.command(words).stdin(Stdio::null()).output().unwrap().into()
    }

    /// rlock in a session without a terminal.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command.args(["--wait", env!("CARGO_BIN_EXE_rlock")]).args(words);
        command.env("RLOCK_URL", self.url()).env("RLOCK_CONFIG", "/dev/null").env_remove("TERM");
        command
    }

    /// rlock on a terminal where `typed` is typed.
    pub(crate) fn on_terminal(&self, words: &[&str], typed: &str) -> Ended {
        let line: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let line = format!("'{}' {}", env!("CARGO_BIN_EXE_rlock"), line.join(" "));
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env("RLOCK_URL", self.url())
            .env("RLOCK_CONFIG", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(typed.as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("rlock prints UTF-8");
        Self {
            code: output.status.code(),
            signal: output.status.signal(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

impl Ended {
    /// It ended with this code, said one line with `part` in it, and printed nothing.
    #[track_caller]
    pub(crate) fn is(&self, code: u8, part: &str) {
        let line = self.err.strip_prefix("rlock: ").and_then(|line| line.strip_suffix('\n'));
        let line = line.unwrap_or_else(|| panic!("not a line of rlock's: {self:?}"));
        assert!(!line.contains('\n') && line.contains(part), "{part:?} is not in {self:?}");
        assert_eq!((self.code, self.out.as_str()), (Some(code.into()), ""), "{self:?}");
    }

    /// It printed this and ended with this code, without a word.
    #[track_caller]
    pub(crate) fn printed(&self, code: u8, out: &str) {
        assert_eq!((self.code, self.out.as_str(), self.err.as_str()), (Some(code.into()), out, ""));
    }

    /// The JSON that it printed, a value a line.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }
}

pub(crate) fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

pub(crate) fn soon() -> Boot {
    Boot::now() + Duration::from_secs(10)
}

/// Waits for a fact.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Boot::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(!end.left().is_zero(), "never came: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
