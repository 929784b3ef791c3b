//! The server: the real rule for each key, on a clock of its own, and the lists by which claims are called.

use rlock::claim::{Answer, Ask, ClaimId, Event, State, What};
use rlock::timing;

use crate::bug::Bug;
use crate::clock::{Clock, Time, nanos};
use crate::thread::{Call, Told};

/// How the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Up,
    /// It answers nothing; what arrives is done when it goes on.
    Frozen,
    /// Connections are refused.
    Down,
}

pub(crate) struct Server {
    pub(crate) clock: Clock,
    pub(crate) keys: Vec<State>,
    pub(crate) health: Health,
    bug: Option<Bug>,
    /// What a claim was called for and has not heard; when the list ends.
    calls: Vec<Option<Time>>,
    /// The turns of a claim's thread that listen, the oldest first. A connection that is dead listens all the same.
    listeners: Vec<Vec<u64>>,
}

pub(crate) fn id(claim: usize) -> ClaimId {
    ClaimId::from_bits(claim as u128)
}

pub(crate) fn claim(id: ClaimId) -> usize {
    usize::from_str_radix(&id.to_string()[16..], 16).expect("a claim of ours")
}

impl Server {
    pub(crate) fn new(clock: Clock, keys: usize, claims: usize, bug: Option<Bug>) -> Self {
        Self {
            clock,
            keys: vec![State::default(); keys],
            health: Health::Up,
            bug,
            calls: vec![None; claims],
            listeners: vec![Vec::new(); claims],
        }
    }

    pub(crate) fn now_ms(&self, now: Time) -> u64 {
        self.clock.wall_us(now) / 1000
    }

    /// Does it, by the rule.
    pub(crate) fn operate(&mut self, now: Time, key: usize, by: usize, call: &Call) -> (Told, Vec<Event>) {
        let now_us = self.clock.wall_us(now);
        let mut id = id(by);
        if self.bug == Some(Bug::ReleaseOfAnybody)
            && matches!(call, Call::Drop { .. })
            && let Some(held) = self.keys[key].holders.first()
        {
            id = held.id;
        }
        let mut step = self.keys[key].at(now_us);
        let told = match call {
            Call::Ask(ask) => Told::Answer(step.ask(&Ask { id, ..ask.clone() })),
            Call::Renew(renew) => Told::Renewal(step.renew(renew)),
            Call::Drop { ttl_ms } => Told::Dropped(step.drop_claim(id, *ttl_ms)),
            Call::Condemn { ttl_ms } => {
                step.condemn(id, *ttl_ms);
                Told::Nothing
            }
            Call::Look | Call::Listen { .. } => Told::Nothing,
        };
        let events = step.events;
        match self.bug {
            Some(Bug::HeartbeatIgnored) => {
                self.keys[key].queue.iter_mut().for_each(|waiter| waiter.until_ms = now_us);
            }
            Some(Bug::NoTombstone) => self.keys[key].traces.clear(),
            _ => {}
        }
        (told, events)
    }

    /// The turn that hears of the event, if one listens.
    pub(crate) fn call(&mut self, now: Time, event: &Event) -> Option<(usize, u64)> {
        if !matches!(event.what, What::Served | What::Condemned) || self.bug == Some(Bug::NoWakeUp) {
            return None;
        }
        let who = claim(event.entry.id);
        if self.listeners[who].is_empty() {
            self.calls[who] = Some(now + nanos(timing::WINDOW));
            return None;
        }
        Some((who, self.listeners[who].remove(0)))
    }

    /// Whether a claim that begins to listen was called before.
    pub(crate) fn listen(&mut self, now: Time, who: usize, turn: u64) -> bool {
        if self.calls[who].take().is_some_and(|until| now < until) {
            return true;
        }
        self.listeners[who].push(turn);
        false
    }

    /// Whether it listened until now.
    pub(crate) fn unlisten(&mut self, who: usize, turn: u64) -> bool {
        let before = self.listeners[who].len();
        self.listeners[who].retain(|one| *one != turn);
        self.listeners[who].len() < before
    }

    /// Started again; nobody is connected any more.
    pub(crate) fn restarts(&mut self, loses: bool) {
        self.listeners.iter_mut().for_each(Vec::clear);
        if loses {
            self.keys.iter_mut().for_each(|key| *key = State::default());
            self.calls.iter_mut().for_each(|call| *call = None);
        }
    }

    pub(crate) fn is_granted(told: &Told) -> bool {
        matches!(told, Told::Answer(Answer::Granted { .. }))
    }
}
