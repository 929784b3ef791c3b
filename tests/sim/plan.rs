//! What happens in one seed: who comes when and wants what, and which faults there are.

use std::time::Duration;

use rlock::lease::{OnLost, Plan as Lease};
use rlock::timing;

use crate::clock::{Clock, MS, S, Time, nanos};
use crate::random::Random;

/// What goes wrong in a world, besides processes that die and get signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing: order and the bound of a hand-over are strict here.
    Quiet,
    /// Messages are lost, late, doubled and out of order.
    Lossy,
    /// rlock, or the whole machine, is stopped for a while; keepers are killed.
    Stopped,
    /// The server freezes, restarts, loses its data; a replica takes over whose clock differs by less than the margin.
    Server,
    /// Owners are cut off, one way or both.
    Cut,
    All,
}

/// The store's clock is set, against what is assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clockwork {
    Right,
    /// An hour forward, now and then.
    Step,
    /// A replica that is ahead by a second takes over.
    Replica,
}

/// A fault at its time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    StopRlock { owner: usize, time: Time },
    StopMachine { owner: usize, time: Time },
    KillRlock { owner: usize },
    KillKeeper { owner: usize },
    Term { owner: usize },
    Cut { owner: usize, time: Time, to: bool, from: bool },
    FreezeServer { time: Time },
    RestartServer { time: Time, loses: bool },
    SetClock { ahead: Time },
    Force { key: usize, now: bool },
}

/// One run of rlock.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) key: usize,
    pub(crate) limit: u32,
    pub(crate) lease: Lease,
    pub(crate) wait: Option<Duration>,
    pub(crate) store_timeout: Duration,
    pub(crate) clock: Clock,
    pub(crate) born: Time,
    /// How long the command works.
    pub(crate) work: Time,
    /// How long after a signal it ends; none where it does not care.
    pub(crate) heeds: Option<Time>,
    /// How long what it started lives on when it has ended of a signal.
    pub(crate) rest: Time,
    /// How long it takes to be dead after KILL.
    pub(crate) dies_in: Time,
}

pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) keys: usize,
    pub(crate) owners: Vec<Spec>,
    pub(crate) server: Clock,
    /// The time from one end of the line to the other.
    pub(crate) leg: Time,
    pub(crate) lost_ppm: u64,
    pub(crate) late_ppm: u64,
    pub(crate) twice_ppm: u64,
    pub(crate) acts: Vec<(Time, Act)>,
}

/// Two clocks that far from the true one, in opposite directions, are 1 % apart.
const DRIFT_PPM: u64 = 4_975;
/// rlock and the keeper get to run this late at most, nobody being stopped.
pub(crate) const LATE: Time = 10 * MS;

fn clock(random: &mut Random, ahead: u64) -> Clock {
    let ppm = if random.one_in(3) {
        random.pick(&[-1, 1]) * i64::try_from(DRIFT_PPM).expect("small")
    } else {
        i64::try_from(random.below(2 * DRIFT_PPM)).expect("small") - i64::try_from(DRIFT_PPM).expect("small")
    };
    Clock { ppm, ahead }
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let kinds = [Kind::Quiet, Kind::Lossy, Kind::Stopped, Kind::Server, Kind::Cut, Kind::All];
        let kind = Random::new(seed).pick(&kinds);
        Self::of_kind(seed, kind, Clockwork::Right)
    }

    pub(crate) fn of_kind(seed: u64, kind: Kind, clockwork: Clockwork) -> Self {
        let random = &mut Random::new(seed ^ 0xabcd);
        let keys = usize::try_from(random.between(1, 4)).expect("small");
        let count = if random.one_in(60) { random.between(100, 250) } else { random.between(3, 30) };
        let ttls = random.pick(&[&[2_u64, 3][..], &[5], &[2, 5, 10], &[10], &[30], &[5, 30]]);
        let least = ttls.iter().min().copied().unwrap_or(2) * S;
        // A ttl has at least 125 round trips.
        let leg = random.pick(&[MS / 20, MS / 5, MS, 5 * MS, 20 * MS, 40 * MS]).min(least / 250);
        // All at the full minute, or one now and then.
        let every = random.pick(&[20 * MS, 300 * MS, 1500 * MS]);
        let span = count * random.between(every / 4, every);
        let limits = random.pick(&[&[1_u32][..], &[1], &[0, 1], &[3], &[1, 0, 2, 3], &[2, 5]]);
        let mut plan = Self {
            kind,
            keys,
            owners: Vec::new(),
            server: clock(random, 0),
            leg,
            lost_ppm: 0,
            late_ppm: 0,
            twice_ppm: 0,
            acts: Vec::new(),
        };
        for _ in 0..count {
            let key = usize::try_from(random.below(keys as u64)).expect("small");
            let (limit, ttl) = (random.pick(limits), random.pick(ttls));
            let spec = Self::owner(random, kind, key, limit, ttl, span);
            plan.owners.push(spec);
        }
        plan.disturb(random, span);
        plan.set_clock(random, span, clockwork);
        plan
    }

    /// Twenty owners that each hold a key of their own for an hour, on a line that loses so many messages.
    pub(crate) fn steady(seed: u64, ttl_s: u64, lost_ppm: u64) -> Self {
        let mut plan = Self::of_kind(seed, Kind::Quiet, Clockwork::Right);
        let mut spec = plan.owners[0].clone();
        let ttl = Duration::from_secs(ttl_s);
        let lease = Lease { ttl, grace: timing::grace(ttl), on_lost: OnLost::Terminate };
        spec = Spec { limit: 1, lease, wait: None, work: 3600 * S, dies_in: 0, rest: 0, ..spec };
        (plan.keys, plan.leg, plan.lost_ppm) = (20, MS / 5, lost_ppm);
        plan.owners = (0..plan.keys).map(|key| Spec { key, ..spec.clone() }).collect();
        plan.acts.clear();
        plan
    }

    /// The same with a server that freezes every two minutes, for a second in the middle.
    pub(crate) fn halting(seed: u64, ttl_s: u64, lost_ppm: u64) -> Self {
        let mut plan = Self::steady(seed, ttl_s, lost_ppm);
        let random = &mut Random::new(seed);
        for _ in 0..30 {
            plan.acts.push((random.below(3600 * S), Act::FreezeServer { time: random.skewed(S) }));
        }
        plan
    }

    /// A hundred who want one key for a moment each, and of whom one in twenty dies in the queue.
    pub(crate) fn crowd(seed: u64, lost_ppm: u64) -> Self {
        let mut plan = Self::steady(seed, 30, lost_ppm);
        let spec = plan.owners[0].clone();
        let random = &mut Random::new(seed);
        plan.keys = 1;
        plan.owners.clear();
        for owner in 0..100 {
            let born = random.below(5 * S);
            plan.owners.push(Spec { key: 0, work: 50 * MS, born, ..spec.clone() });
            if random.one_in(20) {
                plan.acts.push((born + random.below(10 * S), Act::KillRlock { owner }));
            }
        }
        plan
    }

    /// The same, of whom every second does not get to run once for a while, about a second in the middle.
    pub(crate) fn paused_crowd(seed: u64, lost_ppm: u64) -> Self {
        let mut plan = Self::crowd(seed, lost_ppm);
        let random = &mut Random::new(seed ^ 1);
        for owner in (0..plan.owners.len()).step_by(2) {
            let at = plan.owners[owner].born + random.below(10 * S);
            plan.acts.push((at, Act::StopRlock { owner, time: random.skewed(S) }));
        }
        plan
    }

    /// A holder that ends by itself just after all who wait, but for the last one, have died.
    pub(crate) fn deserted(seed: u64) -> Self {
        let mut plan = Self::crowd(seed, 0);
        let random = &mut Random::new(seed ^ 2);
        plan.acts.clear();
        plan.owners.truncate(20);
        let last = plan.owners.len() - 1;
        for (owner, spec) in plan.owners.iter_mut().enumerate() {
            spec.born = (owner as u64) * 50 * MS;
            spec.work = if owner == 0 { 5 * S } else { 50 * MS };
            if owner != 0 && owner != last {
                plan.acts.push((4 * S + random.below(S), Act::KillRlock { owner }));
            }
        }
        plan
    }

    fn owner(random: &mut Random, kind: Kind, key: usize, limit: u32, ttl: u64, span: Time) -> Spec {
        let ttl = Duration::from_secs(ttl);
        let grace = match random.below(4) {
            0 => timing::greatest_grace(ttl),
            1 => Duration::from_millis(random.below(500)),
            _ => timing::grace(ttl),
        };
        let on_lost = if random.one_in(4) { OnLost::Kill } else { OnLost::Terminate };
        let wait = match random.below(8) {
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(random.between(100, 20_000))),
            _ => None,
        };
        let stops = matches!(kind, Kind::Stopped | Kind::All);
        // What it may take after KILL, when rlock itself comes late, or the keeper instead of it.
        let most = timing::slack(ttl).saturating_sub(timing::KEEPER_LATER);
        let most = nanos(most).saturating_sub(2 * LATE) / if stops { 2 } else { 1 };
        let ahead = random.below(1_000_000 * S);
        let works = random.pick(&[20 * MS, 300 * MS, 1500 * MS]);
        let work = if stops && random.one_in(3) {
            // Long enough for a stop to outlast the lease.
            random.between(nanos(ttl), 3 * nanos(ttl))
        } else {
            random.skewed(works).min(3 * nanos(ttl))
        };
        let rest = match random.below(4) {
            0 => random.skewed(100 * MS),
            1 => 3 * nanos(ttl),
            _ => 0,
        };
        Spec {
            key,
            limit,
            lease: Lease { ttl, grace, on_lost },
            wait,
            store_timeout: Duration::from_secs(random.pick(&[30, 30, 8, 120])),
            clock: clock(random, ahead),
            born: random.below(span),
            work,
            heeds: (!random.one_in(3)).then(|| random.skewed(100 * MS)),
            rest,
            dies_in: random.below(most + 1),
        }
    }

    fn disturb(&mut self, random: &mut Random, span: Time) {
        let has = |kind: Kind| self.kind == kind || self.kind == Kind::All;
        let (lossy, stopped, server, cut) = (has(Kind::Lossy), has(Kind::Stopped), has(Kind::Server), has(Kind::Cut));
        if lossy {
            self.lost_ppm = random.pick(&[1_000, 10_000, 20_000, 50_000]);
            self.late_ppm = random.pick(&[0, 5_000, 20_000]);
            self.twice_ppm = random.pick(&[0, 5_000, 20_000]);
        }
        let deaths = random.pick(&[0, 5, 15, 50]);
        // Or the host of many of them dies, and a row of dead waiters is left.
        let host = random.one_in(4).then(|| (random.below(span + 3 * S), random.pick(&[30, 80])));
        for owner in 0..self.owners.len() {
            let spec = self.owners[owner].clone();
            let mut at = || spec.born + random.skewed(4 * S);
            let times = [at(), at(), at(), at(), at(), at()];
            if random.below(100) < deaths {
                self.acts.push((times[0], Act::KillRlock { owner }));
            } else if let Some((at, _)) = host.filter(|(_, percent)| random.below(100) < *percent) {
                self.acts.push((at, Act::KillRlock { owner }));
            }
            if random.one_in(15) {
                self.acts.push((times[1], Act::Term { owner }));
            }
            if stopped && random.one_in(3) {
                let time =
                    if random.one_in(2) { random.skewed(nanos(spec.lease.ttl)) } else { random.skewed(300 * MS) };
                self.acts.push((times[2], Act::StopRlock { owner, time }));
            }
            if stopped && random.one_in(3) {
                let keeps = 3 * LATE + nanos(timing::KEEPER_LATER) + spec.dies_in;
                let time = random.below(nanos(timing::slack(spec.lease.ttl)).saturating_sub(keeps));
                self.acts.push((times[3], Act::StopMachine { owner, time }));
            }
            if stopped && random.one_in(12) {
                self.acts.push((times[4], Act::KillKeeper { owner }));
            }
            if cut && random.one_in(3) {
                let both = random.below(3);
                let act = Act::Cut { owner, time: random.skewed(3 * S).min(20 * S), to: both != 1, from: both != 2 };
                self.acts.push((times[5], act));
            }
        }
        if server {
            if random.one_in(8) {
                // Longer than most have patience for.
                self.acts.push((random.below(span), Act::RestartServer { time: 60 * S, loses: false }));
            }
            for _ in 0..random.between(1, 4) {
                let at = random.below(span + 10 * S);
                let long = random.pick(&[100 * MS, S, 4 * S]);
                let time = random.skewed(long).min(15 * S);
                self.acts.push(match random.below(3) {
                    0 => (at, Act::RestartServer { time, loses: random.one_in(2) }),
                    _ => (at, Act::FreezeServer { time }),
                });
            }
        }
        if self.kind != Kind::Quiet && random.one_in(2) {
            for _ in 0..random.between(1, 3) {
                let key = usize::try_from(random.below(self.keys as u64)).expect("small");
                self.acts.push((random.below(span + 5 * S), Act::Force { key, now: random.one_in(3) }));
            }
        }
    }

    fn set_clock(&mut self, random: &mut Random, span: Time, clockwork: Clockwork) {
        let ahead = match clockwork {
            Clockwork::Right => return,
            Clockwork::Step => 3600 * S,
            Clockwork::Replica => S,
        };
        for _ in 0..3 {
            self.acts.push((random.below(span), Act::SetClock { ahead }));
        }
    }
}
