//! The one event loop: it gathers what happened, asks [`super::next`], and carries out the answer.

use std::collections::VecDeque;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::mem::take;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timer::TimerSetTimeFlags;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags};
use nix::unistd::Pid;

use super::account::Account;
use super::events::{Do, Input};
use super::next::Run;
use super::worker::{Handle, News, Order};
use crate::child::{self, Program};
use crate::claim::ClaimId;
use crate::clock::Boot;
use crate::error::Error;
use crate::exit::Exit;
use crate::keeper::{self, Environment, Event, Keeper};
use crate::nest::{self, Nest};
use crate::report::Voice;
use crate::settings::{RunSettings, Settings};
use crate::signal::{self, Signals};
use crate::sys;

/// How long the keeper may take to end.
const BURIAL: Duration = Duration::from_millis(200);
/// How long the lines before a start or a stop may take.
const LINES: Duration = Duration::from_millis(200);

/// What a run has been given.
pub(super) struct Parts {
    pub(super) program: Program,
    pub(super) signals: Signals,
    pub(super) timer: TimerFd,
    pub(super) keeper: Keeper,
    pub(super) voice: Voice,
    pub(super) worker: Handle,
    pub(super) state: Run,
    pub(super) nest: Nest,
    pub(super) claim: ClaimId,
    pub(super) began: Boot,
}

/// The loop and what it acts on.
pub(super) struct EventLoop<'a> {
    run: &'a RunSettings,
    program: Program,
    signals: Signals,
    /// None once it was let go.
    keeper: Option<Keeper>,
    /// The keeper's pid once it was let go.
    leaving: Option<Pid>,
    worker: Handle,
    worker_is_gone: bool,
    state: Run,
    nest: Nest,
    timer: TimerFd,
    first: Option<Pid>,
    account: Account<'a>,
    exit: Option<Exit>,
    /// We were stopped with the command, and have not seen the signal that let us go on.
    has_resumed: bool,
}

/// The loop's timer, to be opened while nothing is asked for yet.
pub(super) fn timer() -> anyhow::Result<TimerFd> {
    TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
        .context(Error::Os("cannot open a timer (see ulimit -n)".into()))
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(settings: &'a Settings, run: &'a RunSettings, parts: Parts) -> Self {
        let Parts { program, signals, timer, keeper, voice, worker, state, nest, claim, began } = parts;
        let account = Account::new(settings, run, voice, claim, began);
        Self {
            run,
            program,
            signals,
            keeper: Some(keeper),
            leaving: None,
            worker,
            worker_is_gone: false,
            state,
            nest,
            timer,
            first: None,
            account,
            exit: None,
            has_resumed: false,
        }
    }

    pub(super) fn account(&self) -> &Account<'a> {
        &self.account
    }

    /// Turns until the run is over.
    pub(super) fn run(&mut self) -> anyhow::Result<Exit> {
        loop {
            if let Some(exit) = self.exit {
                self.bury_keeper(Boot::now() + BURIAL);
                self.account.exits(exit);
                return Ok(exit);
            }
            self.sleep()?;
            // The keeper first, since it tells things in their order; then the deadline; and signals before the store,
            // so that nothing is spawned after a stop signal.
            self.hear_keeper();
            self.feed(Input::Tick);
            self.account.tell();
            self.hear_signals();
            self.hear_worker();
        }
    }

    /// Waits for the keeper's end, until `by` at most.
    fn bury_keeper(&self, by: Boot) {
        let Some(pid) = self.leaving else { return };
        while !keeper::bury(pid) && Boot::now() < by {
            let left = PollTimeout::try_from(by.left()).unwrap_or(PollTimeout::MAX);
            // A failure is a turn for nothing.
            let _ = poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], left);
            while self.signals.read().is_some() {}
        }
    }

    fn sleep(&mut self) -> anyhow::Result<()> {
        let failed = || Error::Os("cannot wait for events".into());
        match [self.state.wake_at(), self.account.tell_at()].into_iter().flatten().min() {
            Some(at) => {
                let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
                self.timer.set(Expiration::OneShot(TimeSpec::from(at.since_boot())), flags).with_context(failed)?;
            }
            None => self.timer.unset().with_context(failed)?,
        }
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        if !self.worker_is_gone {
            fds.push(PollFd::new(self.worker.as_fd(), PollFlags::POLLIN));
        }
        if let Some(keeper) = self.keeper.as_ref().filter(|keeper| !keeper.is_gone()) {
            fds.push(PollFd::new(keeper.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno).with_context(failed),
        }
    }

    fn hear_signals(&mut self) {
        while let Some(received) = self.signals.read() {
            if received.signal == libc::SIGCHLD {
                if let Some(keeper) = &mut self.keeper {
                    keeper.reap();
                }
                continue;
            }
            // The keeper's end, which is heard of by itself.
            if received.is_from_descriptor() {
                continue;
            }
            let (keeper, sender) = (self.keeper.as_ref(), received.sender);
            let from_command = keeper.zip(sender).is_some_and(|(keeper, sender)| keeper.is_first(sender));
            // Whoever let a stopped job go on has let the command go on with us.
            if received.signal == libc::SIGCONT && take(&mut self.has_resumed) && !self.is_first_stopped() {
                continue;
            }
            let from_terminal = received.is_from_terminal();
            self.feed(Input::Signal { number: received.signal, from_terminal, from_command });
        }
    }

    fn hear_keeper(&mut self) {
        while let Some(event) = self.keeper.as_mut().and_then(Keeper::try_recv) {
            let input = match event {
                Event::Started { pid } => {
                    self.first = Some(Pid::from_raw(pid));
                    self.account.started = true;
                    Input::Started
                }
                Event::NotStarted { errno } => self.not_started(errno),
                Event::Stopped { signal } => Input::Stopped(signal),
                Event::Continued => continue,
                Event::Ended(ending) => {
                    // A signal to the whole group may have ended it, and ours be unread.
                    self.hear_signals();
                    self.account.ran();
                    Input::Ended(ending)
                }
                Event::Signalled { left } | Event::Killed { left } => {
                    self.account.cannot_stop(&left);
                    Input::KeeperActed
                }
                Event::Gone => {
                    self.account.keeper_gone();
                    Input::KeeperGone
                }
            };
            self.feed(input);
        }
    }

    fn hear_worker(&mut self) {
        if self.worker_is_gone {
            return;
        }
        self.worker.hush();
        loop {
            match self.worker.next() {
                Ok(None) => return,
                Ok(Some(news)) => {
                    // After its last word it ends as it should.
                    self.worker_is_gone = matches!(news, News::NotObtained(_) | News::Released(_));
                    self.take(news);
                    if self.worker_is_gone {
                        return;
                    }
                }
                Err(_) => {
                    self.worker_is_gone = true;
                    self.account.thread_gone();
                    self.feed(Input::ThreadGone);
                    return;
                }
            }
        }
    }

    fn take(&mut self, news: News) {
        let input = match news {
            News::Waiting { position, holders, now_ms } => {
                let Some(around) = holders.iter().find(|held| self.nest.has(held.id)) else {
                    self.account.waits(position, holders, now_ms);
                    return;
                };
                self.account.hopeless(around);
                Input::Hopeless
            }
            News::Granted { number, sent, left } => {
                self.account.granted(number);
                Input::Granted { sent, left }
            }
            News::ShortTtl(round_trip) => {
                self.account.short_ttl(round_trip);
                return;
            }
            News::ClockJumped(ms) => {
                self.account.clock_jumped(ms);
                return;
            }
            News::NotObtained(end) => Input::NotObtained(self.account.not_obtained(end)),
            News::Renewed { sent, left, restored } => {
                self.account.renewed(restored);
                Input::Renewed { sent, left }
            }
            News::NotRenewed(why) => {
                self.account.not_renewed(why);
                return;
            }
            News::Lost(loss, look) => {
                self.account.seen = look;
                Input::Lost(loss)
            }
            News::Released(release) => {
                let left = self.state.lease().map(|lease| lease.deadline().left());
                self.account.released(&release, left.unwrap_or_default());
                Input::Released
            }
        };
        self.feed(input);
    }

    fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for todo in self.state.next(input, Boot::now()) {
                inputs.extend(self.carry_out(todo));
            }
        }
    }

    /// Does it, and says what came of it where something did.
    fn carry_out(&mut self, todo: Do) -> Option<Input> {
        match todo {
            Do::GiveUp => {
                self.account.waits_no_more();
                self.worker.order(Order::give_up(Boot::now()));
            }
            Do::Spawn => {
                if self.account.voice.has_terminal() {
                    // What the command prints must not stand behind a live line.
                    self.account.voice.finish(LINES);
                }
                let environment = self.environment();
                self.account.spawned = true;
                match self.keeper.as_mut().map(|keeper| keeper.spawn(environment)) {
                    // A keeper that is dead is heard of next.
                    None | Some(Ok(())) => {}
                    Some(Err(error)) if matches!(error.kind(), BrokenPipe | ConnectionReset) => {}
                    Some(Err(error)) => return Some(self.not_started(error.raw_os_error().unwrap_or(libc::E2BIG))),
                }
            }
            Do::Tell(instants) => {
                if let Some(keeper) = &self.keeper {
                    keeper.set_instants(instants);
                }
            }
            Do::Forward(number) => {
                if let Some(first) = self.first {
                    // It may have ended meanwhile; its pid is still its own.
                    let _ = sys::kill(first, number);
                }
            }
            Do::SignalTree(number) => {
                let left = self.keeper.as_ref().map(|keeper| keeper.tree().signal(number)).unwrap_or_default();
                self.account.cannot_stop(&left);
            }
            Do::KillTree { by } => {
                let left = self.keeper.as_ref().map(|keeper| keeper.tree().kill(by)).unwrap_or_default();
                self.account.cannot_stop(&left);
                return Some(Input::Killed { all: left.is_empty() });
            }
            Do::Count => {
                let count = self.keeper.as_ref().map_or(0, Keeper::count);
                self.account.counted(count);
                return Some(Input::Left(count));
            }
            Do::SayLost(loss) => self.account.lost(loss),
            Do::SayOverrun => self.account.overran(),
            // It may have gone on since.
            Do::StopSelf if self.first.is_some() && !self.is_first_stopped() => {}
            Do::StopSelf => {
                self.account.stops(self.state.lease().map(|lease| lease.deadline().left()));
                self.account.voice.finish(LINES);
                signal::stop_self();
                self.has_resumed = self.first.is_some();
                return Some(Input::Tick);
            }
            Do::Release { keep_until } => {
                let now = Boot::now();
                let deadline = self.state.lease().map_or(now, crate::lease::Lease::deadline);
                self.let_go(Order::release(deadline, now, keep_until));
            }
            Do::Leave => self.let_go(Order::Leave),
            Do::Finish(exit) => self.exit = Some(exit),
        }
        None
    }

    /// The release first: others wait for it, and there is nobody left for the keeper to end.
    fn let_go(&mut self, order: Order) {
        self.worker.order(order);
        if let Some(keeper) = self.keeper.take() {
            self.leaving = Some(keeper.done());
        }
        self.account.over();
    }

    fn environment(&self) -> Environment {
        let claim = self.account.report.claim.map(|claim| self.nest.with(claim, &self.run.key));
        let token = self.account.report.token.map(|token| token.to_string());
        let pairs = [("RLOCK_KEY", Some(self.run.key.to_string())), ("RLOCK_TOKEN", token), (nest::CLAIM, claim)];
        let set = pairs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        Environment { set, unset: Vec::new() }
    }

    fn is_first_stopped(&self) -> bool {
        self.first.is_some_and(child::is_stopped)
    }

    fn not_started(&mut self, errno: i32) -> Input {
        // The keeper found the lease too old to start anything, also where a renewal was on its way.
        if errno == libc::ETIME {
            return Input::KeeperActed;
        }
        let error = self.program.not_started(errno);
        self.account.not_started(&error);
        Input::NotStarted(error.code())
    }
}
