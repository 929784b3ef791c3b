//! Twenty-odd runs at a time on a few keys, killed, stopped and told to end at random, on a server that freezes for
//! less and for more than they tolerate. What the commands wrote is the history that is checked.
//!
//! `RLOCK_STRESS_SECONDS` makes it longer, `RLOCK_SEED` repeats the choices (not the timing).

use std::collections::HashMap;
use std::time::Duration;

use nix::sys::signal::Signal;
use rlock::clock::Boot;

use crate::Stage;
use crate::rlock::{Running, children, send, until};

const KEYS: [&str; 3] = ["a", "b b", "{c}d"];
const AT_ONCE: usize = 24;
/// A freeze is for less than this, or for more than [`LONG`]: at a ttl of 3 s, 1.1 s are tolerated.
const SHORT: u64 = 700;
const LONG: u64 = 4_000;

/// The kernel judges: whoever is inside holds the lock of a file, and so does all that it started.
const INSIDE: &str = "exec 9>>\"judge $1\"; flock -n 9 || echo \"$2 in $1\" >> overlaps; \
    read up rest < /proc/uptime; echo \"$2 $RLOCK_TOKEN ${RLOCK_CLAIM%%@*} $up\" >> \"starts $1\"; \
    sh -c \"sleep $3\"; echo $2 >> ends";

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// One run of rlock.
struct Run {
    number: usize,
    running: Running,
    /// How it asks: forever, with a limit, or at once.
    patient: bool,
    /// Somebody stopped, ended or killed it.
    disturbed: bool,
    stopped_until: Option<Boot>,
}

/// The start of a command, as it wrote it.
#[derive(Debug)]
struct Start {
    number: usize,
    token: u64,
    claim: String,
    at: f64,
}

struct Crowd {
    stage: Stage,
    /// The longest that a command works, in milliseconds.
    longest: u64,
    random: Random,
    runs: Vec<Run>,
    made: usize,
    /// What came of those that ended undisturbed, by their number.
    codes: HashMap<usize, i32>,
    disturbed: Vec<usize>,
    frozen_until: Option<Boot>,
    /// When the server was frozen for long, in seconds since the machine's start.
    long: Vec<(f64, f64)>,
    /// Who waited behind whom, and when that was seen.
    queues: Vec<(&'static str, f64, Vec<String>)>,
}

fn seconds(at: Boot) -> f64 {
    at.since_boot().as_secs_f64()
}

impl Crowd {
    fn new(seed: u64, longest: u64) -> Self {
        Self {
            stage: Stage::new(),
            longest,
            random: Random(seed),
            runs: Vec::new(),
            made: 0,
            codes: HashMap::new(),
            disturbed: Vec::new(),
            frozen_until: None,
            long: Vec::new(),
            queues: Vec::new(),
        }
    }

    fn start_one(&mut self) {
        self.made += 1;
        let number = self.made;
        let key = KEYS[usize::try_from(self.random.below(3)).unwrap()];
        // One in a few works for longer than its lease lasts without a renewal.
        let time = if self.random.one_in(8) {
            self.longest / 2 + self.random.below(self.longest / 2)
        } else {
            self.random.below(200)
        };
        let (name, time) = (number.to_string(), format!("{}.{:03}", time / 1_000, time % 1_000));
        let (patient, wait): (bool, &[&str]) = match self.random.below(8) {
            0 => (false, &["-n"]),
            1 => (false, &["-w", "1500ms"]),
            _ => (true, &[]),
        };
        let command = ["--", "sh", "-c", INSIDE, "inside", key, &name, &time];
        let args = [&["-q", "--ttl", "3s"], wait, &command].concat();
        let running = self.stage.run(key, &args).start();
        self.runs.push(Run { number, running, patient, disturbed: false, stopped_until: None });
    }

    /// Takes those that have ended.
    fn reap(&mut self) {
        for mut run in std::mem::take(&mut self.runs) {
            if !run.running.is_over() {
                self.runs.push(run);
                continue;
            }
            let done = run.running.done();
            if run.disturbed {
                self.disturbed.push(run.number);
                continue;
            }
            let code = done.status.code();
            let may_be = match code {
                Some(0) => true,
                // 69: the store was silent when the wait ran out.
                Some(75 | 69) => !run.patient,
                Some(79) => !self.long.is_empty(),
                _ => false,
            };
            assert!(may_be, "{} ended with {done:?}", run.number);
            self.codes.insert(run.number, code.unwrap());
        }
    }

    /// Stops, ends or kills one, or lets one go on.
    fn disturb(&mut self) {
        let now = Boot::now();
        for run in self.runs.iter_mut().filter(|run| run.stopped_until.is_some_and(|until| until <= now)) {
            run.running.signal(Signal::SIGCONT);
            run.stopped_until = None;
        }
        if self.runs.is_empty() || !self.random.one_in(25) {
            return;
        }
        let at = self.random.below(self.runs.len() as u64);
        let (kind, time) = (self.random.below(4), Duration::from_millis(100 + self.random.below(3_500)));
        let run = &mut self.runs[usize::try_from(at).unwrap()];
        run.disturbed = true;
        match kind {
            0 => run.running.signal(Signal::SIGKILL),
            1 => run.running.signal(Signal::SIGTERM),
            2 => {
                // Its keeper: the one child it has, once it has one.
                for keeper in children(&run.running.pid().to_string()) {
                    send(&keeper, Signal::SIGKILL);
                }
            }
            _ => {
                run.running.signal(Signal::SIGSTOP);
                run.stopped_until = Some(now + time);
            }
        }
    }

    fn freeze(&mut self, may_be_long: bool) {
        let now = Boot::now();
        match self.frozen_until {
            Some(until) if until <= now => {
                self.stage.server().thaw();
                self.frozen_until = None;
            }
            Some(_) => {}
            None if self.random.one_in(60) => {
                let long = may_be_long && self.random.one_in(4);
                let time = Duration::from_millis(if long { LONG } else { 50 + self.random.below(SHORT) });
                self.stage.server().freeze();
                if long {
                    self.long.push((seconds(now), seconds(now + time) + 3.0));
                }
                self.frozen_until = Some(now + time);
            }
            None => self.look(),
        }
    }

    /// Notes who waits behind whom.
    fn look(&mut self) {
        let key = KEYS[usize::try_from(self.random.below(3)).unwrap()];
        let queue =
            if key.contains('{') { format!("{key}:rlock1:queue") } else { format!("{key}:rlock1:queue:{{{key}}}") };
        let at = seconds(Boot::now());
        self.queues.push((key, at, self.stage.redis(&["ZRANGE", &queue, "0", "-1"])));
    }

    /// Lets everything go on and waits until all have ended.
    fn end(&mut self) {
        if self.frozen_until.take().is_some() {
            self.stage.server().thaw();
        }
        for run in &mut self.runs {
            if run.stopped_until.take().is_some() {
                run.running.signal(Signal::SIGCONT);
            }
        }
        until("all have ended", || {
            self.reap();
            self.runs.is_empty().then_some(())
        });
    }

    fn starts(&self, key: &str) -> Vec<Start> {
        let lines = self.stage.lines(&format!("starts {key}"));
        let start = |line: &String| {
            let parts: Vec<_> = line.split(' ').collect();
            let [number, token, claim, at] = parts[..] else { panic!("{line}") };
            let (number, token) = (number.parse().unwrap(), token.parse().unwrap());
            Start { number, token, claim: claim.to_owned(), at: at.parse().unwrap() }
        };
        lines.iter().map(start).collect()
    }

    /// Checks what the commands wrote, and tells how much that was.
    fn check(&self) -> String {
        assert_eq!(self.stage.lines("overlaps"), Vec::<String>::new());
        let mut ran = 0;
        for key in KEYS {
            let starts = self.starts(key);
            ran += starts.len();
            for pair in starts.windows(2) {
                assert!(pair[0].token < pair[1].token, "{key}: {pair:?}");
            }
            self.check_order(key, &starts);
        }
        let started: Vec<usize> = KEYS.iter().flat_map(|key| self.starts(key)).map(|start| start.number).collect();
        let ended: Vec<usize> = self.stage.lines("ends").iter().map(|line| line.parse().unwrap()).collect();
        for (number, code) in &self.codes {
            let times = started.iter().filter(|one| *one == number).count();
            let wanted = usize::from(matches!(code, 0 | 79));
            // A lease that was lost before the command began ends it before it has written.
            assert!(times == wanted || (*code == 79 && times == 0), "{number} ended with {code} and ran {times} times");
            assert!(*code != 0 || ended.contains(number), "{number} ended with 0 before its command");
        }
        assert!(ran > 10, "it was no stress: {ran} commands");
        let (disturbed, long) = (self.disturbed.len(), self.long.len());
        format!("{} runs, {ran} commands, {disturbed} disturbed, {long} long freezes", self.made)
    }

    /// Who was seen behind another started behind it, where nothing befell either.
    fn check_order(&self, key: &str, starts: &[Start]) {
        let place: HashMap<&str, usize> =
            starts.iter().enumerate().map(|(at, start)| (start.claim.as_str(), at)).collect();
        for (_, seen, queue) in self.queues.iter().filter(|(queued, _, _)| *queued == key) {
            let started: Vec<usize> = queue
                .iter()
                .filter_map(|claim| place.get(claim.as_str()).copied())
                .filter(|at| !self.disturbed.contains(&starts[*at].number))
                .filter(|at| !self.long.iter().any(|(from, to)| *seen < *to && starts[*at].at > *from))
                .collect();
            assert!(started.windows(2).all(|pair| pair[0] < pair[1]), "{key}: {queue:?} started as {started:?}");
        }
    }

    /// Nothing is left in the store without an end, nobody waits, and no process is left.
    fn check_that_nothing_is_left(&self) {
        let keys: Vec<String> = self.stage.redis(&["KEYS", "*"]);
        for key in &keys {
            // It may have ended since.
            assert_ne!(self.stage.redis::<i64>(&["PTTL", key]), -1, "{key} has no end");
        }
        until("the leases of the killed have run out", || {
            let keys: Vec<String> = self.stage.redis(&["KEYS", "*"]);
            let kept = ["token", "gone", "log"].map(|name| format!(":rlock1:{name}"));
            keys.iter().all(|key| kept.iter().any(|part| key.contains(part))).then_some(())
        });
        until("no process is left", || {
            let here = |entry: std::fs::DirEntry| {
                std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == self.stage.dir.path())
            };
            (!std::fs::read_dir("/proc").unwrap().flatten().any(here)).then_some(())
        });
    }
}

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn seed() -> u64 {
    given("RLOCK_SEED").unwrap_or_else(|| u64::try_from(Boot::now().since_boot().as_nanos()).unwrap())
}

fn stress(seed: u64, seconds: u64, long_freezes: bool) -> String {
    let end = Boot::now() + Duration::from_secs(given("RLOCK_STRESS_SECONDS").unwrap_or(seconds));
    let mut crowd = Crowd::new(seed, if long_freezes { 2 * LONG } else { LONG / 2 });
    while Boot::now() < end {
        crowd.reap();
        if crowd.runs.len() < AT_ONCE {
            crowd.start_one();
        }
        crowd.disturb();
        crowd.freeze(long_freezes);
        std::thread::sleep(Duration::from_millis(20));
    }
    crowd.end();
    crowd.check_that_nothing_is_left();
    crowd.check()
}

#[test]
fn a_crowd_on_a_server_that_freezes_for_less_than_is_tolerated() {
    let seed = seed();
    println!("RLOCK_SEED={seed}");
    println!("{}", stress(seed, 8, false));
}

#[test]
fn a_crowd_on_a_server_that_freezes_for_longer_too() {
    let seed = seed();
    println!("RLOCK_SEED={seed}");
    println!("{}", stress(seed, 14, true));
}
