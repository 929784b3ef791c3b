//! The laws, and what a run comes to. Everything is seen here with the true time, the server's state and what each
//! command really does; what the parties believe does not count.

use rlock::claim::{ClaimId, Event, Limit, State, What};

use crate::clock::{S, Time, seconds};
use crate::plan::{Kind, Plan};
use crate::server::{self, Server};
use crate::thread::Call;

/// Heartbeat + window + a refresh, and 1 % for clocks that differ.
const BOUND: Time = 14 * S + 14 * S / 100;
/// What messages that are lost add to it: the tries of one waiter that all fail.
const LOSSES: Time = 4 * S;

#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
struct Claim {
    key: usize,
    limit: u32,
    /// Its command runs.
    runs: bool,
    /// Removed by `force-release --now`, or lost with the store's data: what is promised does not cover it.
    exempt: bool,
    /// Condemned, or removed by an operator.
    forced: bool,
    /// Its place among the waiters, by the first ask that the store saw.
    place: Option<(u64, Time)>,
    granted: bool,
    /// Its own ask has been answered with a grant, or it renewed.
    confirmed: bool,
    /// It was stopped, killed, cut off or told to end: no bound counts for it.
    disturbed: bool,
    /// Killed.
    dead: bool,
    /// Its run is over.
    over: bool,
    dropped_at: Option<Time>,
    drop_seen: bool,
    /// A message of it arrives twice, as no line of TCP's would have it.
    doubled: bool,
}

#[derive(Clone, Debug, Default)]
struct Key {
    last_number: u64,
    /// The last that the store knows of, having perhaps lost its data.
    known_number: u64,
    last_started: u64,
    /// When nobody held it any more whose grant was confirmed; or when another waiter died.
    free_since: Time,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) owners: u64,
    pub(crate) grants: u64,
    pub(crate) commands: u64,
    pub(crate) late: u64,
    pub(crate) gone: u64,
    pub(crate) condemned: u64,
    /// Waiters that were passed by one who had come later.
    pub(crate) passed: u64,
    /// Waiters that lost their place although they lived: the window or the heartbeat was over before they were heard.
    pub(crate) missed: u64,
    /// From a release to the next command, with somebody waiting: the sum, the number and the longest.
    pub(crate) hand_overs: u64,
    pub(crate) hand_over_ns: u64,
    pub(crate) longest_idle: Time,
    /// Overlaps with a claim that is exempt.
    pub(crate) excused: u64,
    pub(crate) held_ns: u64,
    /// What the server was asked.
    pub(crate) requests: u64,
    pub(crate) events: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.owners += other.owners;
        self.grants += other.grants;
        self.commands += other.commands;
        self.late += other.late;
        self.gone += other.gone;
        self.condemned += other.condemned;
        self.passed += other.passed;
        self.missed += other.missed;
        self.hand_overs += other.hand_overs;
        self.hand_over_ns += other.hand_over_ns;
        self.longest_idle = self.longest_idle.max(other.longest_idle);
        self.excused += other.excused;
        self.held_ns += other.held_ns;
        self.requests += other.requests;
        self.events += other.events;
    }
}

pub(crate) struct Checker {
    is_strict: bool,
    bound: Time,
    claims: Vec<Claim>,
    keys: Vec<Key>,
    places: u64,
    pub(crate) counts: Counts,
    pub(crate) broken: Option<String>,
    /// The last time at which the server was not up.
    away_until: Time,
    released_at: Vec<Option<Time>>,
    started_at: Vec<Time>,
}

/// What stood before an operation.
pub(crate) struct Before {
    holders: Vec<(ClaimId, u64)>,
    queue: Vec<(ClaimId, u64)>,
}

impl Checker {
    pub(crate) fn new(plan: &Plan) -> Self {
        let claim = |spec: &crate::plan::Spec| Claim { key: spec.key, limit: spec.limit, ..Claim::default() };
        let losses = if plan.kind == Kind::Quiet && plan.lost_ppm == 0 { 0 } else { LOSSES };
        Self {
            is_strict: plan.kind == Kind::Quiet && plan.lost_ppm == 0,
            bound: BOUND + losses + 20 * plan.leg,
            claims: plan.owners.iter().map(claim).collect(),
            keys: vec![Key::default(); plan.keys],
            places: 0,
            counts: Counts { owners: plan.owners.len() as u64, ..Counts::default() },
            broken: None,
            away_until: 0,
            released_at: vec![None; plan.keys],
            started_at: vec![0; plan.owners.len()],
        }
    }

    fn fails(&mut self, now: Time, what: &str) {
        self.broken.get_or_insert_with(|| format!("{:.6} s: {what}", seconds(now)));
    }

    pub(crate) fn before(state: &State) -> Before {
        let pairs = |entries: &[rlock::claim::Entry]| entries.iter().map(|one| (one.id, one.until_ms)).collect();
        Before { holders: pairs(&state.holders), queue: pairs(&state.queue) }
    }

    /// What an operation must have left, whatever it was.
    pub(crate) fn after(
        &mut self,
        now: Time,
        server: &Server,
        (key, by): (usize, usize),
        call: &Call,
        before: &Before,
        events: &[Event],
    ) {
        let (state, now_ms) = (&server.keys[key], server.now_ms(now));
        let holds = |id: ClaimId| state.holders.iter().any(|held| held.id == id);
        let waits = |id: ClaimId| state.queue.iter().any(|waiter| waiter.id == id);
        let own = server::id(by);
        let is_removal = matches!(call, Call::Drop { .. } | Call::Condemn { .. });
        for (id, until_ms) in &before.holders {
            if !holds(*id) && *until_ms > now_ms && !(is_removal && *id == own) {
                self.fails(now, &format!("holder {} was removed by {call:?} of {by}", server::claim(*id)));
            }
            if !holds(*id) && self.claims[server::claim(*id)].confirmed {
                let ended = if *until_ms > now_ms { now } else { server.clock.when_wall_ms(*until_ms).min(now) };
                self.keys[key].free_since = self.keys[key].free_since.max(ended);
            }
        }
        let is_busy = matches!(call, Call::Ask(ask) if !ask.wait);
        for (id, until_ms) in &before.queue {
            if !holds(*id) && !waits(*id) && *until_ms > now_ms && !((is_removal || is_busy) && *id == own) {
                self.fails(now, &format!("waiter {} was removed by {call:?} of {by}", server::claim(*id)));
            }
            if !holds(*id) && !waits(*id) && *until_ms <= now_ms {
                self.count_if_missed(server::claim(*id));
            }
        }
        if matches!(call, Call::Drop { .. }) && events.iter().any(|event| event.what == What::Served) {
            self.released_at[key] = Some(now);
        }
        for event in events {
            match event.what {
                What::Acquired | What::Served => self.granted(now, event),
                What::Restored => self.restored(now, event, state.queue.len()),
                What::Lost => self.count_if_missed(server::claim(event.entry.id)),
                _ => {}
            }
        }
        self.claims[by].drop_seen |= matches!(call, Call::Drop { .. });
        if matches!(call, Call::Ask(_)) && self.claims[by].place.is_none() && waits(own) {
            self.places += 1;
            self.claims[by].place = Some((self.places, now));
        }
        self.holders_run(now, state, key);
    }

    fn count_if_missed(&mut self, at: usize) {
        let claim = &self.claims[at];
        let waits = !claim.confirmed && !claim.over && !claim.dead && claim.dropped_at.is_none();
        self.counts.missed += u64::from(waits);
    }

    /// Whoever's command runs stands among the holders.
    fn holders_run(&mut self, now: Time, state: &State, key: usize) {
        let lost = |(at, claim): &(usize, &Claim)| {
            claim.key == key
                && claim.runs
                && !claim.exempt
                && state.holders.iter().all(|held| held.id != server::id(*at))
        };
        if let Some((at, _)) = self.claims.iter().enumerate().find(lost) {
            self.fails(now, &format!("the command of {at} runs and its lease has passed"));
        }
    }

    fn restored(&mut self, now: Time, event: &Event, waiting: usize) {
        let at = server::claim(event.entry.id);
        let key = &mut self.keys[self.claims[at].key];
        let last = key.known_number;
        key.known_number = last.max(event.entry.number);
        self.claims[at].exempt = false;
        if event.entry.number < last {
            self.fails(now, &format!("{at} was restored with number {} after {last}", event.entry.number));
        }
        if waiting > 0 {
            self.fails(now, &format!("{at} was restored before {waiting} who wait"));
        }
    }

    fn granted(&mut self, now: Time, event: &Event) {
        let (at, number) = (server::claim(event.entry.id), event.entry.number);
        self.counts.grants += 1;
        let key = self.claims[at].key;
        if event.entry.limit == Limit::EXCLUSIVE {
            self.keys[key].known_number = number;
            let last = &mut self.keys[key].last_number;
            if number <= *last {
                let last = *last;
                self.fails(now, &format!("token {number} of {at} is not above {last}"));
            } else {
                *last = number;
            }
        }
        let claim = &self.claims[at];
        if claim.over && (claim.dropped_at.is_none() && !claim.doubled || claim.drop_seen) {
            self.fails(now, &format!("{at} got the key although its run is over"));
        }
        let claim = &self.claims[at];
        let own = claim.place.map_or(u64::MAX, |(place, _)| place);
        let passes = |other: &Claim| {
            other.key == key
                && !other.granted
                && !other.disturbed
                && !other.over
                && !other.dead
                && other.dropped_at.is_none()
                && other.place.is_some_and(|(place, _)| place < own)
        };
        let count = self.claims.iter().filter(|other| passes(other)).count() as u64;
        self.counts.passed += count;
        if count > 0 && self.is_strict {
            self.fails(now, &format!("{at} passed {count} who had come before"));
        }
        self.claims[at].granted = true;
    }

    /// A grant has been answered to its own ask.
    pub(crate) fn confirmed(&mut self, now: Time, state: &State, at: usize) {
        if std::mem::replace(&mut self.claims[at].confirmed, true) {
            return;
        }
        let key = self.claims[at].key;
        let held = |id: ClaimId| id != server::id(at) && self.claims[server::claim(id)].confirmed;
        if state.holders.iter().any(|one| held(one.id)) {
            return;
        }
        let waits = |claim: &Claim| {
            claim.key == key && !claim.disturbed && !claim.over && !claim.dead && claim.dropped_at.is_none()
        };
        let waiters =
            self.claims.iter().enumerate().filter(|(one, claim)| (*one == at || !claim.confirmed) && waits(claim));
        let first = waiters.filter_map(|(_, claim)| claim.place).map(|(_, since)| since).min();
        let Some(first) = first else { return };
        let idle = now.saturating_sub(self.keys[key].free_since.max(first).max(self.away_until));
        self.counts.longest_idle = self.counts.longest_idle.max(idle);
        if idle > self.bound {
            self.fails(now, &format!("the key was free for {:.3} s while somebody waited", seconds(idle)));
        }
    }

    /// The server was away, or is until then.
    pub(crate) fn away(&mut self, until: Time) {
        self.away_until = self.away_until.max(until);
    }

    /// The server has lost what it knew.
    pub(crate) fn data_lost(&mut self, now: Time, server: &Server) {
        for (state, key) in server.keys.iter().zip(&mut self.keys) {
            for held in &state.holders {
                self.claims[server::claim(held.id)].exempt = true;
            }
            key.free_since = now;
            key.known_number = 0;
        }
        for claim in &mut self.claims {
            claim.place = None;
            // The tombstone is lost too.
            claim.drop_seen = false;
        }
    }

    pub(crate) fn forced(&mut self, claim: usize, at_once: bool) {
        self.claims[claim].forced = true;
        self.claims[claim].disturbed = true;
        self.claims[claim].exempt |= at_once;
    }

    pub(crate) fn doubled(&mut self, claim: usize) {
        self.claims[claim].doubled = true;
    }

    pub(crate) fn disturbed(&mut self, claim: usize) {
        self.claims[claim].disturbed = true;
    }

    pub(crate) fn died(&mut self, now: Time, claim: usize) {
        self.claims[claim].dead = true;
        self.claims[claim].disturbed = true;
        if !self.claims[claim].confirmed {
            self.keys[self.claims[claim].key].free_since = now;
        }
    }

    /// A message of the claim's owner leaves.
    pub(crate) fn sends(&mut self, now: Time, by: usize, call: &Call) {
        match call {
            Call::Drop { .. } => {
                self.claims[by].dropped_at.get_or_insert(now);
            }
            Call::Ask(_) | Call::Renew(_) if self.claims[by].dropped_at.is_some() => {
                self.fails(now, &format!("{by} uses its id after its drop: {call:?}"));
            }
            _ => {}
        }
    }

    /// The command was started under this number.
    pub(crate) fn starts(&mut self, now: Time, at: usize, number: u64) {
        self.counts.commands += 1;
        self.claims[at].runs = true;
        self.started_at[at] = now;
        let (key, exempt) = (self.claims[at].key, self.claims[at].exempt);
        if let Some(since) = self.released_at[key].take() {
            self.counts.hand_overs += 1;
            self.counts.hand_over_ns += now - since;
        }
        let running = || self.claims.iter().filter(|claim| claim.key == key && claim.runs);
        let count = running().filter(|claim| !claim.exempt).count();
        let least = |exempt: bool| {
            running().filter(|claim| exempt || !claim.exempt).map(|claim| claim.limit).filter(|limit| *limit > 0).min()
        };
        let most = least(false).map_or(usize::MAX, |limit| limit as usize);
        let excused = running().count() > least(true).map_or(usize::MAX, |limit| limit as usize);
        if count > most {
            self.fails(now, &format!("the command of {at} is one of {count}, and only {most} may run"));
        } else if excused {
            self.counts.excused += 1;
        }
        if self.claims[at].limit == 1 && !exempt {
            let before = self.keys[key].last_started;
            if number <= before {
                self.fails(now, &format!("the command of {at} has token {number}, an earlier one had {before}"));
            }
            self.keys[key].last_started = number;
        }
    }

    /// By its own deadline an owner acts as holder until then.
    pub(crate) fn deadline(&mut self, now: Time, at: usize, until: Time, server: &Server) {
        let claim = &self.claims[at];
        if claim.exempt || claim.dropped_at.is_some() || until <= now {
            return;
        }
        let held = server.keys[claim.key].holders.iter().find(|held| held.id == server::id(at));
        if held.is_none_or(|held| server.clock.when_wall_ms(held.until_ms) < until) {
            self.fails(now, &format!("{at} goes by a deadline that is later than its lease"));
        }
    }

    /// The command is dead.
    pub(crate) fn ends(&mut self, now: Time, at: usize, server: &Server) {
        self.claims[at].runs = false;
        self.counts.held_ns += now - self.started_at[at];
        let held = server.keys[self.claims[at].key].holders.iter().find(|held| held.id == server::id(at));
        // The lease of a server that is frozen runs all the same.
        if held.is_none_or(|held| held.until_ms <= server.now_ms(now)) && !self.claims[at].exempt {
            self.fails(now, &format!("the command of {at} died after its lease"));
        }
    }

    /// The command runs when it must be dead.
    pub(crate) fn outlives(&mut self, now: Time, at: usize) {
        self.fails(now, &format!("the command of {at} outlives the grace after its loss"));
    }

    /// The run is over.
    pub(crate) fn is_over(&mut self, now: Time, at: usize) {
        self.claims[at].over = true;
        if self.claims[at].runs {
            self.fails(now, &format!("the run of {at} is over and its command runs"));
        }
    }

    /// The store told an owner that its claim was removed.
    pub(crate) fn told_removed(&mut self, now: Time, at: usize) {
        if !self.claims[at].forced {
            self.fails(now, &format!("{at} was told that somebody had removed it"));
        }
    }

    /// Long after everything.
    pub(crate) fn left_behind(&mut self, now: Time, server: &mut Server, end_us: u64) {
        for key in 0..server.keys.len() {
            let state = &mut server.keys[key];
            state.at(end_us).serve();
            // Whoever was granted the key in that step has the window.
            state.at(end_us + 10_000_000).serve();
            if !(state.holders.is_empty() && state.queue.is_empty() && state.traces.is_empty()) {
                let state = format!("{state:?}");
                self.fails(now, &format!("something is left for ever: {state}"));
            }
        }
        for at in 0..self.claims.len() {
            if !self.claims[at].over && !self.claims[at].dead {
                self.fails(now, &format!("the run of {at} never ended"));
            }
        }
    }
}
