//! The harness: the binary as users run it, on a real store, with facts awaited instead of time slept.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlock::claim::Entry;
use rlock::clock::Boot;
use rlock::store::{self, Cancel, Key, Look, Store, Url};

use crate::servers::Server;

/// Nothing that is awaited may take longer; only a hang does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where locks are kept in a test.
pub(crate) trait Place {
    /// Whether a key is free as soon as rlock and its keeper are dead; else when the lease has run out.
    const HEARS_OF_DEATH: bool;

    fn start() -> Self;
    fn url(&self) -> String;
}

/// A Redis server, and a connection to it.
pub(crate) struct Redis {
    server: Server,
    connection: RefCell<redis::Connection>,
}

impl Place for Redis {
    const HEARS_OF_DEATH: bool = false;

    fn start() -> Self {
        let server = Server::start();
        let connection = RefCell::new(server.connect());
        Self { server, connection }
    }

    fn url(&self) -> String {
        self.server.url()
    }
}

/// A directory.
pub(crate) struct Directory(tempfile::TempDir);

impl Directory {
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("locks")
    }
}

impl Place for Directory {
    const HEARS_OF_DEATH: bool = true;

    fn start() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        format!("local:{}", self.path().display())
    }
}

/// One store, one directory for what commands write, and rlocks on both.
pub(crate) struct Stage<P> {
    pub(crate) place: P,
    pub(crate) dir: tempfile::TempDir,
    store: RefCell<Box<dyn Store>>,
}

impl<P: Place> Stage<P> {
    pub(crate) fn new() -> Self {
        Self::at(P::start())
    }

    fn at(place: P) -> Self {
        let url = Url::parse(&place.url()).unwrap();
        let store = RefCell::new(store::open(&url, None, &Cancel::new().unwrap()));
        Self { place, dir: tempfile::tempdir().unwrap(), store }
    }

    pub(crate) fn url(&self) -> String {
        self.place.url()
    }

    pub(crate) fn hears_of_death() -> bool {
        P::HEARS_OF_DEATH
    }

    /// A file in the stage's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `rlock` with these arguments, the store's URL in its environment and the directory as its own.
    pub(crate) fn rlock<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        self.starter().rlock(args)
    }

    /// `rlock run -k KEY` with these arguments.
    pub(crate) fn run(&self, key: &str, args: &[&str]) -> Cmd {
        self.starter().run(key, args)
    }

    /// This program with these words, which start rlock as `"$R"`, on the stage's store.
    pub(crate) fn through(&self, program: &str, words: &[&str]) -> Cmd {
        let mut command = self.rlock(["run"]);
        let mut other = Command::new(program);
        for (name, value) in command.0.get_envs() {
            match value {
                Some(value) => other.env(name, value),
                None => other.env_remove(name),
            };
        }
        other.env("R", env!("CARGO_BIN_EXE_rlock")).args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        command.0 = other;
        command
    }

    /// What other threads need to start rlocks here.
    pub(crate) fn starter(&self) -> Starter {
        Starter { url: self.url(), dir: self.dir.path().to_owned() }
    }

    /// Waits until a command has written `name`, and returns what it wrote, without the last newline.
    pub(crate) fn written(&self, name: &str) -> String {
        let path = self.path(name);
        until(&format!("{name} is written"), || {
            let text = fs::read_to_string(&path).ok()?;
            text.ends_with('\n').then(|| text.trim_end().to_owned())
        })
    }

    /// The lines that commands have written to `name` so far.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// What the store knows of `key`.
    pub(crate) fn look(&self, key: &str) -> Look {
        self.store.borrow_mut().look(&Key::parse(key).unwrap(), Boot::now() + PATIENCE).unwrap()
    }

    /// The keys that somebody holds or waits for.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        let listed = self.store.borrow_mut().list(None, PATIENCE, &mut |listed| {
            keys.push(listed.key.to_string());
            true
        });
        listed.unwrap();
        keys
    }

    pub(crate) fn is_held(&self, key: &str) -> bool {
        !self.look(key).is_free()
    }

    /// Waits until `key` is held by a claim, and returns it.
    pub(crate) fn held(&self, key: &str) -> Entry {
        until(&format!("{key} is held"), || self.look(key).holders.into_iter().next())
    }

    /// What is left of the lease of `key`.
    pub(crate) fn left(&self, key: &str) -> Duration {
        let (held, now_ms) = (self.held(key), self.look(key).now_ms);
        Duration::from_millis(held.until_ms.saturating_sub(now_ms))
    }

    /// Waits until so many wait for `key`.
    pub(crate) fn waiting(&self, key: &str, count: usize) {
        until(&format!("{count} wait for {key}"), || (self.look(key).queue.len() == count).then_some(()));
    }
}

#[allow(dead_code, reason = "shared with tests that need a part of it")]
impl Stage<Redis> {
    /// The same on a server that was started otherwise.
    pub(crate) fn on(server: Server) -> Self {
        let connection = RefCell::new(server.connect());
        Self::at(Redis { server, connection })
    }

    /// Kills the server and starts it again with what it has kept.
    pub(crate) fn restart(&mut self) {
        self.place.server.restart();
        self.place.connection = RefCell::new(self.place.server.connect());
    }

    pub(crate) fn server(&self) -> &Server {
        &self.place.server
    }

    pub(crate) fn server_mut(&mut self) -> &mut Server {
        &mut self.place.server
    }

    /// Runs one command on the server; a reply that is an error fails the test.
    pub(crate) fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut *self.place.connection.borrow_mut()).unwrap()
    }

    /// Waits until `key` has a value, and returns it.
    pub(crate) fn value(&self, key: &str) -> String {
        until(&format!("{key} is held"), || self.redis::<Option<String>>(&["GET", key]))
    }
}

/// A store's URL and a directory.
pub(crate) struct Starter {
    url: String,
    dir: PathBuf,
}

impl Starter {
    fn rlock<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        let mut command = rlock(args);
        command.0.env("RLOCK_URL", &self.url).current_dir(&self.dir);
        command
    }

    pub(crate) fn run(&self, key: &str, args: &[&str]) -> Cmd {
        self.rlock(["run", "-k", key].iter().chain(args))
    }
}

/// `rlock` with these arguments, an environment without anything of rlock's, and no input.
pub(crate) fn rlock<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Cmd {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rlock"));
    command.args(args).stdin(Stdio::null());
    for name in ["RLOCK_URL", "RLOCK_CONFIG", "RLOCK_CLAIM", "RLOCK_KEY", "RLOCK_TOKEN"] {
        command.env_remove(name);
    }
    // What the host has configured must not decide a test.
    command.env("RLOCK_CONFIG", "/dev/null");
    Cmd(command)
}

/// A command that has not been started.
#[must_use]
pub(crate) struct Cmd(pub(crate) Command);

impl Cmd {
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    pub(crate) fn stdin(mut self, from: impl Into<Stdio>) -> Self {
        self.0.stdin(from);
        self
    }

    /// Starts it; what it prints is kept.
    #[track_caller]
    pub(crate) fn start(mut self) -> Running {
        let child = self.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { child: Some(child) }
    }

    /// Runs it to its end.
    #[track_caller]
    pub(crate) fn done(self) -> Done {
        self.start().done()
    }
}

/// A command that runs; it is killed when the test ends before it.
pub(crate) struct Running {
    child: Option<Child>,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.as_ref().unwrap().id()).unwrap())
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for its end, whatever that is.
    #[track_caller]
    pub(crate) fn ended(mut self) {
        let mut child = self.child.take().unwrap();
        assert!(within(PATIENCE, || child.try_wait().unwrap()).is_some(), "it did not end");
    }

    /// Waits for its end. Its output must be short enough for a pipe.
    #[track_caller]
    pub(crate) fn done(mut self) -> Done {
        let mut child = self.child.take().unwrap();
        let Some(status) = within(PATIENCE, || child.try_wait().unwrap()) else {
            let _ = child.kill();
            let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
            panic!("it did not end; stdout: {out}; stderr: {err}");
        };
        // A process that it left behind may still hold the pipes: what is there is what it said.
        Done { status, stdout: read(child.stdout.take()), stderr: read(child.stderr.take()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads what a pipe holds now, without waiting for its other end to be closed.
fn read(pipe: Option<impl Read + std::os::fd::AsFd>) -> String {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let Some(mut pipe) = pipe else { return String::new() };
    fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut bytes = Vec::new();
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A command that ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// It ended with this code and printed exactly this on stdout and nothing on stderr.
    #[track_caller]
    pub(crate) fn is(self, code: i32, stdout: &str) {
        assert_eq!(
            (self.status.code(), self.stdout.as_str(), self.stderr.as_str()),
            (Some(code), stdout, ""),
            "{self:?}"
        );
    }

    /// It ended with this code and said exactly one line, which begins with `rlock: ` and has each of these words.
    #[track_caller]
    pub(crate) fn says(self, code: i32, words: &[&str]) {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        let line = self.stderr.strip_suffix('\n').unwrap_or("");
        assert!(line.starts_with("rlock: ") && !line.contains('\n'), "not one line: {self:?}");
        for word in words {
            assert!(line.contains(word), "no {word:?} in {line:?}");
        }
    }

    /// It ended with this code, and rlock said exactly one line, which has each of these words; the command may have
    /// said others.
    #[track_caller]
    pub(crate) fn tells(mut self, code: i32, words: &[&str]) {
        self.stderr = self
            .stderr
            .lines()
            .filter(|line| line.starts_with("rlock: "))
            .fold(String::new(), |all, line| all + line + "\n");
        self.says(code, words);
    }

    /// It died of this signal.
    #[track_caller]
    pub(crate) fn died(self, signal: Signal) -> Self {
        assert_eq!(self.status.signal(), Some(signal as i32), "{self:?}");
        self
    }

    /// It ended with this code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }
}

/// Waits for a fact; only a hang takes [`PATIENCE`].
#[track_caller]
pub(crate) fn until<T>(what: &str, fact: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, fact).unwrap_or_else(|| panic!("never: {what}"))
}

/// Waits for a fact so long.
pub(crate) fn within<T>(limit: Duration, mut fact: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Boot::now() + limit;
    loop {
        if let Some(found) = fact() {
            return Some(found);
        }
        if Boot::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process with this pid runs; a zombie does not.
pub(crate) fn is_alive(pid: &str) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The state letter of a process.
pub(crate) fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Sends a signal to the process that `pid` writes.
#[track_caller]
pub(crate) fn send(pid: &str, signal: Signal) {
    kill(Pid::from_raw(pid.parse().unwrap()), signal).unwrap();
}

/// The pids of the direct children of a process.
pub(crate) fn children(pid: &str) -> Vec<String> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}
