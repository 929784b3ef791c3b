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

use super::hold::Release;
use super::next::{Do, Input, Run};
use super::wait::End;
use super::worker::{Handle, News, Order};
use crate::child::{self, Left, Program};
use crate::claim::ClaimId;
use crate::clock::Boot;
use crate::error::Error;
use crate::exit::{self, Exit};
use crate::keeper::{self, Environment, Event, Keeper};
use crate::lease::Loss;
use crate::nest::{self, Nest};
use crate::report::{self, HolderView, Outcome, Report, Voice, Waiting};
use crate::settings::{RunSettings, Settings};
use crate::signal::{self, Signals};
use crate::store::Look;
use crate::{sys, timing};

/// How long a release is retried: briefly, since the lease ends by itself.
const RELEASE: Duration = Duration::from_secs(3);
/// How long the keeper may take to end.
const BURIAL: Duration = Duration::from_millis(200);
/// How long the lines before a start or a stop may take.
const LINES: Duration = Duration::from_millis(200);

/// What a run has been given.
pub(super) struct Parts {
    pub(super) program: Program,
    pub(super) signals: Signals,
    pub(super) keeper: Keeper,
    pub(super) voice: Voice,
    pub(super) worker: Handle,
    pub(super) state: Run,
    pub(super) nest: Nest,
    pub(super) claim: ClaimId,
    pub(super) began: Boot,
}

/// The loop and what it knows for its lines and its report.
pub(super) struct EventLoop<'a> {
    run: &'a RunSettings,
    program: Program,
    signals: Signals,
    /// None once it was let go.
    keeper: Option<Keeper>,
    /// The keeper's pid once it was let go.
    leaving: Option<Pid>,
    voice: Voice,
    worker: Handle,
    worker_is_gone: bool,
    state: Run,
    nest: Nest,
    began: Boot,
    timer: TimerFd,
    first: Option<Pid>,
    granted: Option<Boot>,
    waiting: Waiting,
    /// Why the last renewal failed.
    trouble: Option<String>,
    /// What a loss was seen with.
    seen: Option<Look>,
    report: Report,
    exit: Option<Exit>,
    /// We were stopped with the command, and have not seen the signal that let us go on.
    has_resumed: bool,
}

impl<'a> EventLoop<'a> {
    pub(super) fn new(settings: &'a Settings, run: &'a RunSettings, parts: Parts) -> anyhow::Result<Self> {
        let Parts { program, signals, keeper, voice, worker, state, nest, claim, began } = parts;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
            .context(Error::Os("cannot open a timer".into()))?;
        let mut report = Report::new(&run.key, settings.store.url.name());
        report.claim = Some(claim);
        Ok(Self {
            run,
            program,
            signals,
            keeper: Some(keeper),
            leaving: None,
            voice,
            worker,
            worker_is_gone: false,
            state,
            nest,
            began,
            timer,
            first: None,
            granted: None,
            waiting: Waiting::default(),
            trouble: None,
            seen: None,
            report,
            exit: None,
            has_resumed: false,
        })
    }

    pub(super) fn voice(&self) -> &Voice {
        &self.voice
    }

    /// The report as it stands.
    pub(super) fn report(&self) -> Report {
        self.report.clone()
    }

    /// Turns until the run is over.
    pub(super) fn run(&mut self) -> anyhow::Result<Exit> {
        loop {
            if let Some(exit) = self.exit {
                if let Some(pid) = self.leaving {
                    keeper::bury(pid, Boot::now() + BURIAL);
                }
                self.report.code = exit.shown();
                self.report.signal = if let Exit::Signal(number) = exit { Some(number) } else { None };
                return Ok(exit);
            }
            self.sleep()?;
            // The keeper first, since it tells things in their order; then the deadline; and signals before the store,
            // so that nothing is spawned after a stop signal.
            self.hear_keeper();
            self.feed(Input::Tick);
            self.hear_signals();
            self.hear_worker();
        }
    }

    fn sleep(&mut self) -> anyhow::Result<()> {
        let failed = || Error::Os("cannot wait for events".into());
        match self.state.wake_at() {
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
                    Input::Started
                }
                Event::NotStarted { errno } => self.not_started(errno),
                Event::Stopped { signal } => Input::Stopped(signal),
                Event::Continued => continue,
                Event::Ended(ending) => {
                    // A signal to the whole group may have ended it, and ours be unread.
                    self.hear_signals();
                    Input::Ended(ending)
                }
                Event::Signalled { left } | Event::Killed { left } => {
                    self.say_left(&left);
                    Input::KeeperActed
                }
                Event::Gone => {
                    self.voice.say(&report::keeper_gone(self.key(), self.first.is_some()));
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
                Ok(Some(news)) => self.take(news),
                Err(_) => {
                    self.worker_is_gone = true;
                    self.feed(Input::ThreadGone);
                    return;
                }
            }
        }
    }

    fn take(&mut self, news: News) {
        let input = match news {
            News::Waiting { position, holders, now_ms } => {
                self.report.waited_ms = ms(Boot::now().since(self.began));
                if let Some(around) = holders.iter().find(|held| self.nest.has(held.id)) {
                    self.voice.say(&report::hopeless(self.key(), around));
                    self.feed(Input::Hopeless);
                    return;
                }
                let waited = Boot::now().since(self.began);
                self.waiting.tell(&self.voice, waited, self.run.key.as_str(), position, &holders, now_ms);
                return;
            }
            News::Granted { number, sent, left, round_trip } => {
                self.report.waited_ms = ms(Boot::now().since(self.began));
                self.report.token = Some(number);
                self.granted = Some(Boot::now());
                if let Some(round_trip) = round_trip.filter(|one| timing::is_short_for(self.run.ttl, *one)) {
                    self.voice.say(&report::short_ttl(self.run.ttl, round_trip));
                }
                Input::Granted { sent, left }
            }
            News::NotObtained(end) => Input::NotObtained(self.not_obtained(end)),
            News::Renewed { sent, left, restored } => {
                self.report.renewals += 1;
                self.trouble = None;
                if restored {
                    self.voice.say_verbose(&report::restored(self.key()));
                }
                Input::Renewed { sent, left }
            }
            News::NotRenewed(why) => {
                self.voice.say_verbose(&report::not_renewed(self.key(), &why));
                self.trouble = Some(why);
                return;
            }
            News::Lost(loss, look) => {
                self.seen = look;
                Input::Lost(loss)
            }
            News::Released(release) => {
                self.released(&release);
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
            Do::GiveUp => self.worker.order(Order::Release { by: Boot::now() + RELEASE }),
            Do::Spawn => {
                if self.voice.has_terminal() {
                    // What the command prints must not stand behind a live line.
                    self.voice.finish(LINES);
                }
                let environment = self.environment();
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
                self.say_left(&left);
            }
            Do::KillTree { by } => {
                let left = self.keeper.as_ref().map(|keeper| keeper.tree().kill(by)).unwrap_or_default();
                self.say_left(&left);
                return Some(Input::Killed { all: left.is_empty() });
            }
            Do::Count => {
                let count = self.keeper.as_ref().map_or(0, |keeper| keeper.tree().count());
                self.report.left_running = u32::try_from(count).unwrap_or(u32::MAX);
                return Some(Input::Left(count));
            }
            Do::SayLost(loss) => self.say_lost(loss),
            // It may have gone on since.
            Do::StopSelf if self.first.is_some() && !self.is_first_stopped() => {}
            Do::StopSelf => {
                self.voice.say(&report::stopped(self.key(), self.state.lease().map(|lease| lease.deadline().left())));
                self.voice.finish(LINES);
                signal::stop_self();
                self.has_resumed = self.first.is_some();
                return Some(Input::Tick);
            }
            Do::Release => {
                let deadline = self.state.lease().map(crate::lease::Lease::deadline);
                let by = deadline.into_iter().chain([Boot::now() + RELEASE]).min();
                self.let_go(Order::Release { by: by.unwrap_or_else(Boot::now) });
            }
            Do::Leave => self.let_go(Order::Leave),
            Do::Finish(exit) => self.exit = Some(exit),
        }
        None
    }

    fn let_go(&mut self, order: Order) {
        if let Some(keeper) = self.keeper.take() {
            self.leaving = Some(keeper.done());
        }
        if let Some(granted) = self.granted {
            self.report.held_ms = Some(ms(Boot::now().since(granted)));
            if self.report.outcome == Outcome::Failed && self.first.is_some() {
                self.report.outcome = Outcome::Ran;
            }
        }
        self.worker.order(order);
    }

    fn environment(&self) -> Environment {
        let claim = self.report.claim.map(|claim| self.nest.with(claim, &self.run.key));
        let token = self.report.token.map(|token| token.to_string());
        let pairs = [("RLOCK_KEY", Some(self.run.key.to_string())), ("RLOCK_TOKEN", token), (nest::CLAIM, claim)];
        let set = pairs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        Environment { set, unset: Vec::new() }
    }

    fn key(&self) -> &'a str {
        self.run.key.as_str()
    }

    fn is_first_stopped(&self) -> bool {
        self.first.is_some_and(child::is_stopped)
    }

    fn not_started(&mut self, errno: i32) -> Input {
        // The keeper found the lease too old to start anything; the deadline says the rest.
        if errno == libc::ETIME {
            return Input::Tick;
        }
        let error = self.program.not_started(errno);
        self.voice.say(&error.to_string());
        (self.report.outcome, self.report.why) = (Outcome::from(&error), Some(error.to_string()));
        Input::NotStarted(error.code())
    }

    /// Says why the key was not obtained, and with which code rlock ends.
    fn not_obtained(&mut self, end: End) -> Exit {
        let key = self.key();
        self.report.waited_ms = ms(Boot::now().since(self.began));
        let (outcome, code, line) = match end {
            End::GivenUp => {
                self.report.outcome = Outcome::Interrupted;
                return Exit::Code(exit::SOFTWARE);
            }
            End::Busy { holders, waited, now_ms } => {
                self.report.holder = holders.first().map(|held| HolderView::new(held, false, now_ms));
                let line = report::busy(key, &holders, now_ms, waited);
                self.voice.say_unless_quiet(&line);
                (self.report.outcome, self.report.why) = (Outcome::Busy, Some(line));
                return Exit::Code(self.run.busy_code);
            }
            End::Removed => (Outcome::Busy, self.run.busy_code, report::removed(key)),
            End::Silent { after, last } => (Outcome::Unavailable, exit::UNAVAILABLE, report::silent(after, &last)),
            End::Refused(text) => (Outcome::Refused, exit::REFUSED, text),
            End::Config(text) => (Outcome::Config, exit::CONFIG, text),
        };
        self.voice.say(&line);
        (self.report.outcome, self.report.why) = (outcome, Some(line));
        Exit::Code(code)
    }

    fn say_lost(&mut self, loss: Loss) {
        let on_lost = self.first.map(|_| self.run.on_lost);
        let line = report::lost(self.key(), loss, self.trouble.as_deref(), self.seen.as_ref(), on_lost);
        self.voice.say(&line);
        (self.report.outcome, self.report.why) = (Outcome::Lost, Some(line));
        self.report.holder = self.seen.as_ref().and_then(|look| {
            let other = look.holders.iter().find(|held| Some(held.id) != self.report.claim)?;
            Some(HolderView::new(other, false, look.now_ms))
        });
    }

    fn say_left(&mut self, left: &[Left]) {
        if !left.is_empty() {
            self.voice.say(&report::cannot_stop(left));
            self.report.unkilled = left.iter().map(|left| left.pid).collect();
        }
    }

    /// A release that failed keeps the command's status; after a loss there is nothing more to say.
    fn released(&mut self, release: &Release) {
        if self.report.outcome == Outcome::Lost || self.first.is_none() {
            return;
        }
        let left = self.state.lease().map(|lease| lease.deadline().left()).unwrap_or_default();
        let line = match release {
            Release::Done => return,
            Release::NotOurs => report::was_not_ours(self.key()),
            Release::Unanswered(why) => report::unreleased(self.key(), why, left),
        };
        self.voice.say(&line);
        self.report.why = Some(line);
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
