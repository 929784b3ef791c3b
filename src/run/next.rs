//! What happens next in a run: the state of the one event loop and its pure decisions.
//!
//! An [`Input`] and the present instant go in, [`Do`]s come out. Nothing here reads a clock, a socket or a process.

use std::time::Duration;

use super::events::{Do, Input};
use crate::child::Ending;
use crate::clock::Boot;
use crate::exit::{self, Exit};
use crate::lease::{Act, Lease, Loss, Plan};
use crate::{signal, timing};

/// How a run is to behave.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// What the lease is timed by.
    pub plan: Plan,
    /// The first signal when the lease is lost.
    pub signal: i32,
    /// Whether signals are passed on to the command.
    pub forward: bool,
    /// How long the command may run.
    pub max_runtime: Option<Duration>,
    /// How long after the command's start the key is kept, if the command ends sooner.
    pub hold_at_least: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Asking for the key, or giving up and ending like this.
    Asking { giving_up: Option<Exit> },
    /// The key is ours, but the lease has too little left: a renewal must come first, by `until`.
    Late { until: Boot },
    /// The keeper was told to start the command.
    Starting,
    /// The command runs.
    Running,
    /// The first process ended; what it left is being counted.
    Counting,
    /// What it left got the signal and gets KILL at `kill_at`.
    Ending { kill_at: Boot },
    /// The tree is being killed.
    Killing,
    /// The key is being given back.
    Releasing,
    /// Over.
    Over,
}

/// Whether a terminal stops a job with this signal. SIGSTOP is somebody's decision about one process: rlock goes on.
fn is_job_control(number: i32) -> bool {
    matches!(number, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// How often the tree is looked at while it ends.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The state of a run.
pub struct Run {
    manner: Manner,
    phase: Phase,
    lease: Option<Lease>,
    /// The stop signal that came while the command ran.
    stop: Option<i32>,
    /// The lease is lost and the command is being stopped, or was.
    loss: Option<Loss>,
    /// When the keeper was told to start the command.
    spawned: Option<Boot>,
    /// The command was started.
    is_started: bool,
    /// The command has run too long, had its signal, and gets KILL at this instant.
    overrun: Option<Boot>,
    /// Signals that came before the command had started.
    early: Vec<i32>,
    /// What is left of the tree holds the key on, or nobody is there to release it.
    leave: bool,
    exit: Exit,
    look_at: Option<Boot>,
}

impl Run {
    /// A run that has just asked for the key.
    pub fn new(manner: Manner) -> Self {
        Self {
            manner,
            phase: Phase::Asking { giving_up: None },
            lease: None,
            stop: None,
            loss: None,
            spawned: None,
            is_started: false,
            overrun: None,
            early: Vec::new(),
            leave: false,
            exit: Exit::Code(exit::SOFTWARE),
            look_at: None,
        }
    }

    /// The lease, once there is one.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// When [`Input::Tick`] is due at the latest.
    pub fn wake_at(&self) -> Option<Boot> {
        let lease = match self.phase {
            Phase::Starting | Phase::Running | Phase::Counting | Phase::Ending { .. } => {
                self.lease.as_ref().and_then(Lease::next_at)
            }
            _ => None,
        };
        let ending = match self.phase {
            Phase::Ending { kill_at: at } | Phase::Late { until: at } => Some(at),
            _ => None,
        };
        let overrun = self.overrun_at().filter(|_| matches!(self.phase, Phase::Starting | Phase::Running));
        [lease, ending, overrun, self.look_at].into_iter().flatten().min()
    }

    /// When something is due since the command runs too long: its signal, then its KILL.
    fn overrun_at(&self) -> Option<Boot> {
        self.overrun.or(self.spawned.zip(self.manner.max_runtime).map(|(spawned, most)| spawned + most))
    }

    /// What is to be done about `input` at `now`.
    pub fn next(&mut self, input: Input, now: Boot) -> Vec<Do> {
        // The deadline goes first: after a pause what came in may be long out of date. But the keeper tells things in
        // their order, and an end that comes before its own signals came before any deadline; so nothing that is read
        // with it brings the deadline between. A tick follows them.
        let mut todo = match input {
            Input::Started
            | Input::NotStarted(_)
            | Input::Stopped(_)
            | Input::Ended(_)
            | Input::Left(_)
            | Input::Signal { .. } => Vec::new(),
            _ => self.tick(now),
        };
        match input {
            Input::Stopped(number) if is_job_control(number) => todo.push(Do::StopSelf),
            Input::Tick | Input::Stopped(_) => {}
            Input::Signal { number, from_terminal, from_command } => {
                todo.extend(self.signalled(number, from_terminal, from_command, now));
            }
            Input::Granted { sent, left } => todo.extend(self.granted(sent, left, now)),
            Input::Hopeless => {
                if let Phase::Asking { giving_up: giving_up @ None } = &mut self.phase {
                    *giving_up = Some(Exit::Code(exit::USAGE));
                    todo.push(Do::GiveUp);
                }
            }
            Input::NotObtained(exit) => {
                let exit = match self.phase {
                    Phase::Asking { giving_up: None } => exit,
                    Phase::Asking { giving_up: Some(exit) } => exit,
                    _ => self.exit,
                };
                todo.extend([Do::Leave, self.finish(exit)]);
            }
            Input::Renewed { sent, left } => {
                if let Some(lease) = &mut self.lease {
                    lease.renewed(sent, left);
                    todo.push(Do::Tell(lease.instants()));
                    if matches!(self.phase, Phase::Late { .. }) && lease.is_held(now) {
                        todo.push(self.spawn(now));
                    }
                }
            }
            Input::Lost(loss) => {
                if matches!(self.phase, Phase::Late { .. }) {
                    todo.extend(self.lost_for_good(loss));
                    todo.extend(self.release());
                }
                let act = self.lease.as_mut().and_then(|lease| lease.lost(loss, now));
                todo.extend(self.act(act, now));
            }
            Input::Released => todo.push(self.finish(self.exit)),
            Input::ThreadGone => todo.extend(self.thread_gone()),
            Input::Started => todo.extend(self.started()),
            Input::NotStarted(code) => {
                if self.phase == Phase::Starting {
                    self.exit = Exit::Code(code);
                    todo.extend(self.release());
                }
            }
            Input::Ended(ending) => todo.extend(self.ended(ending)),
            Input::KeeperActed => todo.extend(self.keeper_acted(now)),
            Input::KeeperGone => todo.extend(self.keeper_gone(now)),
            Input::Left(count) => todo.extend(self.left(count, now)),
            Input::Killed { all } => {
                self.leave |= !all;
                todo.extend(self.release());
            }
        }
        todo
    }

    fn tick(&mut self, now: Boot) -> Vec<Do> {
        match self.phase {
            Phase::Starting | Phase::Running | Phase::Ending { .. } => {}
            Phase::Late { until } if now >= until => {
                let said = self.lost_for_good(Loss::Late);
                return said.into_iter().chain(self.release()).collect();
            }
            _ => return Vec::new(),
        }
        let act = self.lease.as_mut().and_then(|lease| lease.due(now));
        let mut todo = self.act(act, now);
        if self.loss.is_none() && self.overrun_at().is_some_and(|at| now >= at) {
            todo.extend(self.overrun(now));
        }
        match self.phase {
            Phase::Ending { kill_at } if now >= kill_at => todo.push(self.kill(now)),
            Phase::Starting if self.look_at.is_some_and(|at| now >= at) => {
                self.exit = self.stop.map_or(self.exit, Exit::Signal);
                todo.push(self.kill(now));
            }
            Phase::Ending { .. } if self.look_at.is_some_and(|at| now >= at) => {
                self.look_at = Some(now + LOOK_EVERY);
                todo.push(Do::Count);
            }
            _ => {}
        }
        todo
    }

    fn act(&mut self, act: Option<Act>, now: Boot) -> Vec<Do> {
        let Some(act) = act else { return Vec::new() };
        let running = matches!(self.phase, Phase::Starting | Phase::Running | Phase::Counting | Phase::Ending { .. });
        match act {
            Act::Warn(loss) => vec![Do::SayLost(loss)],
            Act::Signal(_) | Act::Kill(_) if !running => Vec::new(),
            // There is nothing yet that a signal could ask to end; and what would start after it must not.
            Act::Signal(loss) if self.phase != Phase::Starting => {
                let said = self.lost_for_good(loss);
                let instants = self.lease.as_ref().and_then(Lease::instants);
                said.into_iter().chain([Do::SignalTree(self.manner.signal), Do::Tell(instants)]).collect()
            }
            Act::Signal(loss) | Act::Kill(loss) => {
                let said = self.lost_for_good(loss);
                said.into_iter().chain([self.kill(now)]).collect()
            }
        }
    }

    /// The command has run as long as it may: the signal to its tree, and KILL after the grace. One that has ended, and
    /// only what it left is being ended, has run in time.
    fn overrun(&mut self, now: Boot) -> Vec<Do> {
        let is_first = self.overrun.is_none();
        let todo = match self.phase {
            Phase::Running if is_first => {
                self.overrun = Some(now + self.manner.plan.grace);
                vec![Do::SayOverrun, Do::SignalTree(self.manner.signal)]
            }
            Phase::Starting => vec![Do::SayOverrun, self.kill(now)],
            Phase::Running => vec![self.kill(now)],
            _ => return Vec::new(),
        };
        self.exit = Exit::Code(exit::MAX_RUNTIME);
        todo
    }

    fn spawn(&mut self, now: Boot) -> Do {
        self.phase = Phase::Starting;
        self.spawned = Some(now);
        Do::Spawn
    }

    fn lost_for_good(&mut self, loss: Loss) -> Option<Do> {
        let first = self.loss.is_none();
        self.loss.get_or_insert(loss);
        self.exit = Exit::Code(exit::LOST);
        first.then_some(Do::SayLost(loss))
    }

    /// The keeper has signalled or killed the tree: it need not get the signal again, but KILL follows in time, also
    /// where a renewal was on its way.
    fn keeper_acted(&mut self, now: Boot) -> Vec<Do> {
        let act = self.lease.as_mut().and_then(|lease| lease.lost(Loss::Late, now));
        let mut todo = self.act(act, now);
        todo.retain(|todo| !matches!(todo, Do::SignalTree(_)));
        todo.extend(self.lost_for_good(Loss::Late));
        todo
    }

    fn signalled(&mut self, number: i32, from_terminal: bool, from_command: bool, now: Boot) -> Vec<Do> {
        match &mut self.phase {
            Phase::Asking { .. } if number == libc::SIGTSTP => vec![Do::StopSelf],
            Phase::Asking { giving_up } if signal::is_deadly(number) && giving_up.is_none() => {
                *giving_up = Some(Exit::Signal(number));
                vec![Do::GiveUp]
            }
            Phase::Late { .. } if signal::is_deadly(number) => {
                self.exit = Exit::Signal(number);
                self.release()
            }
            Phase::Starting | Phase::Running => {
                if signal::is_stop(number) {
                    self.stop.get_or_insert(number);
                    if self.phase == Phase::Starting {
                        // A start may hang: its file on a server that is silent, or itself stopped on the way.
                        self.look_at.get_or_insert(now + self.manner.plan.grace);
                    }
                }
                if from_command || !self.manner.forward || !signal::is_forwardable(number) {
                    Vec::new()
                } else if self.phase == Phase::Starting {
                    // What the terminal gave to all came too early for the command, or may have.
                    self.early.push(number);
                    Vec::new()
                } else if from_terminal {
                    Vec::new()
                } else {
                    vec![Do::Forward(number)]
                }
            }
            _ => Vec::new(),
        }
    }

    /// A command is started only under a lease that is held now: this process may have been stopped since the answer.
    fn granted(&mut self, sent: Boot, left: Duration, now: Boot) -> Vec<Do> {
        let lease = Lease::granted(self.manner.plan, sent, left);
        let (instants, deadline, is_held) = (lease.instants(), lease.deadline(), lease.is_held(now));
        self.lease = Some(lease);
        match self.phase {
            Phase::Asking { giving_up: None } if !is_held => {
                self.phase = Phase::Late { until: (now + timing::LONGEST_TRY).max(deadline) };
                Vec::new()
            }
            Phase::Asking { giving_up: None } => {
                vec![Do::Tell(instants), self.spawn(now)]
            }
            // It was told to give up, and the grant crossed that word on its way: the same order releases it.
            Phase::Asking { giving_up: Some(exit) } => {
                self.exit = exit;
                self.phase = Phase::Releasing;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn started(&mut self) -> Vec<Do> {
        if self.phase != Phase::Starting {
            return Vec::new();
        }
        self.phase = Phase::Running;
        self.is_started = true;
        self.look_at = None;
        self.early.drain(..).map(Do::Forward).collect()
    }

    fn ended(&mut self, ending: Ending) -> Vec<Do> {
        if !matches!(self.phase, Phase::Starting | Phase::Running) {
            return Vec::new();
        }
        if self.loss.is_none() && self.overrun.is_none() {
            self.exit = match ending {
                Ending::Code(code) => Exit::Code(u8::try_from(code).unwrap_or(u8::MAX)),
                Ending::Signal(number) => Exit::Signal(number),
            };
        }
        self.phase = Phase::Counting;
        vec![Do::Count]
    }

    /// After an ordinary end what is left runs on; after a stop signal or a loss it is ended first.
    fn left(&mut self, count: usize, now: Boot) -> Vec<Do> {
        match self.phase {
            Phase::Counting | Phase::Ending { .. } if count == 0 => self.release(),
            Phase::Counting => match (self.stop, self.loss, self.overrun) {
                (None, None, None) => self.release(),
                // The whole tree has had its signal, and the lease says when KILL comes.
                (_, Some(_), _) => {
                    let kill_at = self.lease.as_ref().and_then(Lease::next_at).unwrap_or(now);
                    self.end(kill_at, now)
                }
                (_, None, Some(kill_at)) => self.end(kill_at, now),
                (Some(number), None, None) => {
                    let mut todo = self.end(now + self.manner.plan.grace, now);
                    todo.insert(0, Do::SignalTree(number));
                    todo
                }
            },
            _ => Vec::new(),
        }
    }

    fn end(&mut self, kill_at: Boot, now: Boot) -> Vec<Do> {
        self.phase = Phase::Ending { kill_at };
        self.look_at = Some(now + LOOK_EVERY);
        Vec::new()
    }

    fn kill(&mut self, now: Boot) -> Do {
        self.phase = Phase::Killing;
        // Long enough for a tree that dies slowly, and never past the deadline while that is ahead.
        let deadline = self.lease.as_ref().map_or(now, Lease::deadline);
        Do::KillTree { by: deadline.max(now + timing::slack(self.manner.plan.ttl)) }
    }

    fn keeper_gone(&mut self, now: Boot) -> Vec<Do> {
        match self.phase {
            Phase::Starting | Phase::Running | Phase::Counting | Phase::Ending { .. } => {
                if self.loss.is_none() {
                    self.exit = Exit::Code(exit::SOFTWARE);
                }
                vec![self.kill(now)]
            }
            Phase::Asking { .. } | Phase::Late { .. } => {
                self.exit = Exit::Code(exit::SOFTWARE);
                self.phase = Phase::Releasing;
                vec![Do::GiveUp]
            }
            Phase::Killing | Phase::Releasing | Phase::Over => Vec::new(),
        }
    }

    /// Without the thread nobody renews: the deadline ends the command, and the lease lapses by itself.
    fn thread_gone(&mut self) -> Vec<Do> {
        self.leave = true;
        match self.phase {
            Phase::Asking { .. } | Phase::Late { .. } => vec![Do::Leave, self.finish(Exit::Code(exit::SOFTWARE))],
            Phase::Releasing => vec![self.finish(self.exit)],
            _ => Vec::new(),
        }
    }

    fn release(&mut self) -> Vec<Do> {
        if matches!(self.phase, Phase::Releasing | Phase::Over) {
            return Vec::new();
        }
        self.look_at = None;
        if self.leave {
            return vec![Do::Leave, self.finish(self.exit)];
        }
        self.phase = Phase::Releasing;
        vec![Do::Release { keep_until: self.keep_until() }]
    }

    /// A command that ran keeps the key for the next one's sake; a lease that is lost keeps nothing.
    fn keep_until(&self) -> Option<Boot> {
        let started = self.spawned.filter(|_| self.loss.is_none() && self.is_started)?;
        self.manner.hold_at_least.map(|least| started + least)
    }

    fn finish(&mut self, exit: Exit) -> Do {
        self.phase = Phase::Over;
        Do::Finish(exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Instants, OnLost};

    const TTL: Duration = Duration::from_secs(30);
    const TERM: i32 = libc::SIGTERM;
    const RELEASE: Do = Do::Release { keep_until: None };

    fn at(ms: u64) -> Boot {
        Boot::at(Duration::from_millis(1_000_000 + ms))
    }

    fn run(on_lost: OnLost) -> Run {
        let plan = Plan { ttl: TTL, grace: Duration::from_secs(5), on_lost };
        Run::new(Manner { plan, signal: TERM, forward: true, max_runtime: None, hold_at_least: None })
    }

    fn signal(number: i32) -> Input {
        Input::Signal { number, from_terminal: false, from_command: false }
    }

    fn running(on_lost: OnLost) -> Run {
        let mut run = run(on_lost);
        let todo = run.next(Input::Granted { sent: at(0), left: TTL }, at(1));
        assert!(matches!(todo[..], [Do::Tell(_), Do::Spawn]), "{todo:?}");
        assert_eq!(run.next(Input::Started, at(2)), []);
        run
    }

    #[test]
    fn an_ordinary_end_releases_and_passes_the_code() {
        let mut run = running(OnLost::Terminate);
        assert_eq!(run.next(Input::Ended(Ending::Code(42)), at(9)), [Do::Count]);
        assert_eq!(run.next(Input::Left(2), at(9)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(10)), [Do::Finish(Exit::Code(42))]);
    }

    fn bounded(max_runtime: Option<Duration>, hold_at_least: Option<Duration>) -> Run {
        let mut run = running(OnLost::Terminate);
        (run.manner.max_runtime, run.manner.hold_at_least) = (max_runtime, hold_at_least);
        run
    }

    #[test]
    fn a_command_that_runs_too_long_gets_its_signal_then_kill_and_the_code_is_124() {
        let mut run = bounded(Some(Duration::from_secs(10)), None);
        // It was told to start at 1.
        assert_eq!(run.wake_at(), Some(at(10_001)));
        assert_eq!(run.next(Input::Tick, at(10_000)), []);
        assert_eq!(run.next(Input::Tick, at(10_001)), [Do::SayOverrun, Do::SignalTree(TERM)]);
        assert_eq!(run.wake_at(), Some(at(15_001)));
        assert_eq!(run.next(Input::Tick, at(15_000)), []);
        assert!(matches!(run.next(Input::Tick, at(15_001))[..], [Do::KillTree { .. }]));
        assert_eq!(run.next(Input::Killed { all: true }, at(15_002)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(15_003)), [Do::Finish(Exit::Code(124))]);
    }

    #[test]
    fn a_command_that_ends_on_that_signal_is_124_too_and_what_it_left_is_killed_in_time() {
        let mut run = bounded(Some(Duration::from_secs(10)), None);
        let _ = run.next(Input::Tick, at(10_001));
        assert_eq!(run.next(Input::Ended(Ending::Code(0)), at(10_100)), [Do::Count]);
        assert_eq!(run.next(Input::Left(1), at(10_100)), []);
        assert!(run.next(Input::Tick, at(14_999)).iter().all(|todo| *todo == Do::Count));
        assert!(matches!(run.next(Input::Tick, at(15_001))[..], [Do::KillTree { .. }]));
        assert_eq!(run.next(Input::Killed { all: true }, at(15_002)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(15_003)), [Do::Finish(Exit::Code(124))]);
    }

    #[test]
    fn a_start_that_hangs_is_bounded_as_well() {
        let mut run = run(OnLost::Terminate);
        run.manner.max_runtime = Some(Duration::from_secs(1));
        let _ = run.next(Input::Granted { sent: at(0), left: TTL }, at(1));
        assert!(matches!(run.next(Input::Tick, at(1_001))[..], [Do::SayOverrun, Do::KillTree { .. }]));
    }

    #[test]
    fn a_lease_that_is_lost_meanwhile_goes_before_the_bound() {
        let mut run = bounded(Some(Duration::from_secs(10)), None);
        assert!(run.next(Input::Lost(Loss::Condemned), at(9_000)).contains(&Do::SignalTree(TERM)));
        assert_eq!(run.next(Input::Tick, at(10_001)), []);
        assert_eq!(run.next(Input::Ended(Ending::Code(0)), at(10_002)), [Do::Count]);
        assert_eq!(run.next(Input::Left(0), at(10_002)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(10_003)), [Do::Finish(Exit::Code(79))]);
    }

    #[test]
    fn a_lock_that_is_to_be_kept_ends_so_long_after_the_start_unless_it_is_lost() {
        let minute = Duration::from_secs(60);
        let mut run = bounded(None, Some(minute));
        let _ = run.next(Input::Ended(Ending::Code(3)), at(9));
        assert_eq!(run.next(Input::Left(0), at(9)), [Do::Release { keep_until: Some(at(60_001)) }]);
        assert_eq!(run.next(Input::Released, at(10)), [Do::Finish(Exit::Code(3))]);

        let mut lost = bounded(None, Some(minute));
        let _ = lost.next(Input::Lost(Loss::Condemned), at(5));
        let _ = lost.next(Input::Ended(Ending::Code(0)), at(9));
        assert_eq!(lost.next(Input::Left(0), at(9)), [RELEASE]);

        let mut never = super::tests::run(OnLost::Terminate);
        never.manner.hold_at_least = Some(minute);
        let _ = never.next(Input::Granted { sent: at(0), left: TTL }, at(1));
        assert_eq!(never.next(Input::NotStarted(126), at(2)), [RELEASE]);
    }

    #[test]
    fn a_signal_while_waiting_leaves_the_queue_and_runs_nothing() {
        let mut run = run(OnLost::Terminate);
        assert_eq!(run.next(signal(libc::SIGWINCH), at(1)), []);
        assert_eq!(run.next(signal(TERM), at(1)), [Do::GiveUp]);
        assert_eq!(run.next(signal(libc::SIGINT), at(1)), []);
        let todo = run.next(Input::NotObtained(Exit::Code(75)), at(2));
        assert_eq!(todo, [Do::Leave, Do::Finish(Exit::Signal(TERM))]);
    }

    #[test]
    fn a_grant_that_crosses_the_signal_starts_nothing() {
        let mut run = run(OnLost::Terminate);
        assert_eq!(run.next(signal(TERM), at(1)), [Do::GiveUp]);
        assert_eq!(run.next(Input::Granted { sent: at(0), left: TTL }, at(2)), []);
        assert_eq!(run.next(Input::Released, at(3)), [Do::Finish(Exit::Signal(TERM))]);
    }

    #[test]
    fn nothing_is_started_under_a_lease_that_has_too_little_left() {
        let late = |run: &mut Run| run.next(Input::Granted { sent: at(0), left: TTL }, at(24_398));
        let mut renewed = run(OnLost::Terminate);
        assert_eq!(late(&mut renewed), []);
        let todo = renewed.next(Input::Renewed { sent: at(24_400), left: TTL }, at(24_401));
        assert!(matches!(todo[..], [Do::Tell(Some(_)), Do::Spawn]), "{todo:?}");

        let mut silent = run(OnLost::Terminate);
        late(&mut silent);
        assert_eq!(silent.wake_at(), Some(at(29_698)));
        assert_eq!(silent.next(Input::Tick, at(29_698)), [Do::SayLost(Loss::Late), RELEASE]);

        let mut gone = run(OnLost::Terminate);
        late(&mut gone);
        let todo = gone.next(Input::Lost(Loss::Gone), at(24_500));
        assert_eq!(todo, [Do::SayLost(Loss::Gone), RELEASE]);
        assert_eq!(gone.next(Input::Released, at(24_501)), [Do::Finish(Exit::Code(79))]);

        let mut signalled = run(OnLost::Terminate);
        late(&mut signalled);
        assert_eq!(signalled.next(signal(TERM), at(24_399)), [RELEASE]);
        assert_eq!(signalled.next(Input::Released, at(24_400)), [Do::Finish(Exit::Signal(TERM))]);
    }

    #[test]
    fn signals_are_forwarded_once_and_not_those_of_the_terminal_or_the_command() {
        let mut run = running(OnLost::Terminate);
        assert_eq!(run.next(signal(libc::SIGUSR1), at(3)), [Do::Forward(libc::SIGUSR1)]);
        let tty = Input::Signal { number: libc::SIGINT, from_terminal: true, from_command: false };
        assert_eq!(run.next(tty, at(3)), []);
        let own = Input::Signal { number: libc::SIGUSR2, from_terminal: false, from_command: true };
        assert_eq!(run.next(own, at(3)), []);
        run.manner.forward = false;
        assert_eq!(run.next(signal(libc::SIGUSR1), at(3)), []);
    }

    #[test]
    fn a_signal_before_the_start_is_forwarded_after_it() {
        let mut run = run(OnLost::Terminate);
        run.next(Input::Granted { sent: at(0), left: TTL }, at(1));
        assert_eq!(run.next(signal(TERM), at(1)), []);
        assert_eq!(run.next(Input::Started, at(2)), [Do::Forward(TERM)]);
    }

    #[test]
    fn after_a_stop_signal_what_is_left_is_ended_before_the_release() {
        let mut run = running(OnLost::Terminate);
        assert_eq!(run.next(signal(TERM), at(1_000)), [Do::Forward(TERM)]);
        // It goes on as long as the first process takes.
        assert_eq!(run.next(Input::Renewed { sent: at(20_000), left: TTL }, at(20_001)).len(), 1);
        assert_eq!(run.next(Input::Ended(Ending::Signal(TERM)), at(21_000)), [Do::Count]);
        assert_eq!(run.next(Input::Left(3), at(21_000)), [Do::SignalTree(TERM)]);
        assert_eq!(run.wake_at(), Some(at(21_010)));
        assert_eq!(run.next(Input::Tick, at(21_010)), [Do::Count]);
        assert_eq!(run.next(Input::Left(1), at(21_010)), []);
        assert_eq!(run.next(Input::Tick, at(26_000)), [Do::KillTree { by: at(49_698) }]);
        assert_eq!(run.next(Input::Killed { all: true }, at(26_001)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(26_002)), [Do::Finish(Exit::Signal(TERM))]);
    }

    #[test]
    fn an_unrenewed_lease_ends_the_tree_and_then_releases() {
        let mut run = running(OnLost::Terminate);
        assert_eq!(run.wake_at(), Some(at(24_398)));
        let todo = run.next(Input::Tick, at(24_398));
        let instants = Some(Instants { signal_at: None, kill_at: at(29_398) });
        assert_eq!(todo, [Do::SayLost(Loss::Late), Do::SignalTree(TERM), Do::Tell(instants)]);
        // Renewing works again: the kill comes all the same, and the command's own 0 does not count.
        run.next(Input::Renewed { sent: at(25_000), left: TTL }, at(25_001));
        let mut early = run.next(Input::Tick, at(29_397));
        assert_eq!(early, []);
        early = run.next(Input::Tick, at(29_398));
        assert_eq!(early, [Do::KillTree { by: at(54_698) }]);
        assert_eq!(run.next(Input::Killed { all: true }, at(29_400)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(29_401)), [Do::Finish(Exit::Code(79))]);
    }

    #[test]
    fn a_command_that_obeys_the_first_signal_still_ends_with_79() {
        let mut run = running(OnLost::Terminate);
        run.next(Input::Tick, at(24_398));
        assert_eq!(run.next(Input::Ended(Ending::Code(0)), at(24_500)), [Do::Count]);
        assert_eq!(run.next(Input::Left(0), at(24_500)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(24_501)), [Do::Finish(Exit::Code(79))]);
    }

    /// A store that lost its data knows nothing of the claim, and may yet meet an ask that was late.
    #[test]
    fn a_claim_that_was_removed_is_dropped_all_the_same() {
        for loss in [Loss::Gone, Loss::Condemned] {
            let mut run = running(OnLost::Terminate);
            let todo = run.next(Input::Lost(loss), at(100));
            assert_eq!(todo[..2], [Do::SayLost(loss), Do::SignalTree(TERM)]);
            run.next(Input::Ended(Ending::Signal(TERM)), at(200));
            assert_eq!(run.next(Input::Left(0), at(200)), [RELEASE]);
        }
    }

    #[test]
    fn after_a_long_stop_the_deadline_goes_first() {
        let mut run = running(OnLost::Terminate);
        let todo = run.next(Input::Renewed { sent: at(90_000), left: TTL }, at(90_000));
        assert_eq!(todo[..2], [Do::SayLost(Loss::Late), Do::KillTree { by: at(90_300) }]);
    }

    #[test]
    fn warn_lets_the_command_run() {
        let mut run = running(OnLost::Warn);
        assert_eq!(run.next(Input::Tick, at(29_698)), [Do::SayLost(Loss::Late)]);
        run.next(Input::Ended(Ending::Code(3)), at(50_000));
        assert_eq!(run.next(Input::Left(0), at(50_000)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(50_001)), [Do::Finish(Exit::Code(3))]);
    }

    #[test]
    fn without_its_keeper_or_its_thread_a_run_ends_safely() {
        let mut run = running(OnLost::Terminate);
        assert_eq!(run.next(Input::KeeperGone, at(100)), [Do::KillTree { by: at(29_698) }]);
        assert_eq!(run.next(Input::Killed { all: true }, at(101)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(102)), [Do::Finish(Exit::Code(70))]);

        let mut run = running(OnLost::Terminate);
        assert_eq!(run.next(Input::ThreadGone, at(100)), []);
        run.next(Input::Tick, at(24_398));
        run.next(Input::Ended(Ending::Signal(TERM)), at(24_400));
        assert_eq!(run.next(Input::Left(0), at(24_400)), [Do::Leave, Do::Finish(Exit::Code(79))]);
    }

    #[test]
    fn what_cannot_be_killed_is_left_with_its_lease() {
        let mut run = running(OnLost::Kill);
        assert_eq!(run.next(Input::Tick, at(29_398))[1], Do::KillTree { by: at(29_698) });
        assert_eq!(run.next(Input::Killed { all: false }, at(29_698)), [Do::Leave, Do::Finish(Exit::Code(79))]);
    }

    #[test]
    fn a_command_that_cannot_start_gives_the_key_back() {
        let mut run = run(OnLost::Terminate);
        run.next(Input::Granted { sent: at(0), left: TTL }, at(1));
        assert_eq!(run.next(Input::NotStarted(126), at(2)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(3)), [Do::Finish(Exit::Code(126))]);
    }

    #[test]
    fn job_control_stops_rlock_with_its_command_and_an_outside_stop_does_not() {
        let mut run = running(OnLost::Terminate);
        assert_eq!(run.next(signal(libc::SIGTSTP), at(5)), [Do::Forward(libc::SIGTSTP)]);
        assert_eq!(run.next(Input::Stopped(libc::SIGTSTP), at(6)), [Do::StopSelf]);
        assert_eq!(run.next(Input::Stopped(libc::SIGSTOP), at(7)), []);
    }

    #[test]
    fn what_is_only_being_started_is_killed_at_the_first_instant() {
        let mut run = run(OnLost::Terminate);
        run.next(Input::Granted { sent: at(0), left: TTL }, at(1));
        let todo = run.next(Input::Tick, at(24_398));
        assert_eq!(todo, [Do::SayLost(Loss::Late), Do::KillTree { by: at(29_698) }]);
        assert_eq!(run.next(Input::NotStarted(71), at(24_399)), []);
        assert_eq!(run.next(Input::Started, at(24_399)), []);
        assert_eq!(run.next(Input::Killed { all: true }, at(24_400)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(24_401)), [Do::Finish(Exit::Code(79))]);
    }

    #[test]
    fn a_start_that_hangs_is_given_up_after_a_stop_signal() {
        let mut run = run(OnLost::Terminate);
        run.next(Input::Granted { sent: at(0), left: TTL }, at(1));
        assert_eq!(run.next(signal(TERM), at(100)), []);
        assert_eq!(run.next(signal(libc::SIGINT), at(200)), []);
        assert_eq!(run.wake_at(), Some(at(5_100)));
        assert_eq!(run.next(Input::Tick, at(5_099)), []);
        assert_eq!(run.next(Input::Tick, at(5_100)), [Do::KillTree { by: at(29_698) }]);
        assert_eq!(run.next(Input::Started, at(5_101)), []);
        assert_eq!(run.next(Input::Killed { all: true }, at(5_101)), [RELEASE]);
        assert_eq!(run.next(Input::Released, at(5_102)), [Do::Finish(Exit::Signal(TERM))]);
    }

    #[test]
    fn what_the_terminal_gave_to_all_before_the_start_reaches_the_command() {
        let mut run = run(OnLost::Terminate);
        run.next(Input::Granted { sent: at(0), left: TTL }, at(1));
        let tty = Input::Signal { number: libc::SIGINT, from_terminal: true, from_command: false };
        assert_eq!(run.next(tty, at(1)), []);
        assert_eq!(run.next(Input::Started, at(2)), [Do::Forward(libc::SIGINT)]);
    }

    #[test]
    fn an_end_in_time_is_no_loss_however_late_it_is_heard_of() {
        let mut run = running(OnLost::Terminate);
        assert_eq!(run.next(Input::Ended(Ending::Code(6)), at(90_000)), [Do::Count]);
        assert_eq!(run.next(Input::Left(0), at(90_000)), [RELEASE]);
        assert_eq!(run.next(Input::Tick, at(90_001)), []);
        assert_eq!(run.next(Input::Released, at(90_002)), [Do::Finish(Exit::Code(6))]);
    }

    #[test]
    fn after_the_keepers_signal_kill_follows_although_a_renewal_was_on_its_way() {
        let mut run = running(OnLost::Terminate);
        run.next(Input::Renewed { sent: at(20_000), left: TTL }, at(24_390));
        let instants = Some(Instants { signal_at: None, kill_at: at(29_450) });
        assert_eq!(run.next(Input::KeeperActed, at(24_450)), [Do::SayLost(Loss::Late), Do::Tell(instants)]);
        run.next(Input::Renewed { sent: at(25_000), left: TTL }, at(25_001));
        assert!(matches!(run.next(Input::Tick, at(29_450))[..], [Do::KillTree { .. }]));
    }
}
