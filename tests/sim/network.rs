//! Messages between an owner's thread and the server, and all that can become of them.

use std::time::Duration;

use rlock::store::Trouble;

use crate::bug::Bug;
use crate::checker::Checker;
use crate::clock::{MS, S, Time, nanos};
use crate::server::{Health, Server};
use crate::thread::{Call, Told, Woken};
use crate::world::{Happening, World};

/// How late a late message is at most, and a doubled one; well below the life of a tombstone.
const LATE: Time = 15 * S;
/// The server looks ten times a second whose BLPOP is over.
const TICK: Time = 100 * MS;

/// A request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) claim: usize,
    /// Who waits for the answer; nobody for what is posted, and for an operator.
    pub(crate) turn: Option<u64>,
    pub(crate) call: Call,
    pub(crate) sent: Time,
}

/// What an owner's thread has asked.
pub(crate) struct Asked {
    pub(crate) call: Call,
    /// When it reaches the server; empty if it never does, none if it has not left.
    pub(crate) arrives: Option<Vec<Time>>,
}

impl World {
    /// How long one way takes just now.
    pub(crate) fn leg(&mut self) -> Time {
        let leg = self.plan.leg;
        leg + if self.random.one_in(4) { self.random.skewed(leg) } else { self.random.below(leg / 4 + 1) }
    }

    /// When a message between them arrives that leaves now: never, once or twice.
    fn arrivals(&mut self, owner: usize, to: bool) -> Vec<Time> {
        let now = self.now;
        let (cut_to, cut_from) = self.owners[owner].cut;
        let cut_until = if to { cut_to } else { cut_from };
        let mut first = now + self.leg();
        if cut_until > now {
            // The kernel sends it again when the line is back, or has given up by then.
            if self.random.one_in(2) {
                return Vec::new();
            }
            first = cut_until + self.random.below(S);
        }
        if self.random.ppm(self.plan.lost_ppm) {
            return Vec::new();
        }
        if self.random.ppm(self.plan.late_ppm) {
            first += self.random.skewed(S).min(LATE);
        }
        let mut arrivals = vec![first];
        if self.random.ppm(self.plan.twice_ppm) {
            self.checker.doubled(owner);
            arrivals.push(first + self.random.skewed(2 * S).min(LATE));
        }
        arrivals
    }

    /// The thread asks something; it is in `turn` now.
    pub(crate) fn request(&mut self, owner: usize, call: Call, connected: bool) {
        let turn = self.owners[owner].turn;
        self.checker.sends(self.now, owner, &call);
        self.owners[owner].asked = Some(Asked { call: call.clone(), arrives: None });
        let fired = self.owners[owner].desk.get().fired;
        if connected {
            self.transmit(owner, turn, call);
        } else if !fired {
            // There and back before the first byte of it leaves.
            let (there, back) = (self.arrivals(owner, true), self.arrivals(owner, false));
            if self.server.health == Health::Down {
                let refused = Woken::Failed(Trouble::Unknown("refused".into()));
                let time = self.leg() + self.leg();
                self.after(time, Happening::Woken(owner, turn, refused));
            } else if let (Some(there), Some(back)) = (there.first(), back.first()) {
                self.at(there + (back - self.now), Happening::Dialled(owner, turn, call));
            }
        }
        if fired {
            self.after(0, Happening::Woken(owner, turn, Woken::Failed(Trouble::Interrupted)));
        }
    }

    pub(crate) fn dialled(&mut self, owner: usize, turn: u64, call: Call) {
        if self.owners[owner].turn == turn {
            self.transmit(owner, turn, call);
        }
    }

    fn transmit(&mut self, owner: usize, turn: u64, call: Call) {
        let arrivals = self.arrivals(owner, true);
        let message = Message { claim: owner, turn: Some(turn), call, sent: self.now };
        for at in &arrivals {
            self.at(*at, Happening::Arrives(message.clone()));
        }
        if let Some(asked) = &mut self.owners[owner].asked {
            asked.arrives = Some(arrivals);
        }
    }

    /// The thread goes on without an answer: its connection is closed, and after a drop the others carry it as well.
    pub(crate) fn unanswered(&mut self, owner: usize, turn: u64) {
        let Some(Asked { call, arrives }) = self.owners[owner].asked.take() else { return };
        let Some(arrives) = arrives.or_else(|| matches!(call, Call::Drop { .. }).then(Vec::new)) else { return };
        match call {
            Call::Listen { .. } => {
                if let Some(at) = self.arrivals(owner, true).first() {
                    let after_it = arrives.iter().max().map_or(*at, |came| (came + 1).max(*at));
                    self.at(after_it, Happening::Unlisten(owner, turn, false));
                }
            }
            Call::Look => {}
            Call::Drop { .. } => {
                for before in std::mem::take(&mut self.owners[owner].unanswered) {
                    let at = (before + 1).max(self.now + self.plan.leg);
                    let message = Message { claim: owner, turn: None, call: call.clone(), sent: self.now };
                    self.at(at, Happening::Arrives(message));
                }
                self.owners[owner].unanswered.extend(arrives.iter().max());
            }
            Call::Ask(_) | Call::Renew(_) | Call::Condemn { .. } => {
                self.owners[owner].unanswered.extend(arrives.iter().max());
            }
        }
    }

    pub(crate) fn arrives(&mut self, message: Message) {
        match self.server.health {
            Health::Frozen => self.backlog.push(message),
            Health::Down => {
                if let Some(turn) = message.turn {
                    let time = self.leg();
                    let reset = Woken::Failed(Trouble::Unknown("reset".into()));
                    self.after(time, Happening::Woken(message.claim, turn, reset));
                }
            }
            Health::Up => self.serve(message),
        }
    }

    fn serve(&mut self, message: Message) {
        let Message { claim, turn, call, sent } = message;
        self.checker.counts.requests += 1;
        if let Call::Listen { time } = call {
            let Some(turn) = turn else { return };
            if self.server.listen(self.now, claim, turn) {
                self.answer(claim, Some(turn), &Told::Called(true), sent);
            } else {
                let time = nanos(time) + self.random.below(TICK);
                self.after(time, Happening::Unlisten(claim, turn, true));
            }
            return;
        }
        let key = self.plan.owners[claim].key;
        let before = Checker::before(&self.server.keys[key]);
        let (told, events) = self.server.operate(self.now, key, claim, &call);
        self.checker.after(self.now, &self.server, (key, claim), &call, &before, &events);
        if Server::is_granted(&told) {
            self.checker.confirmed(self.now, &self.server.keys[key], claim);
        }
        if self.trace {
            println!(
                "  {claim} is told {told:?}, {:?}",
                events.iter().map(|e| (e.what, e.entry.id)).collect::<Vec<_>>()
            );
        }
        for event in &events {
            if let Some((who, turn)) = self.server.call(self.now, event) {
                self.answer(who, Some(turn), &Told::Called(true), self.now);
            }
        }
        self.answer(claim, turn, &told, sent);
    }

    pub(crate) fn unlisten(&mut self, owner: usize, turn: u64, answers: bool) {
        if self.server.unlisten(owner, turn) && answers && self.server.health == Health::Up {
            self.answer(owner, Some(turn), &Told::Called(false), self.now);
        }
    }

    fn answer(&mut self, owner: usize, turn: Option<u64>, told: &Told, sent: Time) {
        let Some(turn) = turn else { return };
        for at in self.arrivals(owner, false) {
            let round_trip = Duration::from_nanos(at - sent);
            self.at(at, Happening::Woken(owner, turn, Woken::Told(told.clone(), round_trip)));
        }
    }

    /// A bug that sends once more what must not be sent any more.
    pub(crate) fn sends_after_all(&mut self, owner: usize, call: Call) {
        if matches!(self.bug, Some(Bug::RenewAfterRelease | Bug::IdUsedAgain)) {
            self.owners[owner].turn += 1;
            let turn = self.owners[owner].turn;
            self.checker.sends(self.now, owner, &call);
            self.transmit(owner, turn, call);
        }
    }
}
