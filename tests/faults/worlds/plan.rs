//! What befalls a world, when and whom, from its seed alone.

use std::time::Duration;

use crate::command::{Family, Job, Manner};
use crate::dice::Dice;

pub(crate) const KEYS: [&str; 3] = ["a", "b b", "{c}d"];
pub(crate) const HOSTS: usize = 3;

/// Where a world keeps its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    /// One Redis server that keeps what it acknowledged over a restart, each host behind a proxy of its own.
    Server,
    /// The same, whose wall clock is stepped: back as far as it gets, forward by less than the margin.
    Stepped,
    /// The local store.
    Directory,
}

/// A world's seed: the faults, their instants and the runs follow from it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) world: u64,
    pub(crate) ground: Ground,
    pub(crate) lasts: Duration,
    /// In order of time.
    pub(crate) faults: Vec<Fault>,
    pub(crate) jobs: Jobs,
}

/// What the runs of a world are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Jobs {
    Any,
    /// All outlive a lease that is not renewed, with `--on-lost warn`, which promises nothing.
    Warned,
    /// All outlive it and ignore every signal.
    Stubborn,
}

/// One fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Line {
        host: usize,
        how: Line,
    },
    Server(Upheaval),
    /// One of the runs that there are then, by this number.
    Process {
        pick: u64,
        whom: Whom,
        how: Blow,
    },
    /// The file system of the local store takes no more.
    FullDisk,
}

/// What becomes of a host's line to the server. The first word is the way to it, the second the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    LostLost,
    LostOpen,
    OpenLost,
    HeldHeld,
    HeldOpen,
    OpenHeld,
    /// Each way by so many milliseconds.
    Slow(u64),
    /// The answers by so many milliseconds, as a try still awaits.
    Late(u64),
    /// The answers, a byte at a time.
    Drip,
    /// Every connection ends.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upheaval {
    Freeze,
    /// Killed, and started again with its data when it is over.
    Restart,
    ClientKill,
    ClientPause,
    ScriptFlush,
    SlowScript,
    FlushAll,
    OutOfMemory,
    RightsTaken,
    Demoted,
    /// By so many milliseconds.
    ClockBack(u64),
    ClockForward(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Rlock,
    Keeper,
    /// The command: its first process and all below it.
    Command,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// SIGSTOP, and SIGCONT when it is over.
    Stop,
    Kill,
    Term,
}

impl What {
    /// Its name in the summary.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Line { how: Line::Slow(_), .. } => "line Slow".into(),
            Self::Line { how: Line::Late(_), .. } => "line Late".into(),
            Self::Line { how, .. } => format!("line {how:?}"),
            Self::Server(Upheaval::ClockBack(_)) => "server ClockBack".into(),
            Self::Server(Upheaval::ClockForward(_)) => "server ClockForward".into(),
            Self::Server(how) => format!("server {how:?}"),
            Self::Process { whom, how, .. } => format!("{how:?} {whom:?}"),
            Self::FullDisk => "full disk".into(),
        }
    }

    /// Whether it is over at once, however long nothing else is to follow.
    pub(crate) fn is_instant(&self) -> bool {
        use Upheaval::{ClientKill, ClockBack, ClockForward, FlushAll, ScriptFlush};
        match self {
            Self::Line { how, .. } => *how == Line::Cut,
            Self::Server(how) => {
                matches!(how, ClientKill | ScriptFlush | FlushAll | ClockBack(_) | ClockForward(_))
            }
            Self::Process { how, .. } => *how != Blow::Stop,
            Self::FullDisk => false,
        }
    }

    /// Whether messages may be lost for good, those that end a wait too.
    pub(crate) fn loses(&self) -> bool {
        match self {
            Self::Line { how, .. } => matches!(how, Line::LostLost | Line::LostOpen | Line::OpenLost | Line::Cut),
            // A server that pauses its clients forgets what those had sent who closed meanwhile.
            Self::Server(how) => !matches!(how, Upheaval::Freeze | Upheaval::ScriptFlush),
            Self::Process { .. } | Self::FullDisk => true,
        }
    }

    /// Whether a holder cannot renew while it lasts.
    pub(crate) fn keeps_from_renewing(&self) -> bool {
        match self {
            Self::Line { .. } | Self::FullDisk => true,
            // The server renews without memory and without the script. A clock that goes back makes leases longer.
            Self::Server(how) => {
                !matches!(how, Upheaval::OutOfMemory | Upheaval::ClockBack(_) | Upheaval::ClockForward(_))
            }
            Self::Process { whom, how, .. } => *how == Blow::Stop && *whom != Whom::Keeper,
        }
    }
}

impl Plan {
    pub(crate) fn new(seed: u64, world: u64, ground: Ground, lasts: Duration) -> Self {
        let mut dice = Dice::of(&[seed, world]);
        let mut faults = processes(&mut dice, lasts);
        match ground {
            Ground::Directory => faults.extend(disk(&mut dice, lasts)),
            Ground::Server | Ground::Stepped => {
                for host in 0..HOSTS {
                    faults.extend(lines(&mut dice, lasts, host));
                }
                faults.extend(upheavals(&mut dice, lasts, ground == Ground::Stepped));
            }
        }
        faults.sort_by_key(|fault| fault.at);
        Self { seed, world, ground, lasts, faults, jobs: Jobs::Any }
    }

    /// Each of these happens at its instant for its time, both in milliseconds, and nothing else.
    pub(crate) fn only(world: u64, ground: Ground, faults: &[(What, u64, u64)]) -> Self {
        let ms = Duration::from_millis;
        let mut faults: Vec<Fault> =
            faults.iter().map(|(what, at, lasts)| Fault { at: ms(*at), lasts: ms(*lasts), what: *what }).collect();
        faults.sort_by_key(|fault| fault.at);
        let lasts = faults.iter().map(|fault| fault.at + fault.lasts).max().unwrap_or_default();
        Self { seed: 0, world, ground, lasts: lasts + Duration::from_secs(1), faults, jobs: Jobs::Any }
    }

    /// The `number`th run.
    pub(crate) fn run(&self, number: usize) -> RunPlan {
        let mut dice = Dice::of(&[self.seed, self.world, number as u64]);
        let key = dice.index(KEYS.len());
        let mut host = dice.index(HOSTS);
        let mut ttl = dice.one(&[2, 3, 3, 4, 5]);
        let wait = dice.one(&[Wait::Forever, Wait::Forever, Wait::Forever, Wait::Forever, Wait::Limited, Wait::Not]);
        let on_lost = if dice.one_in(4) { "kill" } else { "terminate" };
        let on_lost = if self.jobs == Jobs::Warned { "warn" } else { on_lost };
        let mut bound = dice.one_in(12).then_some(Duration::from_secs(1));
        let keeps = dice.one_in(12).then_some(Duration::from_millis(500));
        let mut job = Job::random(&mut dice, number, key);
        match self.jobs {
            Jobs::Any => {}
            // The first are on the host that is cut off, and those that come after them are not.
            Jobs::Warned => {
                (ttl, job.lasts, host, bound) = (2, Duration::from_secs(5), usize::from(number < 3), None);
            }
            Jobs::Stubborn => (ttl, job.lasts, job.manner) = (3, Duration::from_secs(10), Manner::Ignores),
        }
        let pause = dice.ms(5, 60);
        RunPlan { host, ttl: Duration::from_secs(ttl), wait, on_lost, bound, keeps, job, pause }
    }
}

/// Line faults of one host, one after the other.
fn lines(dice: &mut Dice, end: Duration, host: usize) -> Vec<Fault> {
    let faults = series(dice, end, (300, 3_000), |dice| {
        let how = match dice.below(11) {
            0 => Line::LostLost,
            1 => Line::LostOpen,
            2 => Line::OpenLost,
            3 => Line::HeldHeld,
            4 => Line::HeldOpen,
            5 => Line::OpenHeld,
            6 => Line::Slow(dice.one(&[5, 40, 150, 1_500])),
            7 => Line::Drip,
            8 => Line::Cut,
            _ => return (What::Line { host, how: Line::Late(150) }, dice.ms(9_000, 12_000)),
        };
        (What::Line { host, how }, short_or_long(dice))
    });
    // A line that is slow is given more time; then an answer comes as late as that, and the deadline by the last such
    // answer is put to the test at once.
    let parts = faults.into_iter().flat_map(|fault| {
        let What::Line { how: Line::Late(_), .. } = fault.what else { return vec![fault] };
        let part = |how: Line, at: u32, lasts: u32| {
            let quarter = fault.lasts / 4;
            Fault { at: fault.at + quarter * at, lasts: quarter * lasts, what: What::Line { host, how } }
        };
        vec![part(Line::Late(150), 0, 1), part(Line::Late(400), 1, 1), part(Line::LostLost, 2, 2)]
    });
    parts.collect()
}

/// Faults of the server, one after the other.
fn upheavals(dice: &mut Dice, end: Duration, is_stepped: bool) -> Vec<Fault> {
    series(dice, end, (500, 3_000), |dice| {
        use Upheaval::{
            ClientKill, ClientPause, ClockBack, ClockForward, Demoted, FlushAll, Freeze, OutOfMemory, Restart,
            RightsTaken, ScriptFlush, SlowScript,
        };
        let lasts = short_or_long(dice);
        if is_stepped && dice.one_in(2) {
            // The least margin is 22 ms; a step is forgotten after the longest lease.
            let back = dice.one(&[30, 500, 5_000]);
            let (how, lasts) =
                if dice.one_in(2) { (ClockBack(back), 10) } else { (ClockForward(dice.one(&[5, 15])), 5_500) };
            return (What::Server(how), Duration::from_millis(lasts));
        }
        let all = [
            Freeze,
            Freeze,
            Restart,
            ClientKill,
            ClientPause,
            ScriptFlush,
            SlowScript,
            OutOfMemory,
            RightsTaken,
            Demoted,
            FlushAll,
        ];
        // What is lost under a clock that goes back is not promised to come back larger.
        let how = dice.one(if is_stepped { &all[..10] } else { &all });
        let lasts = match how {
            ClientKill | ScriptFlush | FlushAll => Duration::from_millis(10),
            // Redis answers nothing else meanwhile, and cannot be told to stop it.
            SlowScript => lasts.min(Duration::from_millis(1_500)),
            _ => lasts,
        };
        (What::Server(how), lasts)
    })
}

/// Blows to processes.
fn processes(dice: &mut Dice, end: Duration) -> Vec<Fault> {
    let blows = series(dice, end, (50, 700), |dice| {
        let how = dice.one(&[Blow::Stop, Blow::Stop, Blow::Kill, Blow::Kill, Blow::Term]);
        let whom = match how {
            Blow::Stop => dice.one(&[Whom::Rlock, Whom::Keeper, Whom::Command, Whom::All]),
            Blow::Kill => dice.one(&[Whom::Rlock, Whom::Keeper, Whom::Command]),
            Blow::Term => dice.one(&[Whom::Rlock, Whom::Command]),
        };
        let what = What::Process { pick: dice.next(), whom, how };
        // They need not wait for one another.
        (what, Duration::ZERO)
    });
    blows.into_iter().map(|blow| Fault { lasts: short_or_long(dice), ..blow }).collect()
}

fn disk(dice: &mut Dice, end: Duration) -> Vec<Fault> {
    series(dice, end, (1_500, 5_000), |dice| (What::FullDisk, short_or_long(dice)))
}

/// Below what a lease tolerates, or above all of it.
fn short_or_long(dice: &mut Dice) -> Duration {
    if dice.one_in(2) { dice.ms(2_000, 6_500) } else { dice.ms(20, 700) }
}

/// Faults with a pause of `pause` milliseconds between them.
fn series(
    dice: &mut Dice,
    end: Duration,
    pause: (u64, u64),
    mut next: impl FnMut(&mut Dice) -> (What, Duration),
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut at = dice.ms(pause.0, pause.1);
    while at < end {
        let (what, lasts) = next(dice);
        faults.push(Fault { at, lasts, what });
        at += lasts + dice.ms(pause.0, pause.1);
    }
    faults
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Forever,
    Limited,
    Not,
}

/// One run of rlock.
#[derive(Clone, Debug)]
pub(crate) struct RunPlan {
    pub(crate) host: usize,
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    on_lost: &'static str,
    /// `--max-runtime`.
    pub(crate) bound: Option<Duration>,
    /// `--hold-at-least`.
    pub(crate) keeps: Option<Duration>,
    pub(crate) job: Job,
    /// From its start to the next one's.
    pub(crate) pause: Duration,
}

impl RunPlan {
    /// The file of its report.
    pub(crate) fn report(&self) -> String {
        format!("report {}", self.job.run)
    }

    pub(crate) fn words(&self) -> Vec<String> {
        let wait: &[&str] = match self.wait {
            Wait::Forever => &[],
            Wait::Limited => &["-w", "1500ms"],
            Wait::Not => &["-n"],
        };
        let mut words = vec!["-q".to_owned(), "--ttl".into(), format!("{}s", self.ttl.as_secs())];
        words.extend(wait.iter().map(ToString::to_string));
        words.extend(["--report".into(), self.report()]);
        words.extend(["--on-lost", self.on_lost].map(str::to_owned));
        let bounds = [("--max-runtime", self.bound), ("--hold-at-least", self.keeps)];
        for (name, time) in bounds.into_iter().filter_map(|(name, time)| Some((name, time?))) {
            words.extend([name.to_owned(), format!("{}ms", time.as_millis())]);
        }
        words.push("--".into());
        words.extend(self.job.words());
        words
    }

    /// Whether its first process is all there is of the command.
    pub(crate) fn is_alone(&self) -> bool {
        self.job.family == Family::Alone
    }
}
