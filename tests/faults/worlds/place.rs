//! Where a world keeps its locks, and what is done to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::plan::{Fault, Ground, HOSTS, Line, Upheaval, What};
use crate::proxy::{Proxy, Way};
use crate::servers::Server;

pub(crate) enum Place {
    Server(Box<Site>),
    Directory(Disk),
}

/// A server and the line of each host to it.
pub(crate) struct Site {
    server: Server,
    lines: Vec<Proxy>,
    /// By how many milliseconds the server's clock was moved; none where that cannot be done.
    clock: Option<i64>,
}

/// A small file system of its own, where that may be.
pub(crate) struct Disk {
    folder: PathBuf,
    is_mounted: bool,
}

impl Place {
    pub(crate) fn start(ground: Ground, dir: &Path) -> Self {
        if ground == Ground::Directory {
            return Self::Directory(Disk::new(dir));
        }
        fs::write(dir.join("pw"), "pw").unwrap();
        let lines = [
            "appendonly yes",
            "appendfsync always",
            "lua-time-limit 20",
            "user app on >pw ~* +@all",
            "loglevel warning",
        ];
        let own_clock = ground == Ground::Stepped;
        let server = if own_clock { Server::with_own_clock(&lines) } else { Server::with(&lines) };
        let hosts = (0..HOSTS).map(|_| Proxy::before(server.port())).collect();
        Self::Server(Box::new(Site { server, lines: hosts, clock: own_clock.then_some(0) }))
    }

    /// What a host's rlocks are told before `run`.
    pub(crate) fn words(&self, host: usize) -> Vec<String> {
        let url = match self {
            Self::Server(site) => site.lines[host].url().replace("//", "//app@"),
            Self::Directory(disk) => return vec!["--url".into(), disk.url()],
        };
        ["--url", &url, "--password-file", "pw"].map(str::to_owned).into()
    }

    /// For who looks from beside.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Server(site) => site.server.unix_url(),
            Self::Directory(disk) => disk.url(),
        }
    }

    pub(crate) fn begin(&mut self, fault: &Fault) {
        match (self, fault.what) {
            (Self::Server(site), What::Line { host, how }) => site.line(host, how),
            (Self::Server(site), What::Server(how)) => site.begin(how, fault.lasts),
            (Self::Directory(disk), What::FullDisk) => disk.fill(),
            _ => {}
        }
    }

    pub(crate) fn end(&mut self, what: What) {
        match (self, what) {
            // What follows it sets the line.
            (Self::Server(_), What::Line { how: Line::Late(_), .. }) => {}
            (Self::Server(site), What::Line { host, .. }) => site.lines[host].set(Way::Open, Way::Open),
            (Self::Server(site), What::Server(how)) => site.end(how),
            (Self::Directory(disk), What::FullDisk) => disk.empty(),
            _ => {}
        }
    }

    /// Whether this fault can be made here.
    pub(crate) fn can(&self, what: What) -> bool {
        match (self, what) {
            (Self::Directory(disk), What::FullDisk) => disk.is_mounted,
            (Self::Server(site), What::Server(Upheaval::ClockBack(_) | Upheaval::ClockForward(_))) => {
                site.clock.is_some()
            }
            _ => true,
        }
    }
}

impl Site {
    fn line(&self, host: usize, how: Line) {
        let line = &self.lines[host];
        line.forget_the_lost();
        let (to_server, to_client) = match how {
            Line::LostLost => (Way::Lost, Way::Lost),
            Line::LostOpen => (Way::Lost, Way::Open),
            Line::OpenLost => (Way::Open, Way::Lost),
            Line::HeldHeld => (Way::Held, Way::Held),
            Line::HeldOpen => (Way::Held, Way::Open),
            Line::OpenHeld => (Way::Open, Way::Held),
            Line::Slow(ms) => (Way::Slow(Duration::from_millis(ms)), Way::Slow(Duration::from_millis(ms))),
            Line::Late(ms) => (Way::Open, Way::Slow(Duration::from_millis(ms))),
            Line::Drip => (Way::Open, Way::Drip(Duration::from_millis(30))),
            Line::Cut => return line.cut(),
        };
        line.set(to_server, to_client);
    }

    fn tell(&self, words: &[&str]) {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut self.server.connect()).unwrap();
    }

    fn begin(&mut self, how: Upheaval, lasts: Duration) {
        let ms = lasts.as_millis().to_string();
        match how {
            Upheaval::Freeze => self.server.freeze(),
            Upheaval::Restart => self.server.stop(),
            Upheaval::ClientKill => self.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]),
            Upheaval::ClientPause => self.tell(&["CLIENT", "PAUSE", &ms]),
            Upheaval::ScriptFlush => self.tell(&["SCRIPT", "FLUSH"]),
            Upheaval::FlushAll => self.tell(&["FLUSHALL"]),
            Upheaval::OutOfMemory => self.tell(&["CONFIG", "SET", "maxmemory", "1"]),
            Upheaval::RightsTaken => self.tell(&["ACL", "SETUSER", "app", "-evalsha", "-eval", "-blpop"]),
            Upheaval::Demoted => self.tell(&["REPLICAOF", "127.0.0.1", "1"]),
            Upheaval::ClockBack(ms) => self.step(-i64::try_from(ms).unwrap()),
            Upheaval::ClockForward(ms) => self.step(i64::try_from(ms).unwrap()),
            Upheaval::SlowScript => {
                let (mut connection, ms) = (self.server.connect(), ms);
                thread::spawn(move || {
                    let slow = "local function now() local t = redis.call('TIME'); return t[1] * 1000 + t[2] / 1000 end \
                        local stop = now() + ARGV[1] while now() < stop do end";
                    // The server may be ended before it has answered.
                    let _ = redis::cmd("EVAL").arg(slow).arg(0).arg(ms).exec(&mut connection);
                });
            }
        }
    }

    fn end(&mut self, how: Upheaval) {
        match how {
            Upheaval::Freeze => self.server.thaw(),
            Upheaval::Restart => self.server.restart(),
            Upheaval::OutOfMemory => self.tell(&["CONFIG", "SET", "maxmemory", "0"]),
            Upheaval::RightsTaken => self.tell(&["ACL", "SETUSER", "app", "+@all"]),
            Upheaval::Demoted => self.tell(&["REPLICAOF", "NO", "ONE"]),
            _ => {}
        }
    }

    /// Moves the server's clock by so many milliseconds.
    fn step(&mut self, by: i64) {
        let Some(moved) = &mut self.clock else { return };
        *moved += by;
        self.server.set_clock(*moved);
    }
}

impl Disk {
    fn new(dir: &Path) -> Self {
        let folder = dir.join("disk");
        fs::create_dir(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "none"]).arg(&folder);
        // Only root may, and not everywhere.
        let is_mounted = mount.output().is_ok_and(|done| done.status.success());
        Self { folder, is_mounted }
    }

    fn url(&self) -> String {
        format!("local:{}", self.folder.join("locks").display())
    }

    fn fill(&self) {
        // It ends where there is no more room.
        let _ = fs::write(self.folder.join("filler"), vec![b'x'; 1 << 20]);
    }

    fn empty(&self) {
        // It is not there where there was no room for it.
        let _ = fs::remove_file(self.folder.join("filler"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
        }
    }
}
