//! One world: what is to happen, in its order, until nothing is left to happen.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rlock::child::Ending;
use rlock::run::events::Input;

use crate::bug::Bug;
use crate::checker::{Checker, Counts};
use crate::clock::{MS, S, Time, seconds};
use crate::network::Message;
use crate::owner::Owner;
use crate::plan::{Act, Plan};
use crate::random::Random;
use crate::server::{Health, Server};
use crate::thread::{Call, Woken};

/// A world in which more happens than this goes round in circles.
const MOST_EVENTS: u64 = 5_000_000;

/// Something that happens.
#[derive(Debug)]
pub(crate) enum Happening {
    /// An owner begins.
    Born(usize),
    /// What the owner's thread waited for, in that turn of it.
    Woken(usize, u64, Woken),
    /// A connection is there.
    Dialled(usize, u64, Call),
    /// A message reaches the server.
    Arrives(Message),
    /// A BLPOP's time is over, or its connection is closed.
    Unlisten(usize, u64, bool),
    /// The owner's main thread looks at the time and at what its other thread said.
    Main(usize),
    /// The owner's main thread hears something.
    Hears(usize, Input),
    /// The keeper looks at the time.
    Keeper(usize),
    /// The keeper is told to start the command.
    Spawn(usize),
    /// The command is dead.
    Dead(usize, Ending),
    /// What the command left is dead.
    RestDead(usize),
    /// Its lease is lost: by now it must be dead.
    MustBeDead(usize),
    Fault(Act),
    /// The server goes on.
    ServerUp,
}

struct Entry {
    at: Time,
    order: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) now: Time,
    pub(crate) server: Server,
    pub(crate) backlog: Vec<Message>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) checker: Checker,
    pub(crate) bug: Option<Bug>,
    /// Whether everything that happens is printed.
    pub(crate) trace: bool,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    server_away: u32,
}

/// Plays a plan to its end, and what it came to; or which law was broken.
pub(crate) fn play(plan: Plan, seed: u64, bug: Option<Bug>, trace: bool) -> (Counts, Option<String>) {
    let owners: Vec<_> = plan.owners.iter().map(Owner::new).collect();
    let mut world = World {
        random: Random::new(seed ^ 0x77),
        now: 0,
        server: Server::new(plan.server, plan.keys, owners.len(), bug),
        backlog: Vec::new(),
        checker: Checker::new(&plan),
        bug,
        trace,
        queue: BinaryHeap::new(),
        order: 0,
        server_away: 0,
        owners,
        plan,
    };
    world.run();
    (world.checker.counts, world.checker.broken)
}

impl World {
    pub(crate) fn after(&mut self, time: Time, what: Happening) {
        self.at(self.now + time, what);
    }

    pub(crate) fn at(&mut self, at: Time, what: Happening) {
        self.order += 1;
        self.queue.push(Reverse(Entry { at: at.max(self.now), order: self.order, what }));
    }

    fn run(&mut self) {
        for owner in 0..self.owners.len() {
            self.at(self.plan.owners[owner].born, Happening::Born(owner));
        }
        for (at, act) in std::mem::take(&mut self.plan.acts) {
            self.at(at, Happening::Fault(act));
        }
        while let Some(Reverse(Entry { at, what, .. })) = self.queue.pop() {
            self.now = at;
            self.checker.counts.events += 1;
            if self.checker.counts.events > MOST_EVENTS {
                self.checker.broken.get_or_insert_with(|| "it goes round in circles".into());
            }
            if self.checker.broken.is_some() {
                break;
            }
            self.happens(what);
        }
        self.bury();
        if self.checker.broken.is_none() {
            // After the longest lease and its tombstone.
            let end = self.now + 24 * 3600 * S;
            let end_us = self.server.clock.wall_us(end);
            self.checker.left_behind(self.now, &mut self.server, end_us);
        }
    }

    fn happens(&mut self, what: Happening) {
        // What a process that is stopped would do, it does when it goes on.
        if let Some(until) = self.stopped_until(&what) {
            self.at(until, what);
            return;
        }
        if self.trace {
            println!("{:.6} {what:?}", seconds(self.now));
        }
        match what {
            Happening::Born(owner) => self.begin(owner),
            Happening::Woken(owner, turn, woken) => self.wake(owner, turn, woken),
            Happening::Dialled(owner, turn, call) => self.dialled(owner, turn, call),
            Happening::Arrives(message) => self.arrives(message),
            Happening::Unlisten(owner, turn, answers) => self.unlisten(owner, turn, answers),
            Happening::Main(owner) => self.main(owner),
            Happening::Hears(owner, input) => self.hears(owner, input),
            Happening::Keeper(owner) => self.keeper(owner),
            Happening::Spawn(owner) => self.spawn(owner),
            Happening::Dead(owner, ending) => self.dead(owner, ending),
            Happening::RestDead(owner) => self.rest_dead(owner),
            Happening::MustBeDead(owner) => self.must_be_dead(owner),
            Happening::Fault(act) => self.fault(act),
            Happening::ServerUp => self.server_up(),
        }
    }

    fn fault(&mut self, act: Act) {
        match act {
            Act::StopRlock { owner, time } => self.stop(owner, time, false),
            Act::StopMachine { owner, time } => self.stop(owner, time, true),
            Act::KillRlock { owner } => self.kill_rlock(owner),
            Act::KillKeeper { owner } => self.kill_keeper(owner),
            Act::Term { owner } => self.term(owner),
            Act::Cut { owner, time, to, from } => {
                self.checker.disturbed(owner);
                let until = self.now + time;
                let line = &mut self.owners[owner].cut;
                *line = (if to { until } else { line.0 }, if from { until } else { line.1 });
            }
            Act::FreezeServer { time } => self.server_away(Health::Frozen, time),
            Act::RestartServer { time, loses } => {
                if loses {
                    self.checker.data_lost(self.now, &self.server);
                }
                self.server.restarts(loses);
                self.backlog.clear();
                self.server_away(Health::Down, time);
            }
            Act::SetClock { ahead } => self.server.clock.ahead += ahead,
            Act::Force { key, now } => self.force(key, now),
        }
    }

    fn server_away(&mut self, health: Health, time: Time) {
        self.server_away += 1;
        self.server.health = health;
        // Who has never had an answer gives a try as long as it has tried in vain: one that is lost just then costs the
        // outage once more.
        self.checker.away(self.now + 2 * time);
        self.after(time, Happening::ServerUp);
    }

    fn server_up(&mut self) {
        self.server_away -= 1;
        if self.server_away > 0 {
            return;
        }
        self.server.health = Health::Up;
        self.checker.away(self.now);
        for message in std::mem::take(&mut self.backlog) {
            let behind = self.random.below(MS / 10);
            self.after(behind, Happening::Arrives(message));
        }
    }

    fn force(&mut self, key: usize, at_once: bool) {
        let Some(held) = self.server.keys[key].holders.first() else { return };
        let (claim, ttl_ms) = (crate::server::claim(held.id), held.ttl_ms);
        let call = if at_once { Call::Drop { ttl_ms } } else { Call::Condemn { ttl_ms } };
        self.checker.forced(claim, at_once);
        let message = Message { claim, turn: None, call, sent: self.now };
        self.after(self.plan.leg, Happening::Arrives(message));
    }
}
