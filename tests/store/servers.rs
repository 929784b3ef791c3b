//! Real servers for tests: a `redis-server` of its own in a directory of its own, ended by pid when it is dropped.
#![allow(dead_code, reason = "shared by several tests, each of which needs a part of it")]

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlock::clock::Boot;

/// A redis-server on a unix socket and on a TCP port of 127.0.0.1.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    lines: Vec<String>,
    /// Its wall clock can be set.
    has_own_clock: bool,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// A server that keeps nothing on disk.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// The same with further lines of configuration.
    pub(crate) fn with(lines: &[&str]) -> Self {
        Self::at(lines, false)
    }

    /// The same, and [`Server::set_clock`] sets its wall clock; its other clocks go on.
    pub(crate) fn with_own_clock(lines: &[&str]) -> Self {
        Self::at(lines, true)
    }

    fn at(lines: &[&str], has_own_clock: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("rlock-").tempdir().expect("a temporary directory");
        let lines = lines.iter().map(|&line| line.to_owned()).collect();
        let mut server = Self { dir, lines, has_own_clock, port: 0, child: None };
        server.set_clock(0);
        // Between our look and its bind another process can take the port.
        for _ in 0..5 {
            server.port = free_port();
            if server.spawn() {
                return server;
            }
        }
        panic!("redis-server does not start: {}", server.log());
    }

    /// Its unix socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Its port on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its URL over the unix socket.
    pub(crate) fn unix_url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Its URL over TCP.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection of the redis crate, for what a test does beside rlock. Panics where the server does not answer.
    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.unix_url()).expect("a URL");
        client.get_connection_with_timeout(Duration::from_secs(10)).expect("a connection")
    }

    /// What it has written to its log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Pid {
        let child = self.child.as_ref().expect("the server runs");
        Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
    }

    /// Stops it as a machine that hangs: connections stay, nothing is answered.
    pub(crate) fn freeze(&self) {
        kill(self.pid(), Signal::SIGSTOP).expect("SIGSTOP");
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        kill(self.pid(), Signal::SIGCONT).expect("SIGCONT");
    }

    /// Sets its wall clock so many milliseconds ahead of this host's.
    pub(crate) fn set_clock(&self, ahead_ms: i64) {
        let clock = File::options().create(true).truncate(false).write(true).open(self.dir.path().join("clock"));
        // In place: the server has it mapped.
        clock.and_then(|clock| clock.write_all_at(&(ahead_ms * 1_000_000).to_ne_bytes(), 0)).expect("the clock");
    }

    /// Kills it. Its directory and port stay for [`Server::restart`].
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It fails only where the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it, if it runs, and starts it again on the same port.
    pub(crate) fn restart(&mut self) {
        self.stop();
        assert!(self.spawn(), "redis-server does not start again: {}", self.log());
    }

    /// Whether it came up.
    fn spawn(&mut self) -> bool {
        let path = self.dir.path();
        let mut config = format!(
            "port {}\nbind 127.0.0.1\nunixsocket {}\ndir {}\nsave \"\"\nappendonly no\n",
            self.port,
            self.socket().display(),
            path.display()
        );
        for line in &self.lines {
            config.push_str(line);
            config.push('\n');
        }
        std::fs::write(path.join("redis.conf"), config).expect("the configuration");
        let log = File::options().create(true).append(true).open(path.join("log")).expect("the log");
        let mut command = Command::new("redis-server");
        if self.has_own_clock {
            command.env("LD_PRELOAD", self.clock_library()).env("RLOCK_TEST_CLOCK", path.join("clock"));
        }
        let child = command
            .arg(path.join("redis.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log)
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
        self.answers()
    }

    /// Builds what shifts the clock. Where Rust programs are built there is a C compiler: it links them.
    fn clock_library(&self) -> PathBuf {
        let library = self.dir.path().join("clock.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/clock.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&library).arg(source).status();
        assert!(built.expect("cc is installed").success(), "{source} does not compile");
        library
    }

    /// Waits for PONG, or for the end of the process.
    fn answers(&mut self) -> bool {
        let until = Boot::now() + Duration::from_secs(10);
        let client = redis::Client::open(self.unix_url()).expect("a URL");
        while Boot::now() < until {
            let pong = client
                .get_connection_with_timeout(Duration::from_secs(1))
                .and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection));
            match pong {
                Ok(_) => return true,
                // It answers, and wants a password.
                Err(error) if error.code().is_some_and(|code| code != "LOADING") => return true,
                Err(_) => {}
            }
            let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.stop();
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port of 127.0.0.1 that nobody listens on just now. A cluster's own port, 10000 above it, is one too.
pub(crate) fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        if port < 55_000 {
            return port;
        }
    }
}
