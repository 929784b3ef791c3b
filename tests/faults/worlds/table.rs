//! The same faults side by side: rlock, `etcdctl lock` and `flock`, by what their commands wrote.
//!
//! `cargo test --test worlds -- side_by_side` prints the table. Every cell has a server, a command that obeys TERM and
//! would take 8 s with a child in its background, and a second wrapper that waits for the same lock.

use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlock::clock::Boot;

use crate::command::{Family, HISTORY, Job, Manner, PLACE};
use crate::history;
use crate::proxy::{Proxy, Way};
use crate::rlock::{rlock, until, within};
use crate::servers::{Server, free_port};

/// The lease of those that have one.
const TTL: &str = "2";
/// How long the command takes when nothing ends it.
const WORK: Duration = Duration::from_secs(8);
/// How long is watched after the fault: longer than the command's work and a lease.
const WATCHED: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    RlockRedis,
    RlockLocal,
    Etcdctl,
    Flock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    CutOff,
    Signal(Signal),
}

const TOOLS: [(Tool, &str); 4] = [
    (Tool::RlockRedis, "`rlock run`, Redis"),
    (Tool::RlockLocal, "`rlock run`, `local:`"),
    (Tool::Etcdctl, "`etcdctl lock`"),
    (Tool::Flock, "`flock`"),
];
const HARMS: [(Harm, &str); 4] = [
    (Harm::CutOff, "its server is cut off for longer than the lease"),
    (Harm::Signal(Signal::SIGTERM), "TERM"),
    (Harm::Signal(Signal::SIGKILL), "KILL"),
    (Harm::Signal(Signal::SIGSTOP), "STOP for longer than the lease, then CONT"),
];

/// What one wrapper's command and the next one's did.
struct Seen {
    /// From the fault to the last that was heard of the command, and of its child.
    ran: Duration,
    /// It came to its own end.
    has_ended: bool,
    /// To the start of the next.
    next: Option<Duration>,
    /// How the wrapper ended; one that was stopped may go on first.
    status: Option<ExitStatus>,
    /// How long both ran.
    together: Option<Duration>,
}

/// An etcd server, ended when it is dropped.
struct Etcd {
    child: Child,
    port: u16,
}

impl Etcd {
    /// None where it is not installed. One whose ports somebody else took meanwhile ends, and is started with others.
    fn start(dir: &Path) -> Option<Self> {
        for _ in 0..5 {
            let mut etcd = Self::begin(dir)?;
            let is_up = until("etcd listens or ends", || match TcpStream::connect(("127.0.0.1", etcd.port)) {
                Ok(_) if etcd.child.try_wait().unwrap().is_none() => Some(true),
                _ => etcd.child.try_wait().unwrap().map(|_| false),
            });
            if is_up {
                return Some(etcd);
            }
        }
        panic!("etcd ends at once, again and again");
    }

    fn begin(dir: &Path) -> Option<Self> {
        let (port, peers) = (free_port(), free_port());
        let [client, peer] = [port, peers].map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(dir.join("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        Some(Self { child, port })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a tool's locks are kept by.
enum Keep {
    Redis(Server),
    Etcd(Etcd),
    Directory,
}

impl Keep {
    fn start(tool: Tool, dir: &Path) -> Option<Self> {
        match tool {
            Tool::RlockRedis => Some(Self::Redis(Server::start())),
            Tool::Etcdctl => Etcd::start(dir).map(Self::Etcd),
            Tool::RlockLocal | Tool::Flock => Some(Self::Directory),
        }
    }

    fn port(&self) -> Option<u16> {
        match self {
            Self::Redis(server) => Some(server.port()),
            Self::Etcd(etcd) => Some(etcd.port),
            Self::Directory => None,
        }
    }
}

fn wrapper(tool: Tool, port: Option<u16>, dir: &Path, job: Job) -> Command {
    let mut command = match tool {
        Tool::RlockRedis | Tool::RlockLocal => {
            let url = match port {
                Some(port) => format!("redis://127.0.0.1:{port}"),
                None => format!("local:{}", dir.join("locks").display()),
            };
            rlock(["--url", &url, "run", "-q", "-k", "job", "--ttl", TTL, "--"]).0
        }
        Tool::Etcdctl => {
            let mut command = Command::new("etcdctl");
            let endpoint = format!("http://127.0.0.1:{}", port.unwrap());
            command.args(["--endpoints", &endpoint, "lock", "--ttl", TTL, "--", "job"]);
            command
        }
        Tool::Flock => {
            let mut command = Command::new("flock");
            command.arg(dir.join("lock"));
            command
        }
    };
    command.args(job.words()).env(PLACE, dir).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn lives(dir: &Path) -> Vec<history::Life> {
    let text = std::fs::read_to_string(dir.join(HISTORY)).unwrap_or_default();
    history::read(&text[..text.rfind('\n').map_or(0, |at| at + 1)])
}

/// None where the tool is not installed.
fn see(tool: Tool, harm: Harm) -> Option<Seen> {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let keep = Keep::start(tool, dir)?;
    let proxy = keep.port().map(Proxy::before);
    let job = |run, family, lasts| Job { run, key: 0, manner: Manner::Obeys, family, lasts };
    let mut holder = wrapper(tool, proxy.as_ref().map(Proxy::port), dir, job(0, Family::Child, WORK)).spawn().ok()?;
    let has_child = || std::fs::read_to_string(dir.join(HISTORY)).is_ok_and(|text| text.contains("beat 0 0 child\n"));
    until("the command and its child run", || has_child().then_some(()));
    let mut next = wrapper(tool, keep.port(), dir, job(1, Family::Alone, WORK)).spawn().unwrap();
    // Long enough to be waiting; whether it is does not matter to who may be inside.
    thread::sleep(Duration::from_millis(500));
    let pid = Pid::from_raw(i32::try_from(holder.id()).unwrap());
    let struck = Boot::now();
    match harm {
        Harm::CutOff => proxy.as_ref().unwrap().set(Way::Lost, Way::Lost),
        Harm::Signal(signal) => kill(pid, signal).unwrap(),
    }
    thread::sleep(WATCHED);
    let all = lives(dir);
    let of = |run: usize| all.iter().find(|life| life.run == run);
    let first = of(0).unwrap();
    let together = history::overlaps(&all).first().map(|overlap| overlap.to.since(overlap.from));
    if harm == Harm::Signal(Signal::SIGSTOP) {
        kill(pid, Signal::SIGCONT).unwrap();
    }
    let status = within(Duration::from_secs(2), || holder.try_wait().unwrap());
    end_those_left(dir);
    for child in [&mut holder, &mut next] {
        let _ = child.kill();
        let _ = child.wait();
    }
    let has_ended = first.has_ended;
    Some(Seen {
        ran: first.to.since(struck),
        has_ended,
        next: of(1).map(|life| life.from.since(struck)),
        status,
        together,
    })
}

/// Ends what still runs of the commands.
fn end_those_left(dir: &Path) {
    let text = std::fs::read_to_string(dir.join(HISTORY)).unwrap_or_default();
    for pid in text.lines().filter_map(|line| line.split("start:").nth(1)?.split(':').next()) {
        let is_ours = std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir);
        if is_ours {
            let _ = kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
        }
    }
}

fn cell(harm: Harm, seen: Option<&Seen>) -> String {
    let Some(Seen { ran, has_ended, next, status, together }) = seen else { return "not installed".into() };
    let seconds = |time: &Duration| format!("{:.1} s", time.as_secs_f64());
    let exit = match status.map(|status| (status.code(), status.signal())) {
        _ if harm == Harm::Signal(Signal::SIGKILL) => String::new(),
        Some((Some(code), _)) => format!(", exit {code}"),
        Some((None, Some(signal))) => format!(", dies of {}", Signal::try_from(signal).unwrap()),
        _ => ", does not end".into(),
    };
    let command =
        if *has_ended { "command ran on to its end".into() } else { format!("command dead after {}", seconds(ran)) };
    let next = next.as_ref().map_or("next not in".into(), |next| format!("next in after {}", seconds(next)));
    let both = together.map_or(String::new(), |time| format!("**two at once for {}**: ", seconds(&time)));
    format!("{both}{command}, {next}{exit}")
}

/// Prints the table; rlock must never have two.
pub(crate) fn side_by_side() {
    let rows = thread::scope(|scope| {
        let row = |harm: Harm| {
            TOOLS.map(|(tool, _)| {
                let has_server = matches!(tool, Tool::RlockRedis | Tool::Etcdctl);
                (harm != Harm::CutOff || has_server).then(|| scope.spawn(move || see(tool, harm)))
            })
        };
        let started = HARMS.map(|(harm, _)| row(harm));
        started.map(|row| row.map(|cell| cell.map(|cell| cell.join().unwrap())))
    });
    let head = format!("| what befalls the holder's wrapper | {} |", TOOLS.map(|(_, name)| name).join(" | "));
    let mut table = vec![head, format!("|---{}|", "|---".repeat(TOOLS.len()))];
    for ((harm, name), row) in HARMS.iter().zip(&rows) {
        let cells = row.each_ref().map(|seen| seen.as_ref().map_or("—".into(), |seen| cell(*harm, seen.as_ref())));
        table.push(format!("| {name} | {} |", cells.join(" | ")));
    }
    println!("\n{}\n", table.join("\n"));
    for (seen, (tool, _)) in rows.iter().flat_map(|row| row.iter().zip(TOOLS)) {
        let is_rlock = matches!(tool, Tool::RlockRedis | Tool::RlockLocal);
        let together = seen.as_ref().and_then(|seen| seen.as_ref()?.together);
        assert!(!is_rlock || together.is_none(), "{tool:?}: two at once for {together:?}");
    }
}
