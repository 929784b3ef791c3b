//! Ask until the key is granted or the wait is over.

use std::time::Duration;

use super::worker::{News, Order, Worker};
use crate::claim::{Answer, Entry};
use crate::clock::Boot;
use crate::store::Trouble;
use crate::timing;

/// How long the `drop` at the end of a wait may take: a signal or a time limit must not seem ignored.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The last word to a store that has been silent, within the time that it has for an answer.
fn last_word(store_timeout: Duration) -> Duration {
    LAST_WORD.min(store_timeout / 4)
}

/// How many grants in a row may come too late: a pause of this host explains one or two, then the line is too slow.
const MOST_LATE: u32 = 5;

/// A grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) number: u64,
    pub(super) sent: Boot,
    pub(super) left: Duration,
}

/// How a wait ends without the key.
#[derive(Debug)]
pub enum End {
    /// The store said that it is held; with `-n` or at the end of `--wait`.
    Busy { holders: Vec<Entry>, waited: Option<Duration>, now_ms: u64 },
    /// Somebody removed this claim from the queue.
    Removed,
    /// The store gave no answer of use for so long, and this at last.
    Silent { after: Duration, last: Trouble },
    /// It was granted, and dropped again, since too few replicas had it.
    TooFew(String),
    /// The store refused the login or a right.
    Refused(String),
    /// The store cannot do this.
    Config(String),
    /// It was told to give up.
    GivenUp,
}

/// What is known while asking.
struct Asking {
    began: Boot,
    /// When the store last answered an ask; the beginning if it never did.
    answered: Boot,
    /// Something of this claim may be in the store: it waits there, or a request was never answered.
    trace: bool,
    pause: Duration,
    /// The limit of a try while no round trip was ever measured: it doubles, so that a slow store is heard at last.
    patience: Duration,
    /// The store has said that the key is held.
    heard_busy: bool,
    /// How often a grant was answered too late to be used.
    late: u32,
    last: Trouble,
    holders: Vec<Entry>,
}

/// Asks until there is an answer that ends it.
pub(super) fn wait(worker: &mut Worker) -> Result<Grant, End> {
    let began = worker.now() + worker.work.delay;
    while worker.sleep(began).is_err() {
        if worker.interrupted().is_some() {
            return Err(End::GivenUp);
        }
    }
    let mut asking = Asking {
        began,
        answered: began,
        trace: false,
        pause: timing::FIRST_PAUSE,
        patience: timing::waiter_try_limit(None, false),
        heard_busy: false,
        late: 0,
        last: Trouble::Unknown(format!("{} did not answer", worker.work.store.name())),
        holders: Vec::new(),
    };
    loop {
        let sent = worker.now();
        if let Some(end) = asking.is_over(worker, sent) {
            return Err(asking.leave(worker, end));
        }
        let by = asking.try_ends(worker, sent);
        let reply = worker.work.store.ask(&worker.work.key, &worker.work.ask, by);
        match asking.take(worker, sent, reply) {
            Step::Granted(grant) => return Ok(grant),
            Step::Over(end) => return Err(end),
            Step::Again => {}
        }
    }
}

enum Step {
    Granted(Grant),
    Over(End),
    Again,
}

impl Asking {
    fn until(&self, worker: &Worker) -> Option<Boot> {
        worker.work.wait.map(|wait| self.began + wait)
    }

    /// When asking ends for want of an answer; the last word has its time within the store's.
    fn silent_at(&self, worker: &Worker) -> Boot {
        let timeout = worker.work.store_timeout;
        self.answered + timeout.saturating_sub(last_word(timeout))
    }

    /// The end that time alone brings. A claim that does not wait has only the store's silence to end it.
    fn is_over(&self, worker: &Worker, now: Boot) -> Option<End> {
        if now >= self.silent_at(worker) {
            return Some(End::Silent { after: now.since(self.answered), last: self.last.clone() });
        }
        let until = self.until(worker).filter(|_| worker.work.ask.wait)?;
        (now >= until).then(|| self.timed_out(worker))
    }

    /// Busy is said only on the store's own word.
    fn timed_out(&self, worker: &Worker) -> End {
        if !self.heard_busy {
            return End::Silent { after: worker.now().since(self.answered), last: self.last.clone() };
        }
        End::Busy { holders: self.holders.clone(), waited: worker.work.wait, now_ms: worker.work.store.clock_ms() }
    }

    fn try_ends(&self, worker: &Worker, now: Boot) -> Boot {
        let store = &worker.work.store;
        let limit = match store.round_trip() {
            None => self.patience,
            measured => timing::waiter_try_limit(measured, store.is_connected()),
        };
        let ends = (now + limit).min(self.silent_at(worker));
        // The first try has its time, however short the wait: a store that is slow may still say who holds the key.
        let until = self.until(worker).filter(|_| worker.work.ask.wait && self.trace);
        until.map_or(ends, |until| ends.min(until))
    }

    fn take(&mut self, worker: &mut Worker, sent: Boot, reply: Result<Answer, Trouble>) -> Step {
        let now = worker.now();
        match reply {
            Ok(Answer::Granted { number, left_ms }) => {
                let left = Duration::from_millis(left_ms);
                // After an answer that took so long the first renewal would be due: one more ask makes the lease fresh.
                if now.since(sent) < timing::renew_every(worker.work.ttl) {
                    return Step::Granted(Grant { number, sent, left });
                }
                self.trace = true;
                self.late += 1;
                if self.late < MOST_LATE {
                    return Step::Again;
                }
                let (name, took) = (worker.work.store.name(), now.since(sent).as_millis());
                let last = Trouble::Later(format!("{name} takes {took} ms to answer, too long for this --ttl"));
                let end = End::Silent { after: now.since(self.began), last };
                Step::Over(self.leave(worker, end))
            }
            Ok(Answer::Waiting { position, lapse_ms, holders }) => {
                self.answered = now;
                self.heard_busy = true;
                self.trace = true;
                self.pause = timing::FIRST_PAUSE;
                self.holders.clone_from(&holders);
                worker.tell(News::Waiting { position, holders, now_ms: worker.work.store.clock_ms() });
                self.rest(worker, position, lapse_ms.map(Duration::from_millis), now)
            }
            Ok(Answer::Busy { holders }) => {
                self.holders = holders;
                self.answered = now;
                let now_ms = worker.work.store.clock_ms();
                let end = End::Busy { holders: self.holders.clone(), waited: None, now_ms };
                Step::Over(if self.trace { self.leave(worker, end) } else { end })
            }
            Ok(Answer::Gone) => Step::Over(End::Removed),
            Err(Trouble::TooFew(text)) => {
                self.trace = true;
                Step::Over(self.leave(worker, End::TooFew(text)))
            }
            Err(Trouble::Refused(text)) => Step::Over(self.leave(worker, End::Refused(text))),
            Err(Trouble::Config(text)) => Step::Over(self.leave(worker, End::Config(text))),
            Err(Trouble::Interrupted) => self.interrupted(worker),
            Err(trouble) => {
                self.trace |= matches!(trouble, Trouble::Unknown(_));
                // What fails at once says nothing of how slow the store is.
                if now.since(sent) >= self.patience {
                    self.patience = (self.patience * 2).min(timing::LONGEST_WAITERS_TRY);
                }
                self.pause_after(worker, sent, trouble)
            }
        }
    }

    /// Waits for the wake-up, as long as the store says at most.
    fn rest(&mut self, worker: &mut Worker, position: usize, lapse: Option<Duration>, now: Boot) -> Step {
        let rest = worker.work.store.rest(position, lapse);
        // A store that is not asked is not silent: it is asked again while it has time to answer.
        let rest = rest.min(self.silent_at(worker).since(now) / 2);
        // The store counts a lease in whole milliseconds: one more, else the look comes just too early.
        let mut until = now + rest + Duration::from_millis(1);
        if let Some(end) = self.until(worker) {
            until = until.min(end);
        }
        let waited = worker.work.store.wait(&worker.work.key, worker.work.ask.id, until);
        match waited {
            Err(Trouble::Interrupted) => self.interrupted(worker),
            Err(Trouble::Refused(text)) => Step::Over(self.leave(worker, End::Refused(text))),
            Err(Trouble::Config(text)) => Step::Over(self.leave(worker, End::Config(text))),
            Ok(_) => Step::Again,
            Err(Trouble::Unknown(_) | Trouble::Later(_) | Trouble::Os(_) | Trouble::TooFew(_)) => {
                match worker.sleep(until) {
                    Ok(()) => Step::Again,
                    Err(_) => self.interrupted(worker),
                }
            }
        }
    }

    fn pause_after(&mut self, worker: &mut Worker, began: Boot, trouble: Trouble) -> Step {
        self.last = trouble;
        let mut until = began + self.pause;
        if let Some(end) = self.until(worker).filter(|_| worker.work.ask.wait) {
            until = until.min(end);
        }
        self.pause = (self.pause * 2).min(timing::waiter_try_limit(None, true));
        match worker.sleep(until.min(self.silent_at(worker))) {
            Ok(()) => Step::Again,
            Err(_) => self.interrupted(worker),
        }
    }

    fn interrupted(&mut self, worker: &mut Worker) -> Step {
        match worker.interrupted() {
            // Nobody gave an order: whatever fired is over.
            None => Step::Again,
            Some(Order::Leave) => Step::Over(End::GivenUp),
            Some(Order::Release { .. }) => {
                // The interrupted request may have reached the store.
                self.trace = true;
                Step::Over(self.leave(worker, End::GivenUp))
            }
        }
    }

    /// The end of a wait sends the `drop`: a frozen store must not run the ask later and leave a ghost. A wait that ran
    /// out and gets no answer to it is not *busy*: nobody said that the key is still held.
    fn leave(&self, worker: &mut Worker, end: End) -> End {
        if !self.trace {
            return end;
        }
        let limit = if matches!(end, End::Silent { .. }) { last_word(worker.work.store_timeout) } else { LAST_WORD };
        let by = worker.now() + limit;
        let work = &mut worker.work;
        let mut dropped = work.store.drop_claim(&work.key, work.ask.id, work.ttl, by);
        if dropped == Err(Trouble::Interrupted) {
            worker.around.clear();
            dropped = work.store.drop_claim(&work.key, work.ask.id, work.ttl, by);
        }
        match (end, dropped) {
            (End::Busy { waited: Some(_), .. }, Err(trouble)) => {
                End::Silent { after: worker.now().since(self.answered), last: trouble }
            }
            (End::Silent { after, last }, Err(_)) => {
                End::Silent { after: after.max(worker.now().since(self.answered)), last }
            }
            (end, _) => end,
        }
    }
}
