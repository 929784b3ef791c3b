//! How fast rlock is, as ratios against flock(1) in the same run: `cargo bench`. Absolute times are this machine's and
//! this minute's; only what stands in one row may be compared. The least is what the program takes, as far as a busy
//! host lets it be seen; the median is what this host makes of it.
//!
//! Needs redis-server and flock. `cargo bench -- 1000` adds the rows with a thousand waiters.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and ends where something is wrong")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::stat::Mode;
use rlock::clock::Boot;
use rlock::store::{self, Cancel, Key, Url};

#[path = "../tests/store/servers.rs"]
mod servers;
use servers::Server;

/// Runs of each command in the first table.
const RUNS: usize = 300;
/// Keys that these take turns with: a key that is taken a hundred times a second has a longer record than others.
const KEYS: usize = 20;
/// Hand-overs of each size in the second table, at least, and drains that they are spread over, at least.
const HAND_OVERS: usize = 200;
const DRAINS: usize = 5;

/// What locks.
#[derive(Clone, Copy)]
enum Kind {
    Flock,
    Local,
    Redis,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Flock, Self::Local, Self::Redis];

    fn name(self) -> &'static str {
        match self {
            Self::Flock => "flock",
            Self::Local => "rlock, local",
            Self::Redis => "rlock, Redis",
        }
    }
}

struct Bench {
    dir: tempfile::TempDir,
    server: Server,
}

fn main() {
    let bench = Bench { dir: tempfile::tempdir().unwrap(), server: Server::start() };
    let thousand = std::env::args().any(|word| word == "1000");
    bench.one_run();
    bench.hand_over(if thousand { &[2, 20, 100, 1000] } else { &[2, 20, 100] });
    bench.requests(if thousand { &[10, 100, 1000] } else { &[10, 100] });
    bench.memory();
}

impl Bench {
    /// `what` under the lock `name`, with nothing on its streams.
    fn locked(&self, kind: Kind, name: &str, what: &[&str]) -> Command {
        let mut command = match kind {
            Kind::Flock => Command::new("flock"),
            Kind::Local | Kind::Redis => Command::new(env!("CARGO_BIN_EXE_rlock")),
        };
        match self.url(kind) {
            None => command.arg(self.path(name)),
            Some(url) => command.env("RLOCK_URL", url).args(["run", "-q", "-k", name, "--"]),
        };
        command.args(what).env("RLOCK_CONFIG", "/dev/null").current_dir(self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn url(&self, kind: Kind) -> Option<String> {
        match kind {
            Kind::Flock => None,
            Kind::Local => Some(format!("local:{}", self.path("store").display())),
            Kind::Redis => Some(self.server.unix_url()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn one_run(&self) {
        println!("One run of `true`, {RUNS} each in turn\n");
        head("");
        let mut times = [const { Vec::new() }; 3];
        for round in 0..RUNS {
            // Whoever comes after the same one each time would be helped or harmed by it.
            for at in (0..3).map(|at| (at + round) % 3) {
                let kind = Kind::ALL[at];
                let mut command = self.locked(kind, &format!("one-{}", round % KEYS), &["true"]);
                let began = Boot::now();
                let status = command.status().unwrap();
                times[at].push(Boot::now().since(began));
                assert!(status.success(), "{}", kind.name());
            }
        }
        rows("", times);
    }

    /// From the end of the first holder to the end of the last waiter, divided by their number.
    fn hand_over(&self, sizes: &[usize]) {
        println!("\nTime for one hand-over, queues of each kind in turn\n");
        head("waiters");
        for size in sizes {
            let mut times = [const { Vec::new() }; 3];
            // A thousand are enough for a median by themselves.
            let drains = if *size < 1000 { DRAINS.max(HAND_OVERS / size / 3) } else { 1 };
            for round in 0..drains {
                for (kind, times) in Kind::ALL.into_iter().zip(&mut times) {
                    let took = self.drain(kind, &format!("queue-{size}-{round}"), *size, || ());
                    times.push(took / u32::try_from(*size).unwrap());
                }
            }
            rows(&size.to_string(), times);
        }
    }

    fn drain(&self, kind: Kind, name: &str, size: usize, at_start: impl FnOnce()) -> Duration {
        let gate = self.path(&format!("{name}-gate"));
        nix::unistd::mkfifo(&gate, Mode::S_IRWXU).unwrap();
        let ready = self.path(&format!("{name}-ready"));
        let line = format!("touch {}; read x < {}", ready.display(), gate.display());
        let mut holder = self.locked(kind, name, &["sh", "-c", &line]).spawn().unwrap();
        until(|| ready.exists());
        let mut waiters: Vec<Child> = (0..size).map(|_| self.locked(kind, name, &["true"]).spawn().unwrap()).collect();
        match self.url(kind) {
            None => settle(&waiters),
            Some(url) => queued(&url, name, size),
        }
        at_start();
        let began = Boot::now();
        fs::write(&gate, "x\n").unwrap();
        for child in waiters.iter_mut().chain([&mut holder]) {
            assert!(child.wait().unwrap().success(), "{}", kind.name());
        }
        fs::remove_file(gate).unwrap();
        fs::remove_file(ready).unwrap();
        Boot::now().since(began)
    }

    /// What the server counts while a queue drains. The refreshes of those who wait are in it.
    fn requests(&self, sizes: &[usize]) {
        println!("\nRequests that Redis counts for one hand-over, refreshes included\n");
        println!("{:>10}{:>12}{:>14}", "waiters", "requests", "server's CPU");
        for size in sizes {
            let began = || drop(self.query::<String>(&["CONFIG", "RESETSTAT"]));
            self.drain(Kind::Redis, &format!("counted-{size}"), *size, began);
            let (count, cpu) = self.counted();
            println!("{size:>10}{:>12.2}{:>11.0} us", per(count, *size), per(cpu, *size));
        }
    }

    /// Requests and microseconds of the server's work since the counters were set to nought.
    fn counted(&self) -> (u64, u64) {
        let info: String = self.query(&["INFO", "commandstats"]);
        let sum = |field: &str, names: &[&str]| {
            let lines =
                info.lines().filter(|line| names.iter().any(|name| line.starts_with(&format!("cmdstat_{name}:"))));
            let fields = lines.filter_map(|line| line.split(field).nth(1)?.split(',').next()?.parse::<u64>().ok());
            fields.sum::<u64>()
        };
        let names = ["eval", "evalsha", "blpop"];
        (sum("calls=", &names), sum(",usec=", &names))
    }

    fn query<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.server.connect()).unwrap()
    }

    fn memory(&self) {
        println!("\nMemory while a command runs (PSS, rlock and its keeper)\n");
        for (kind, name) in [(Kind::Local, "memory-local"), (Kind::Redis, "memory-redis")] {
            let ready = self.path(&format!("{name}-ready"));
            let line = format!("touch {}; exec sleep 100", ready.display());
            let mut child = self.locked(kind, name, &["sh", "-c", &line]).spawn().unwrap();
            until(|| ready.exists());
            let own = child.id().to_string();
            let keeper = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
            let sizes = [own.as_str(), keeper.trim()].map(pss);
            println!(
                "{:<16}{:>7} KiB{:>7} KiB{:>9} KiB together",
                kind.name(),
                sizes[0],
                sizes[1],
                sizes[0] + sizes[1]
            );
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// Waits until so many wait for the key, and half a second more for those who were still telling so.
fn queued(url: &str, key: &str, size: usize) {
    let (url, key) = (Url::parse(url).unwrap(), Key::parse(key).unwrap());
    let mut store = store::open(&url, None, &Cancel::new().unwrap());
    until(|| store.look(&key, Boot::now() + Duration::from_secs(10)).is_ok_and(|look| look.queue.len() == size));
    std::thread::sleep(Duration::from_millis(500));
}

/// Waits until no process has used a processor for 300 ms: what waits for a file's lock tells nobody.
fn settle(children: &[Child]) {
    let used = || -> u64 {
        let files = children
            .iter()
            .map(|child| fs::read_to_string(Path::new("/proc").join(child.id().to_string()).join("stat")));
        files.flatten().filter_map(|stat| stat.rsplit(' ').nth(38)?.parse::<u64>().ok()).sum()
    };
    let mut last = (used(), Boot::now());
    until(|| {
        let now = used();
        if now != last.0 {
            last = (now, Boot::now());
        }
        Boot::now().since(last.1) > Duration::from_millis(300)
    });
}

fn pss(pid: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Pss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn until(mut fact: impl FnMut() -> bool) {
    let end = Boot::now() + Duration::from_secs(60);
    while !fact() {
        assert!(Boot::now() < end, "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn head(size: &str) {
    println!("{:<16}{size:>8}{:>12}{:>12}{:>12}{:>16}{:>10}", "", "least", "median", "p90", "times flock's", "least");
}

/// One row for each kind. The least is the second percentile: a single lucky run says nothing.
fn rows(size: &str, mut times: [Vec<Duration>; 3]) {
    let [base, ..] = &mut times;
    let base = [50, 2].map(|percent| quantile(base, percent));
    for (kind, times) in Kind::ALL.into_iter().zip(&mut times) {
        let [median, least, p90] = [50, 2, 90].map(|percent| quantile(times, percent));
        let [shown_least, shown_median, shown_p90] =
            [least, median, p90].map(|time| format!("{} us", time.as_micros()));
        println!(
            "{:<16}{size:>8}{shown_least:>12}{shown_median:>12}{shown_p90:>12}{:>16.2}{:>10.2}",
            kind.name(),
            ratio(median, base[0]),
            ratio(least, base[1])
        );
    }
}

fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

fn ratio(time: Duration, base: Duration) -> f64 {
    time.as_secs_f64() / base.as_secs_f64()
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn per(count: u64, size: usize) -> f64 {
    count as f64 / size as f64
}
