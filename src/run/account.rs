//! What a run says and reports about itself.

use std::time::Duration;

use super::hold::Release;
use super::wait::End;
use crate::child::Left;
use crate::claim::{ClaimId, Entry};
use crate::clock::{Boot, ms};
use crate::error::Error;
use crate::exit::{self, Exit};
use crate::lease::Loss;
use crate::report::{self, HolderView, Outcome, Report, Voice, Waiting};
use crate::settings::{RunSettings, Settings};
use crate::signal;
use crate::store::{Look, Trouble};

/// The account of one run.
pub(super) struct Account<'a> {
    run: &'a RunSettings,
    pub(super) voice: Voice,
    pub(super) report: Report,
    began: Boot,
    granted: Option<Boot>,
    /// Whether the keeper was told to start the command: it may run from then on.
    pub(super) spawned: bool,
    /// Whether the command was started.
    pub(super) started: bool,
    waiting: Waiting,
    /// What the store said last of a wait that goes on.
    wait: Option<Wait>,
    /// Why the last renewal failed.
    trouble: Option<String>,
    /// What a loss was seen with.
    pub(super) seen: Option<Look>,
    is_closed: bool,
}

/// What a waiter was told.
struct Wait {
    position: usize,
    holders: Vec<Entry>,
    now_ms: u64,
    at: Boot,
}

impl<'a> Account<'a> {
    pub(super) fn new(settings: &Settings, run: &'a RunSettings, voice: Voice, claim: ClaimId, began: Boot) -> Self {
        let mut report = Report::new(&run.key, settings.store.url.name());
        report.claim = Some(claim);
        Self {
            run,
            voice,
            report,
            began,
            granted: None,
            spawned: false,
            started: false,
            waiting: Waiting::default(),
            wait: None,
            trouble: None,
            seen: None,
            is_closed: false,
        }
    }

    fn key(&self) -> &'a str {
        self.run.key.as_str()
    }

    fn ended_as(&mut self, outcome: Outcome, why: String) {
        (self.report.outcome, self.report.why) = (outcome, Some(why));
    }

    pub(super) fn waits(&mut self, position: usize, holders: Vec<Entry>, now_ms: u64) {
        self.report.waited_ms = ms(Boot::now().since(self.began));
        self.wait = Some(Wait { position, holders, now_ms, at: Boot::now() });
        self.tell();
    }

    /// Tells of the wait if it is time to. What the store said last goes on: leases run, the wait grows.
    pub(super) fn tell(&mut self) {
        let Some(Wait { position, holders, now_ms, at }) = &self.wait else { return };
        let (now, key) = (Boot::now(), self.run.key.as_str());
        let now_ms = now_ms + ms(now.since(*at));
        self.waiting.tell(&self.voice, now.since(self.began), key, *position, holders, now_ms);
    }

    /// When [`Self::tell`] has something new though nothing happens.
    pub(super) fn tell_at(&self) -> Option<Boot> {
        self.wait.as_ref()?;
        Some(self.began + self.waiting.next(&self.voice, Boot::now().since(self.began))?)
    }

    /// The wait is over, or about to be.
    pub(super) fn waits_no_more(&mut self) {
        self.wait = None;
    }

    pub(super) fn hopeless(&mut self, around: &Entry) {
        let line = report::hopeless(self.key(), around);
        self.voice.say(&line);
        self.ended_as(Outcome::Config, line);
    }

    pub(super) fn granted(&mut self, number: u64) {
        self.waits_no_more();
        self.report.waited_ms = ms(Boot::now().since(self.began));
        self.report.token = Some(number);
        self.granted = Some(Boot::now());
    }

    pub(super) fn short_ttl(&self, round_trip: Duration) {
        self.voice.say(&report::short_ttl(self.run.ttl, round_trip));
    }

    pub(super) fn clock_jumped(&self, ms: i64) {
        self.voice.say(&report::clock_jumped(self.key(), &self.report.store, ms));
    }

    pub(super) fn renewed(&mut self, restored: bool) {
        self.report.renewals += 1;
        self.trouble = None;
        if restored {
            self.voice.say_verbose(&report::restored(self.key()));
        }
    }

    pub(super) fn not_renewed(&mut self, why: String) {
        self.voice.say_verbose(&report::not_renewed(self.key(), &why));
        self.trouble = Some(why);
    }

    pub(super) fn keeper_gone(&mut self) {
        let line = report::keeper_gone(self.key(), self.spawned);
        self.voice.say(&line);
        // Of a lease that was lost before, this is only a part.
        if self.report.outcome != Outcome::Lost {
            self.ended_as(Outcome::Failed, line);
        }
    }

    /// Once the account is closed the thread ends as it should.
    pub(super) fn thread_gone(&mut self) {
        if !self.is_closed {
            let line = report::thread_gone(self.key(), self.granted.is_some());
            self.voice.say(&line);
            self.report.why = Some(line);
        }
    }

    pub(super) fn stops(&self, left: Option<Duration>) {
        self.voice.say(&report::stopped(self.key(), left));
    }

    pub(super) fn not_started(&mut self, error: &Error) {
        self.voice.say(&error.to_string());
        self.ended_as(Outcome::from(error), error.to_string());
    }

    /// Says why the key was not obtained, and with which code rlock ends.
    pub(super) fn not_obtained(&mut self, end: End) -> Exit {
        self.waits_no_more();
        let key = self.key();
        self.report.waited_ms = ms(Boot::now().since(self.began));
        let (outcome, code, line) = match end {
            // Where it was not a signal, what it was has been said.
            End::GivenUp => return Exit::Code(exit::SOFTWARE),
            End::Busy { holders, waited, now_ms } => {
                self.report.holder = holders.first().map(|held| HolderView::new(held, false, now_ms));
                let line = report::busy(key, &holders, now_ms, waited);
                self.voice.say_unless_quiet(&line);
                self.ended_as(Outcome::Busy, line);
                return Exit::Code(self.run.busy_code);
            }
            End::Removed => (Outcome::Busy, self.run.busy_code, report::removed(key)),
            End::Silent { after, last: last @ Trouble::Os(_) } => {
                (Outcome::Failed, exit::OS, report::silent(after, &last))
            }
            End::Silent { after, last } => (Outcome::Unavailable, exit::UNAVAILABLE, report::silent(after, &last)),
            End::TooFew(text) => (Outcome::Unavailable, exit::UNAVAILABLE, format!("{text}; not run")),
            End::Refused(text) => (Outcome::Refused, exit::REFUSED, text),
            End::Config(text) => (Outcome::Config, exit::CONFIG, text),
        };
        self.voice.say(&line);
        self.ended_as(outcome, line);
        Exit::Code(code)
    }

    pub(super) fn lost(&mut self, loss: Loss) {
        let on_lost = self.spawned.then_some(self.run.on_lost);
        let line = report::lost(self.key(), loss, self.trouble.as_deref(), self.seen.as_ref(), on_lost);
        self.voice.say(&line);
        self.ended_as(Outcome::Lost, line);
        self.report.holder = self.seen.as_ref().and_then(|look| {
            let other = look.holders.iter().find(|held| Some(held.id) != self.report.claim)?;
            Some(HolderView::new(other, false, look.now_ms))
        });
    }

    pub(super) fn overran(&mut self) {
        let run = self.run;
        let line =
            report::overran(self.key(), run.max_runtime.unwrap_or_default(), &signal::name(run.signal), run.grace);
        self.voice.say(&line);
        self.ended_as(Outcome::MaxRuntime, line);
    }

    pub(super) fn cannot_stop(&mut self, left: &[Left]) {
        if !left.is_empty() {
            self.voice.say(&report::cannot_stop(left));
            self.report.unkilled = left.iter().map(|left| left.pid).collect();
        }
    }

    pub(super) fn counted(&mut self, left: usize) {
        self.report.left_running = u32::try_from(left).unwrap_or(u32::MAX);
    }

    /// The command, if there was one, is over.
    pub(super) fn over(&mut self) {
        self.is_closed = true;
        if let Some(granted) = self.granted {
            self.report.held_ms = Some(ms(Boot::now().since(granted)));
        }
    }

    /// The first process ended by itself, or of a signal that rlock passed on.
    pub(super) fn ran(&mut self) {
        if self.report.outcome == Outcome::Failed {
            self.report.outcome = Outcome::Ran;
        }
    }

    /// A release that failed keeps the command's status; after a loss there is nothing more to say.
    pub(super) fn released(&mut self, release: &Release, lease_left: Duration) {
        if self.report.outcome == Outcome::Lost || !self.started {
            return;
        }
        let line = match release {
            Release::Done => return,
            Release::NotOurs => report::was_not_ours(self.key(), self.run.hold_at_least.is_some()),
            Release::Unanswered(why) if self.run.hold_at_least.is_some() => {
                report::not_kept(self.key(), why, lease_left)
            }
            Release::Unanswered(why) => report::unreleased(self.key(), why, lease_left),
        };
        self.voice.say(&line);
        self.report.why = Some(line);
    }

    /// A signal that came before there was a command is all that became of the run, also where the grant crossed it.
    pub(super) fn exits(&mut self, exit: Exit) {
        let is_told = self.report.outcome != Outcome::Failed || self.report.why.is_some() || self.started;
        match exit {
            Exit::Signal(_) if !is_told && self.spawned => {
                let why = "a signal came before the keeper told of the start; the command may have run";
                self.ended_as(Outcome::Failed, why.into());
            }
            Exit::Signal(_) if !is_told => self.ended_as(Outcome::Interrupted, "a signal ended the wait".into()),
            _ => {}
        }
        self.report.code = exit.shown();
        self.report.signal = if let Exit::Signal(number) = exit { Some(number) } else { None };
    }
}
