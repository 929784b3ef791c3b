//! When to renew, when to signal, when to kill: the whole life of a lease as pure decisions over instants.
//!
//! Two small machines. [`Pace`] says when the renewal thread tries, and how long one try may take. [`Lease`] knows the
//! deadline and says what must be done to the command; it lives on the thread that owns the deadline, which never does
//! anything without a time limit.
//!
//! The one formula: **deadline = send time of the answered request + min(left, ttl) − margin**. A request without an
//! answer moves nothing.

use std::time::Duration;

use crate::clock::Boot;
use crate::timing;

/// What to do when the lease is about to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// The signal first, then, after the grace, KILL.
    Terminate,
    /// KILL at once.
    Kill,
    /// Say so and let the command run.
    Warn,
}

/// What a lease is timed by.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How long a renewal lasts.
    pub ttl: Duration,
    /// The time between the first signal and KILL.
    pub grace: Duration,
    /// What to do when it is about to be lost.
    pub on_lost: OnLost,
}

/// Why a lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It could not be renewed in time.
    Late,
    /// The store says that the claim holds no more.
    Gone,
    /// Somebody condemned the claim (`force-release`).
    Condemned,
}

/// When the command's tree is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instants {
    /// When the first signal is due; none where there is none (`--on-lost kill`), or where it has been sent.
    pub signal_at: Option<Boot>,
    /// When KILL is due.
    pub kill_at: Boot,
}

/// What must be done to the command now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The whole tree gets the signal.
    Signal(Loss),
    /// The whole tree gets KILL.
    Kill(Loss),
    /// The command runs on; say that the lease is lost.
    Warn(Loss),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// The first signal is out: there is no way back.
    Signalled {
        loss: Loss,
        kill_at: Boot,
    },
    /// Nothing more is to be done.
    Over,
}

/// A lease that is held, from the grant to its end.
#[derive(Clone, Debug)]
pub struct Lease {
    plan: Plan,
    deadline: Boot,
    phase: Phase,
}

impl Lease {
    /// The lease that a request sent at `sent` was answered with: `left` of it were left then.
    pub fn granted(plan: Plan, sent: Boot, left: Duration) -> Self {
        Self { plan, deadline: plan.deadline(sent, left), phase: Phase::Held }
    }

    /// The instant after which nobody may act as holder.
    pub fn deadline(&self) -> Boot {
        self.deadline
    }

    /// Whether the command may still be started or go on: no signal is due.
    pub fn is_held(&self, now: Boot) -> bool {
        self.phase == Phase::Held && now < self.first_due()
    }

    /// A renewal that was sent at `sent` was answered. It never shortens the lease and never takes back a signal.
    pub fn renewed(&mut self, sent: Boot, left: Duration) {
        self.deadline = self.deadline.max(self.plan.deadline(sent, left));
    }

    /// The store's definite word that the lease is lost.
    pub fn lost(&mut self, loss: Loss, now: Boot) -> Option<Act> {
        if self.phase != Phase::Held {
            return None;
        }
        match self.plan.on_lost {
            OnLost::Warn => Some(self.over(Act::Warn(loss))),
            OnLost::Kill => Some(self.over(Act::Kill(loss))),
            OnLost::Terminate => Some(self.signal(loss, now)),
        }
    }

    /// What is due at `now`. To be asked first after every pause, before anything else.
    pub fn due(&mut self, now: Boot) -> Option<Act> {
        match self.phase {
            Phase::Held if now < self.first_due() => None,
            Phase::Held => match self.plan.on_lost {
                OnLost::Warn => Some(self.over(Act::Warn(Loss::Late))),
                OnLost::Terminate if now < self.kill_by_deadline() => Some(self.signal(Loss::Late, now)),
                OnLost::Terminate | OnLost::Kill => Some(self.over(Act::Kill(Loss::Late))),
            },
            Phase::Signalled { loss, kill_at } if now >= kill_at => Some(self.over(Act::Kill(loss))),
            Phase::Signalled { .. } | Phase::Over => None,
        }
    }

    /// When [`Lease::due`] has something to say next.
    pub fn next_at(&self) -> Option<Boot> {
        match self.phase {
            Phase::Held => Some(self.first_due()),
            Phase::Signalled { kill_at, .. } => Some(kill_at),
            Phase::Over => None,
        }
    }

    /// What the keeper is to do should rlock not be able to; none where nothing is to be done.
    pub fn instants(&self) -> Option<Instants> {
        match (self.phase, self.plan.on_lost) {
            (Phase::Signalled { kill_at, .. }, _) => Some(Instants { signal_at: None, kill_at }),
            (Phase::Over, _) | (_, OnLost::Warn) => None,
            (Phase::Held, OnLost::Kill) => Some(Instants { signal_at: None, kill_at: self.kill_by_deadline() }),
            (Phase::Held, OnLost::Terminate) => {
                Some(Instants { signal_at: Some(self.first_due()), kill_at: self.kill_by_deadline() })
            }
        }
    }

    fn first_due(&self) -> Boot {
        match self.plan.on_lost {
            OnLost::Terminate => self.kill_by_deadline().before(self.plan.grace),
            OnLost::Kill => self.kill_by_deadline(),
            OnLost::Warn => self.deadline,
        }
    }

    fn kill_by_deadline(&self) -> Boot {
        self.deadline.before(timing::slack(self.plan.ttl))
    }

    /// KILL follows at the signal + grace, whatever a renewal says later, and in no case after the deadline allows.
    fn signal(&mut self, loss: Loss, now: Boot) -> Act {
        let kill_at = (now + self.plan.grace).min(self.kill_by_deadline().max(now));
        self.phase = Phase::Signalled { loss, kill_at };
        Act::Signal(loss)
    }

    fn over(&mut self, act: Act) -> Act {
        self.phase = Phase::Over;
        act
    }
}

impl Plan {
    fn deadline(&self, sent: Boot, left: Duration) -> Boot {
        (sent + left.min(self.ttl)).before(timing::margin(self.ttl))
    }
}

/// When the renewal thread tries next, and how long a try may take.
#[derive(Clone, Debug)]
pub struct Pace {
    ttl: Duration,
    /// When the last try that was answered had been sent.
    sent: Boot,
    due: Boot,
    pause: Duration,
}

impl Pace {
    /// The pace of a lease of `ttl` whose grant was asked for at `sent`.
    pub fn new(ttl: Duration, sent: Boot) -> Self {
        Self { ttl, sent, due: sent + timing::renew_every(ttl), pause: timing::FIRST_PAUSE }
    }

    /// When the next try begins.
    pub fn due(&self) -> Boot {
        self.due
    }

    /// When the last try that was answered had been sent.
    pub fn sent(&self) -> Boot {
        self.sent
    }

    /// The next try begins at `now`: something may have changed.
    pub fn hurry(&mut self, now: Boot) {
        self.due = self.due.min(now);
    }

    /// At `now` nobody listens any more for what the store has to say: the next try comes soon, a second after the last
    /// one at the earliest. Tries that fail have their own pace.
    pub fn unheard(&mut self, now: Boot) {
        if self.pause == timing::FIRST_PAUSE {
            let soon = (now + timing::FIRST_PAUSE).max(self.sent + timing::REFRESH);
            self.due = self.due.min(soon);
        }
    }

    /// A try that was sent at `sent` was answered.
    pub fn answered(&mut self, sent: Boot) {
        *self = Self::new(self.ttl, sent);
    }

    /// A try that began at `began` got no answer; one may take `limit`. A try that waited its whole limit is followed by
    /// the next at once, one that failed sooner by a pause that doubles up to the limit.
    pub fn failed(&mut self, began: Boot, now: Boot, limit: Duration) {
        self.due = now.max(began + self.pause);
        self.pause = (self.pause * 2).min(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);
    const GRACE: Duration = Duration::from_secs(5);

    fn at(ms: u64) -> Boot {
        Boot::at(Duration::from_millis(1_000_000 + ms))
    }

    fn lease(on_lost: OnLost) -> Lease {
        Lease::granted(Plan { ttl: TTL, grace: GRACE, on_lost }, at(0), TTL)
    }

    #[test]
    fn the_deadline_counts_from_the_request_and_never_exceeds_the_ttl() {
        assert_eq!(lease(OnLost::Terminate).deadline(), at(30_000 - 302));
        let plan = Plan { ttl: TTL, grace: GRACE, on_lost: OnLost::Kill };
        assert_eq!(Lease::granted(plan, at(0), Duration::from_secs(3)).deadline(), at(3_000 - 302));
        assert_eq!(Lease::granted(plan, at(0), Duration::from_secs(3600)).deadline(), at(30_000 - 302));
    }

    #[test]
    fn an_unrenewed_lease_is_signalled_then_killed_in_time() {
        let mut lease = lease(OnLost::Terminate);
        let (signal_at, kill_at) = (at(24_398), at(29_398));
        assert_eq!(lease.instants(), Some(Instants { signal_at: Some(signal_at), kill_at }));
        assert_eq!(lease.due(at(24_397)), None);
        assert!(lease.is_held(at(24_397)) && !lease.is_held(at(24_398)));
        assert_eq!(lease.due(at(24_398)), Some(Act::Signal(Loss::Late)));
        assert_eq!(lease.next_at(), Some(kill_at));
        assert_eq!(lease.due(at(29_397)), None);
        assert_eq!(lease.due(at(29_398)), Some(Act::Kill(Loss::Late)));
        assert_eq!((lease.due(at(99_999)), lease.next_at()), (None, None));
    }

    #[test]
    fn a_renewal_moves_the_deadline_forward_only() {
        let mut lease = lease(OnLost::Terminate);
        lease.renewed(at(10_000), TTL);
        assert_eq!(lease.deadline(), at(40_000 - 302));
        lease.renewed(at(5_000), TTL);
        assert_eq!(lease.deadline(), at(40_000 - 302));
    }

    #[test]
    fn there_is_no_way_back_from_the_first_signal() {
        let mut lease = lease(OnLost::Terminate);
        assert_eq!(lease.due(at(24_500)), Some(Act::Signal(Loss::Late)));
        lease.renewed(at(24_600), TTL);
        assert_eq!(lease.instants(), Some(Instants { signal_at: None, kill_at: at(29_398) }));
        assert_eq!(lease.lost(Loss::Gone, at(25_000)), None);
        assert_eq!(lease.due(at(29_398)), Some(Act::Kill(Loss::Late)));
    }

    #[test]
    fn after_a_long_pause_kill_comes_at_once() {
        assert_eq!(lease(OnLost::Terminate).due(at(29_398)), Some(Act::Kill(Loss::Late)));
        assert_eq!(lease(OnLost::Terminate).due(at(500_000)), Some(Act::Kill(Loss::Late)));
    }

    #[test]
    fn a_definite_loss_signals_at_once_and_kills_after_the_grace() {
        let mut early = lease(OnLost::Terminate);
        assert_eq!(early.lost(Loss::Condemned, at(1_000)), Some(Act::Signal(Loss::Condemned)));
        assert_eq!(early.due(at(6_000)), Some(Act::Kill(Loss::Condemned)));
        let mut late = lease(OnLost::Terminate);
        assert_eq!(late.lost(Loss::Gone, at(24_390)), Some(Act::Signal(Loss::Gone)));
        assert_eq!(late.next_at(), Some(at(29_390)));
        assert_eq!(lease(OnLost::Kill).lost(Loss::Gone, at(5)), Some(Act::Kill(Loss::Gone)));
    }

    #[test]
    fn a_late_word_of_loss_never_postpones_the_kill() {
        let mut lease = lease(OnLost::Terminate);
        assert_eq!(lease.lost(Loss::Gone, at(29_000)), Some(Act::Signal(Loss::Gone)));
        assert_eq!(lease.next_at(), Some(at(29_398)));
    }

    #[test]
    fn kill_skips_the_signal_and_warn_only_says() {
        let mut kill = lease(OnLost::Kill);
        assert_eq!(kill.instants(), Some(Instants { signal_at: None, kill_at: at(29_398) }));
        assert_eq!(kill.due(at(29_398)), Some(Act::Kill(Loss::Late)));
        let mut warn = lease(OnLost::Warn);
        assert_eq!(warn.instants(), None);
        assert_eq!((warn.due(at(29_697)), warn.due(at(29_698))), (None, Some(Act::Warn(Loss::Late))));
        assert_eq!(warn.due(at(40_000)), None);
    }

    #[test]
    fn tries_follow_each_other_on_a_silent_store_and_back_off_on_a_refusing_one() {
        let mut pace = Pace::new(TTL, at(0));
        let limit = Duration::from_secs(2);
        assert_eq!(pace.due(), at(10_000));
        pace.failed(at(10_000), at(12_000), limit);
        assert_eq!(pace.due(), at(12_000));
        let mut now = 12_000;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            pace.failed(at(now), at(now), limit);
            let pause = u64::try_from(pace.due().since(at(now)).as_millis()).unwrap();
            pauses.push(pause);
            now += pause;
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
        pace.unheard(at(now));
        assert_eq!(pace.due(), at(now), "a failing try keeps its pause");
        pace.answered(at(20_000));
        assert_eq!(pace.due(), at(30_000));
        pace.hurry(at(21_000));
        assert_eq!(pace.due(), at(21_000));
        pace.failed(at(21_000), at(21_000), limit);
        assert_eq!(pace.due(), at(21_050));
    }

    #[test]
    fn without_a_listener_the_next_try_comes_soon() {
        let mut pace = Pace::new(TTL, at(0));
        pace.unheard(at(5_000));
        assert_eq!(pace.due(), at(5_050));
        pace.answered(at(5_050));
        pace.unheard(at(5_060));
        assert_eq!(pace.due(), at(6_050), "a second after the last one");
        pace.answered(at(6_050));
        pace.unheard(at(16_040));
        assert_eq!(pace.due(), at(16_050), "never later than it was due");
    }
}
