//! Starts a parent, tells it what to do, and looks at what its processes do.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::unistd::Pid;
use rlock::child::Ending;
use rlock::clock::Boot;
use rlock::keeper::{Environment, Event};
use rlock::sys;
use tempfile::TempDir;

use crate::parent;

/// Longer than anything takes here that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

#[must_use]
pub(crate) struct Rig<'a> {
    through: Vec<&'a str>,
    take: &'a str,
    is_typing: bool,
    dir: TempDir,
}

impl<'a> Rig<'a> {
    /// A parent whose working directory is a new one.
    pub(crate) fn new() -> Self {
        Self { through: Vec::new(), take: "-", is_typing: false, dir: TempDir::new().unwrap() }
    }

    /// Started by this command, which runs what follows its own words.
    pub(crate) fn through(mut self, words: &[&'a str]) -> Self {
        self.through = words.to_vec();
        self
    }

    /// The parent takes this descriptor for itself.
    pub(crate) fn taking(mut self, fd: &'a str) -> Self {
        self.take = fd;
        self
    }

    /// With a standard input that [`Parent::type_in`] writes to.
    pub(crate) fn typing(mut self) -> Self {
        self.is_typing = true;
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Starts it and lets it fork the keeper, which is not told to spawn the command yet.
    #[track_caller]
    pub(crate) fn start(self, command: &[&str]) -> Parent {
        let address = self.path().join("socket");
        let listener = UnixListener::bind(&address).unwrap();
        let own = std::env::current_exe().unwrap();
        let mut words: Vec<_> = self.through.iter().map(std::ffi::OsString::from).collect();
        words.extend([own.into(), parent::ROLE.into(), address.into(), self.take.into()]);
        words.extend(command.iter().map(std::ffi::OsString::from));
        let child = Command::new(&words[0])
            .args(&words[1..])
            .current_dir(self.path())
            .stdin(if self.is_typing { Stdio::piped() } else { Stdio::null() })
            .stdout(File::create(self.path().join("stdout")).unwrap())
            .spawn()
            .unwrap();
        let socket = listener.accept().unwrap().0;
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(socket.try_clone().unwrap());
        let mut parent = Parent { child, socket, lines, keeper: Pid::from_raw(0), dir: self.dir, hello: String::new() };
        parent.hello = parent.line();
        if let Some(pid) = parent.hello.strip_prefix("keeper ") {
            parent.keeper = pid_of(pid);
        }
        parent
    }

    /// The same, and lets it spawn the command.
    #[track_caller]
    pub(crate) fn run(self, command: &[&str]) -> (Parent, Pid) {
        let mut parent = self.start(command);
        let first = parent.spawn();
        (parent, first)
    }
}

/// A running parent with all its processes, which are killed when it is dropped.
pub(crate) struct Parent {
    pub(crate) child: Child,
    /// As the parent sees it: in another PID namespace this is not our number.
    pub(crate) keeper: Pid,
    /// What it said first.
    pub(crate) hello: String,
    socket: UnixStream,
    lines: BufReader<UnixStream>,
    dir: TempDir,
}

impl Parent {
    pub(crate) fn pid(&self) -> Pid {
        pid_of(&self.child.id())
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    #[track_caller]
    pub(crate) fn type_in(&mut self, text: &[u8]) {
        self.child.stdin.as_mut().unwrap().write_all(text).unwrap();
    }

    /// What it says next; empty at the end.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("the parent says something in time");
        line.trim_end().to_owned()
    }

    /// The keeper's next event.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Event {
        let mut line = self.line();
        // The tests that stop the parent let it go on with a signal that it reads.
        while line.starts_with("received 18 ") {
            line = self.line();
        }
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("not an event: {line:?}"))
    }

    /// What happened to the first process in the end, if that is the next event.
    #[track_caller]
    pub(crate) fn ending(&mut self) -> Ending {
        match self.event() {
            Event::Ended(ending) => ending,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.socket, "{order}").unwrap();
    }

    /// An order, done.
    #[track_caller]
    pub(crate) fn obeyed(&mut self, order: &str) {
        self.order(order);
        assert_eq!(self.line(), "ok");
    }

    #[track_caller]
    pub(crate) fn spawn_with(&mut self, environment: &Environment) -> Event {
        self.obeyed(&format!("spawn {}", serde_json::to_string(environment).unwrap()));
        self.event()
    }

    #[track_caller]
    pub(crate) fn spawn(&mut self) -> Pid {
        match self.spawn_with(&Environment::default()) {
            Event::Started { pid } => Pid::from_raw(pid),
            other => panic!("{other:?}"),
        }
    }

    /// Moves the instants.
    #[track_caller]
    pub(crate) fn instants(&mut self, signal_at: Option<Boot>, kill_at: Boot) {
        let ms = |at: Boot| at.since_boot().as_millis().to_string();
        self.obeyed(&format!("instants {} {}", signal_at.map_or("-".into(), ms), ms(kill_at)));
    }

    /// What the parent's own attempt to kill the tree leaves.
    #[track_caller]
    pub(crate) fn kill_tree(&mut self, within_ms: u32) -> Vec<rlock::child::Left> {
        self.order(&format!("kill {within_ms}"));
        let line = self.line();
        let left = serde_json::from_str(line.strip_prefix("left ").unwrap_or_else(|| panic!("{line:?}"))).unwrap();
        assert_eq!(self.line(), "ok");
        left
    }

    /// The contents of a file of the working directory once it has `count` lines.
    #[track_caller]
    pub(crate) fn lines_of(&self, name: &str, count: usize) -> Vec<String> {
        let path = self.path().join(name);
        let lines = || fs::read_to_string(&path).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
        wait_for(name, || lines().len() >= count);
        lines()
    }

    #[track_caller]
    pub(crate) fn pids_of(&self, name: &str, count: usize) -> Vec<Pid> {
        self.lines_of(name, count).iter().map(pid_of).collect()
    }

    /// Its end: the code, or minus the signal.
    #[track_caller]
    pub(crate) fn end(&mut self) -> i32 {
        let mut status = None;
        wait_for("the parent ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        status.code().unwrap_or_else(|| -status.signal().unwrap())
    }

    /// What the keeper's descriptors are.
    pub(crate) fn held_by_the_keeper(&self) -> Vec<String> {
        let names = fs::read_dir(format!("/proc/{}/fd", self.keeper)).unwrap().flatten();
        names.map(|name| fs::read_link(name.path()).unwrap_or_default().display().to_string()).collect()
    }

    /// Returns when the keeper has done everything that follows the start of the command: its timer runs.
    #[track_caller]
    pub(crate) fn wait_until_the_keeper_rests(&self) {
        let has_let_go = || self.held_by_the_keeper().iter().filter(|target| *target == "/dev/null").count() == 3;
        wait_for("the keeper lets go", has_let_go);
        wait_for("the keeper waits", || state(self.keeper) == Some('S'));
    }

    /// Every process of the rig: those that work in its directory.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let here = all.filter(|name| fs::read_link(name.path().join("cwd")).is_ok_and(|cwd| cwd == self.path()));
        here.filter_map(|name| name.file_name().to_str()?.parse().ok().map(Pid::from_raw))
            .filter(|pid| alive(*pid))
            .collect()
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        while !self.processes().is_empty() {
            for pid in self.processes() {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
        let _ = self.child.wait();
    }
}

pub(crate) fn pid_of(number: &(impl ToString + ?Sized)) -> Pid {
    Pid::from_raw(number.to_string().parse().unwrap())
}

/// The letter of a process's state; none where it does not exist.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

pub(crate) fn alive(pid: Pid) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

#[track_caller]
pub(crate) fn all_alive(pids: &[Pid]) {
    for pid in pids {
        assert!(alive(*pid), "{pid} is dead; all: {pids:?}");
    }
}

#[track_caller]
pub(crate) fn wait_for(what: &str, fact: impl FnMut() -> bool) {
    assert!(comes_true(PATIENCE, fact), "in vain: {what}");
}

/// Whether all of them are dead within this time.
pub(crate) fn all_die(pids: &[Pid], within: Duration) -> bool {
    comes_true(within, || !pids.iter().any(|pid| alive(*pid)))
}

fn comes_true(within: Duration, mut fact: impl FnMut() -> bool) -> bool {
    let end = Boot::now() + within;
    loop {
        if fact() {
            return true;
        }
        if Boot::now() >= end {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
pub(crate) fn signal(pid: Pid, signal: i32) {
    sys::kill(pid, signal).unwrap();
}

/// Stops a process; it has stopped when this returns.
#[track_caller]
pub(crate) fn stop(pid: Pid) {
    signal(pid, libc::SIGSTOP);
    wait_for("a process stops", || state(pid) == Some('T'));
}
