//! One world: rlocks of several hosts on a few keys, what befalls them by the plan, and what is left to be judged.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlock::clock::Boot;
use rlock::store::{self, Cancel, Key, Url};
use serde_json::Value;

use crate::command::{HISTORY, Manner, PLACE};
use crate::place::Place;
use crate::plan::{Blow, Fault, Jobs, KEYS, Plan, RunPlan, What, Whom};
use crate::rlock::{Done, PATIENCE, Running, children, is_alive, rlock, within};

/// Runs at a time.
const AT_ONCE: usize = 10;
/// How often somebody looks at the keys.
const LOOK: Duration = Duration::from_millis(100);
/// How long a look may take.
const LOOK_LIMIT: Duration = Duration::from_millis(150);
/// A thread that sleeps for a few milliseconds and comes back so much later tells of a machine that was busy.
const PAUSED: Duration = Duration::from_millis(120);

/// What happened in a world.
pub(crate) struct Past {
    pub(crate) plan: Plan,
    pub(crate) runs: Vec<Over>,
    pub(crate) faults: Vec<Applied>,
    pub(crate) samples: Vec<Sample>,
    /// What the commands and their children wrote.
    pub(crate) history: String,
    /// What is wrong already.
    pub(crate) wrong: Vec<String>,
    /// Kinds of fault that cannot be made here.
    pub(crate) left_out: BTreeSet<String>,
    dir: tempfile::TempDir,
}

impl Past {
    /// Keeps what was written and what befell, to be looked at.
    pub(crate) fn keep(self) -> PathBuf {
        let mut faults: Vec<String> = self.faults.iter().map(|fault| format!("{fault:?}\n")).collect();
        faults.extend(self.samples.iter().map(|sample| format!("{sample:?}\n")));
        faults.extend(self.runs.iter().map(|over| format!("{over:?}\n")));
        std::fs::write(self.dir.path().join("faults"), faults.concat()).unwrap();
        self.dir.keep()
    }
}

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) number: usize,
    pub(crate) plan: RunPlan,
    pub(crate) from: Boot,
    pub(crate) to: Boot,
    pub(crate) done: Done,
    /// None where rlock was killed before it wrote one.
    pub(crate) report: Option<Value>,
}

/// A fault that was made.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) what: Why,
    pub(crate) from: Boot,
    pub(crate) to: Boot,
}

#[derive(Debug)]
pub(crate) enum Why {
    Planned(What),
    /// A process of this run.
    Run(usize, What),
    /// The machine ran nothing of ours.
    Busy,
}

/// A look at a key from beside.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) from: Boot,
    pub(crate) to: Boot,
    pub(crate) holders: Vec<String>,
    pub(crate) queue: Vec<String>,
}

/// How long a child may take to die of a signal before its first process is spared.
const DEATH: Duration = Duration::from_millis(500);

struct Run {
    number: usize,
    plan: RunPlan,
    running: Running,
    from: Boot,
    blows: Vec<(Whom, Blow)>,
}

struct World {
    plan: Plan,
    place: Place,
    dir: tempfile::TempDir,
    began: Boot,
    runs: Vec<Run>,
    made: usize,
    next_start: Boot,
    over: Vec<Over>,
    faults: Vec<Applied>,
    /// What must be undone, when, and its place in `faults`.
    lasting: Vec<(Boot, What, Vec<Pid>, usize)>,
    left_out: BTreeSet<String>,
    wrong: Vec<String>,
}

/// Lets it happen.
pub(crate) fn play(plan: Plan) -> Past {
    let dir = tempfile::Builder::new().prefix("rlock-world-").tempdir().unwrap();
    let place = Place::start(plan.ground, dir.path());
    let (url, is_over) = (place.url(), AtomicBool::new(false));
    let began = Boot::now();
    let mut world = World {
        plan,
        place,
        dir,
        began,
        runs: Vec::new(),
        made: 0,
        next_start: began,
        over: Vec::new(),
        faults: Vec::new(),
        lasting: Vec::new(),
        left_out: BTreeSet::new(),
        wrong: Vec::new(),
    };
    let samples = thread::scope(|scope| {
        let samples = scope.spawn(|| look(&url, &is_over));
        let busy = scope.spawn(|| watch(&is_over));
        world.live();
        world.end();
        is_over.store(true, Ordering::Relaxed);
        world.faults.extend(busy.join().unwrap());
        samples.join().unwrap()
    });
    let history = std::fs::read_to_string(world.dir.path().join(HISTORY)).unwrap_or_default();
    let World { plan, over, faults, left_out, wrong, dir, .. } = world;
    Past { plan, runs: over, faults, samples, history, wrong, left_out, dir }
}

/// Looks at the keys until all is over.
fn look(url: &str, is_over: &AtomicBool) -> Vec<Sample> {
    let mut store = store::open(&Url::parse(url).unwrap(), None, &Cancel::new().unwrap());
    let mut samples = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        for name in KEYS {
            let from = Boot::now();
            let Ok(seen) = store.look(&Key::parse(name).unwrap(), from + LOOK_LIMIT) else { continue };
            let ids = |entries: &[rlock::claim::Entry]| entries.iter().map(|entry| entry.id.to_string()).collect();
            let (holders, queue) = (ids(&seen.holders), ids(&seen.queue));
            samples.push(Sample { from, to: Boot::now(), holders, queue });
        }
        thread::sleep(LOOK);
    }
    samples
}

/// Notes when the machine ran nothing of ours.
fn watch(is_over: &AtomicBool) -> Vec<Applied> {
    let (mut busy, mut last) = (Vec::new(), Boot::now());
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
        let now = Boot::now();
        if now.since(last) > PAUSED {
            busy.push(Applied { what: Why::Busy, from: last, to: now });
        }
        last = now;
    }
    busy
}

impl World {
    fn live(&mut self) {
        let faults = self.plan.faults.clone();
        let mut faults = faults.iter().peekable();
        loop {
            let now = Boot::now();
            let at = now.since(self.began);
            if at >= self.plan.lasts {
                return;
            }
            self.undo(|end| end <= now);
            while let Some(fault) = faults.next_if(|fault| fault.at <= at) {
                self.befall(fault);
            }
            self.reap();
            if self.runs.len() < AT_ONCE && now >= self.next_start {
                self.start_one();
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn start_one(&mut self) {
        let number = self.made;
        self.made += 1;
        let plan = self.plan.run(number);
        let mut words = self.place.words(plan.host);
        words.extend(["run", "-k", KEYS[plan.job.key]].map(str::to_owned));
        words.extend(plan.words());
        let mut command = rlock(words).env(PLACE, self.dir.path());
        command.0.current_dir(self.dir.path());
        let from = Boot::now();
        self.next_start = from + plan.pause;
        self.runs.push(Run { number, plan, running: command.start(), from, blows: Vec::new() });
    }

    fn reap(&mut self) {
        for mut run in std::mem::take(&mut self.runs) {
            if run.running.is_over() {
                let Run { number, plan, running, from, .. } = run;
                let (to, done) = (Boot::now(), running.done());
                let report = std::fs::read_to_string(self.dir.path().join(plan.report())).ok();
                let report = report.and_then(|text| serde_json::from_str(&text).ok());
                self.over.push(Over { number, plan, from, to, done, report });
            } else {
                self.runs.push(run);
            }
        }
    }

    fn befall(&mut self, fault: &Fault) {
        if !self.place.can(fault.what) {
            self.left_out.insert(fault.what.kind());
            return;
        }
        let from = Boot::now();
        let to = if fault.what.is_instant() { from } else { from + fault.lasts };
        let (what, stopped) = match fault.what {
            What::Process { pick, whom, how } => {
                let Some((number, stopped)) = self.strike(pick, whom, how) else { return };
                (Why::Run(number, fault.what), stopped)
            }
            what => {
                self.place.begin(fault);
                (Why::Planned(what), Vec::new())
            }
        };
        self.lasting.push((to, fault.what, stopped, self.faults.len()));
        self.faults.push(Applied { what, from, to: to.max(Boot::now()) });
    }

    /// Undoes what is due.
    fn undo(&mut self, is_due: impl Fn(Boot) -> bool) {
        for (end, what, stopped, at) in std::mem::take(&mut self.lasting) {
            if !is_due(end) {
                self.lasting.push((end, what, stopped, at));
                continue;
            }
            for pid in stopped {
                // Some have ended.
                let _ = kill(pid, Signal::SIGCONT);
            }
            self.place.end(what);
            self.faults[at].to = Boot::now().max(self.faults[at].from);
        }
    }

    /// Strikes the processes of one run, and says which run and who is to go on later.
    fn strike(&mut self, pick: u64, whom: Whom, how: Blow) -> Option<(usize, Vec<Pid>)> {
        // One in two strikes somebody who holds.
        let (pick, at_any) = (usize::try_from(pick / 2).unwrap(), pick.is_multiple_of(2));
        let is_inside = |run: &Run| keeper(run.running.pid()).is_some_and(|keeper| !descendants(keeper).is_empty());
        let inside: Vec<usize> = (0..self.runs.len()).filter(|at| at_any || is_inside(&self.runs[*at])).collect();
        let run = &mut self.runs[*inside.get(pick % inside.len().max(1))?];
        if !run.may_be_struck(whom, how) {
            return None;
        }
        let rlock = run.running.pid();
        let keeper = keeper(rlock);
        let tree = keeper.map(descendants).unwrap_or_default();
        let whom = match whom {
            Whom::Rlock => vec![rlock],
            Whom::Keeper => vec![keeper?],
            // Its first process and its child; before both are there a blow would leave one of them out.
            Whom::Command if tree.len() == if run.plan.is_alone() { 1 } else { 2 } => {
                run.blows.push((Whom::Command, how));
                tree.into_iter().rev().collect()
            }
            Whom::Command => return None,
            Whom::All => [rlock].into_iter().chain(keeper).chain(tree).collect(),
        };
        let signal = match how {
            Blow::Stop => Signal::SIGSTOP,
            Blow::Kill => Signal::SIGKILL,
            Blow::Term => Signal::SIGTERM,
        };
        let manner = run.plan.job.manner;
        for (at, pid) in whom.iter().enumerate() {
            // It may just have ended.
            let _ = kill(*pid, signal);
            let is_child = at + 1 < whom.len();
            let must_die = how == Blow::Kill || (how == Blow::Term && manner != Manner::Ignores);
            // What outlives a first process that ended by itself is outside the promise.
            if is_child && must_die && within(DEATH, || (!is_alive(&pid.to_string())).then_some(())).is_none() {
                break;
            }
        }
        // Who stops the command stops rlock.
        Some((run.number, if how == Blow::Stop { whom.into_iter().chain([rlock]).collect() } else { Vec::new() }))
    }

    /// All goes on, until all have ended.
    fn end(&mut self) {
        self.undo(|_| true);
        if self.plan.jobs != Jobs::Any {
            // They take their time, and have shown what they were to show.
            self.runs.iter().for_each(|run| run.running.signal(Signal::SIGTERM));
        }
        let mut told = Boot::now();
        let ended = within(PATIENCE, || {
            self.reap();
            if told.left().is_zero() {
                // Who stopped with its command may have done so after the command went on.
                self.runs.iter().for_each(|run| run.running.signal(Signal::SIGCONT));
                told = Boot::now() + Duration::from_secs(1);
            }
            self.runs.is_empty().then_some(())
        });
        if ended.is_none() {
            let stuck: Vec<_> = self.runs.iter().map(|run| (run.number, &run.plan, &run.blows)).collect();
            self.wrong.push(format!("these do not end: {stuck:?}"));
        }
        self.runs.clear();
        let here = |entry: std::fs::DirEntry| {
            std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == self.dir.path())
        };
        let gone = within(Duration::from_secs(10), || {
            (!std::fs::read_dir("/proc").unwrap().flatten().any(here)).then_some(())
        });
        if gone.is_none() {
            self.wrong.push("processes are left behind".into());
        }
    }
}

impl Run {
    /// Whether DESIGN section 9 promises anything after this blow too: rlock or its keeper must get to run.
    fn may_be_struck(&mut self, whom: Whom, how: Blow) -> bool {
        let was_stopped = self.blows.iter().any(|(whom, how)| *how == Blow::Stop && *whom != Whom::Keeper);
        let was_killed = self.blows.iter().any(|(_, how)| *how == Blow::Kill);
        let may = self.blows.len() < 2 && !was_killed && !(was_stopped && (whom, how) == (Whom::Keeper, Blow::Kill));
        if may && whom != Whom::Command {
            self.blows.push((whom, how));
        }
        may
    }
}

fn keeper(rlock: Pid) -> Option<Pid> {
    let is_keeper =
        |pid: &String| std::fs::read(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == b"rlock-keeper\n");
    children(&rlock.to_string()).into_iter().find(is_keeper).map(|pid| Pid::from_raw(pid.parse().unwrap()))
}

/// All below it, parents first.
fn descendants(of: Pid) -> Vec<Pid> {
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let below = children(&found[at].to_string());
        found.extend(below.iter().map(|pid| Pid::from_raw(pid.parse().unwrap())));
        at += 1;
    }
    found.split_off(1)
}
