//! Every history of a few claims at message level: requests that come late, more than once or never, answers that are
//! lost, clients that stop at any point, condemning and forcing. After each operation the laws are checked, and that
//! no client that still goes by its own deadline has lost its place among the holders.
//!
//! `RLOCK_EXPLORE=n` gives each setup `n` more of everything that it counts at all; 1 takes very long.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use rlock::claim::{Answer, Ask, ClaimId, Limit, Renew, Renewal, State};

use crate::laws::{self, Deed};

const TTL_MS: u64 = 6_000;
const BEGINNING_MS: u64 = 1_000_000_000;

/// What may happen, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Budget {
    asks: u8,
    renews: u8,
    drops: u8,
    finishes: u8,
    condemns: u8,
    /// Drops by an operator (`force-release --now`).
    forces: u8,
    /// The holders are lost.
    evictions: u8,
    /// Requests that do not arrive at once, if ever.
    late: u8,
    /// Answers that are lost.
    lost: u8,
    /// Steps of the clock: their length, and how many.
    ticks: Vec<(u64, u8)>,
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    New,
    Asking,
    Holding,
    /// Told that it holds no more; its command goes on to its deadline at the latest.
    Lost,
    /// Its command has ended, and it has sent its last word, perhaps not for the last time.
    Finished,
    /// Its command has ended, and it has sent its drop.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    limit: u32,
    wait: bool,
    process: bool,
    phase: Phase,
    /// Until when it acts as holder: send time + min(left, ttl).
    until_ms: u64,
    number: u64,
    /// Removed by force or with the data: its promise is over.
    forced: bool,
}

impl Client {
    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Done)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    client: usize,
    deed: Deed,
    sent_ms: u64,
    number: u64,
}

#[derive(Clone, Debug)]
struct World {
    now_ms: u64,
    store: State,
    clients: Vec<Client>,
    flying: Vec<Request>,
    budget: Budget,
}

/// The answer as far as a client acts on it.
enum Heard {
    Holds { left_ms: u64, number: Option<u64> },
    Waits,
    Lost,
    Nothing,
}

fn id(client: usize) -> ClaimId {
    ClaimId::from_bits(client as u128)
}

impl World {
    fn new(clients: &[(u32, bool, bool)], budget: &Budget) -> Self {
        let client = |&(limit, wait, process): &(u32, bool, bool)| Client {
            limit,
            wait,
            process,
            phase: Phase::New,
            until_ms: 0,
            number: 0,
            forced: false,
        };
        Self {
            now_ms: BEGINNING_MS,
            store: State::default(),
            clients: clients.iter().map(client).collect(),
            flying: vec![],
            budget: budget.clone(),
        }
    }

    /// The same for worlds that cannot be told apart.
    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.now_ms, &self.clients, &self.flying, &self.budget, self.store.number).hash(&mut hasher);
        let mut holders: Vec<_> = self.store.holders.iter().collect();
        holders.sort_by_key(|held| held.id);
        holders.len().hash(&mut hasher);
        for entry in holders.into_iter().chain(&self.store.queue) {
            (entry.id, entry.number, entry.since_ms, entry.until_ms, entry.process).hash(&mut hasher);
        }
        let mut traces: Vec<_> = self.store.traces.iter().map(|t| (t.id, t.until_ms, t.condemned)).collect();
        traces.sort();
        traces.hash(&mut hasher);
        hasher.finish()
    }

    /// Every world that can come next, or what is broken.
    fn next(&self) -> Result<Vec<(String, Self)>, String> {
        let mut all = vec![];
        for client in 0..self.clients.len() {
            for deed in self.deeds(client) {
                let mut sending = self.clone();
                sending.send(client, deed);
                let number = self.clients[client].number;
                let request = Request { client, deed, sent_ms: self.now_ms, number };
                all.push((format!("{request:?}"), sending.clone().deliver(request, true)?));
                if let Some(left) = sending.budget.lost.checked_sub(1) {
                    let mut world = sending.clone();
                    world.budget.lost = left;
                    all.push((format!("{request:?}, answer lost"), world.deliver(request, false)?));
                }
                if let Some(left) = sending.budget.late.checked_sub(1) {
                    sending.budget.late = left;
                    sending.flying.push(request);
                    sending.flying.sort();
                    all.push((format!("{request:?} is late"), sending));
                }
            }
            self.operator(client, &mut all)?;
        }
        for at in 0..self.flying.len() {
            let mut world = self.clone();
            let request = world.flying.remove(at);
            all.push((format!("{request:?} arrives, answer lost"), world.clone().deliver(request, false)?));
            if !world.clients[request.client].has_ended() {
                all.push((format!("{request:?} arrives"), world.deliver(request, true)?));
            }
        }
        for (at, (length_ms, count)) in self.budget.ticks.iter().enumerate() {
            if *count > 0 {
                let mut world = self.clone();
                world.budget.ticks[at].1 -= 1;
                world.now_ms += length_ms;
                all.push((format!("{length_ms} ms pass"), world));
            }
        }
        if let Some(left) = self.budget.evictions.checked_sub(1).filter(|_| !self.store.holders.is_empty()) {
            let mut world = self.clone();
            world.budget.evictions = left;
            for held in world.store.holders.drain(..) {
                for (at, client) in world.clients.iter_mut().enumerate() {
                    client.forced |= id(at) == held.id;
                }
            }
            all.push(("the holders are lost".into(), world));
        }
        Ok(all)
    }

    /// What the client may send now.
    fn deeds(&self, client: usize) -> Vec<Deed> {
        let Client { phase, wait, until_ms, .. } = self.clients[client];
        let mut deeds = vec![];
        if matches!(phase, Phase::New | Phase::Asking) && self.budget.asks > 0 {
            deeds.push(Deed::Ask(wait));
        }
        let holds = phase == Phase::Holding && until_ms > self.now_ms;
        if holds && self.budget.renews > 0 {
            deeds.push(Deed::Renew);
        }
        if (holds || phase == Phase::Finished) && self.budget.finishes > 0 {
            deeds.push(Deed::Finish(3_000));
        }
        if !matches!(phase, Phase::New | Phase::Finished | Phase::Done) && self.budget.drops > 0 {
            deeds.push(Deed::Drop);
        }
        deeds
    }

    fn send(&mut self, client: usize, deed: Deed) {
        let phase = &mut self.clients[client].phase;
        let count = match deed {
            Deed::Ask(_) => &mut self.budget.asks,
            Deed::Renew => &mut self.budget.renews,
            Deed::Drop => &mut self.budget.drops,
            Deed::Finish(_) => &mut self.budget.finishes,
            Deed::Condemn => &mut self.budget.condemns,
        };
        *count -= 1;
        *phase = match deed {
            Deed::Drop => Phase::Done,
            Deed::Finish(_) => Phase::Finished,
            _ if *phase == Phase::New => Phase::Asking,
            _ => *phase,
        };
    }

    /// What an operator may do to the client's claim.
    fn operator(&self, client: usize, all: &mut Vec<(String, Self)>) -> Result<(), String> {
        let request = |deed| Request { client, deed, sent_ms: self.now_ms, number: 0 };
        if let Some(left) = self.budget.condemns.checked_sub(1) {
            let mut world = self.clone();
            world.budget.condemns = left;
            // Where no process stands behind it, condemning is removing.
            let holds = self.store.holders.iter().any(|held| held.id == id(client) && !held.process);
            world.clients[client].forced |= holds;
            all.push((format!("{client} is condemned"), world.deliver(request(Deed::Condemn), false)?));
        }
        if let Some(left) = self.budget.forces.checked_sub(1) {
            let mut world = self.clone();
            world.budget.forces = left;
            world.clients[client].forced = true;
            all.push((format!("{client} is forced out"), world.deliver(request(Deed::Drop), false)?));
        }
        Ok(())
    }

    /// The request arrives; the client hears the answer or does not.
    fn deliver(mut self, request: Request, heard: bool) -> Result<Self, String> {
        let before = self.store.clone();
        let answer = self.obey(request);
        if let Some(law) = laws::broken(&before, &self.store, request.deed, id(request.client), self.now_ms) {
            return Err(format!("{law}: {request:?} at {} made of {before:#?} {:#?}", self.now_ms, self.store));
        }
        let client = &mut self.clients[request.client];
        if heard && !client.has_ended() {
            match answer {
                Heard::Holds { left_ms, number } => {
                    client.until_ms = client.until_ms.max(request.sent_ms + left_ms.min(TTL_MS));
                    client.number = number.unwrap_or(client.number);
                    if client.phase == Phase::Asking {
                        client.phase = Phase::Holding;
                    }
                }
                Heard::Lost => client.phase = Phase::Lost,
                Heard::Waits | Heard::Nothing => {}
            }
        }
        self.promises().map(|()| self)
    }

    fn obey(&mut self, request: Request) -> Heard {
        let client = &self.clients[request.client];
        let (id, limit, process) = (id(request.client), Limit::of(client.limit), client.process);
        let (ttl_ms, record) = (TTL_MS, String::new());
        let mut step = self.store.at(self.now_ms * 1000);
        match request.deed {
            Deed::Ask(wait) => match step.ask(&Ask { id, limit, ttl_ms, process, wait, record }) {
                Answer::Granted { number, left_ms } => Heard::Holds { left_ms, number: Some(number) },
                Answer::Waiting { .. } | Answer::Busy { .. } => Heard::Waits,
                Answer::Gone => Heard::Lost,
            },
            Deed::Renew => {
                let number = Some(request.number);
                match step.renew(&Renew { id, limit, ttl_ms, process, number, record }) {
                    Renewal::Renewed { left_ms, .. } => Heard::Holds { left_ms, number: None },
                    Renewal::Condemned | Renewal::Gone => Heard::Lost,
                }
            }
            Deed::Drop => {
                step.drop_claim(id, ttl_ms);
                Heard::Nothing
            }
            Deed::Finish(left_ms) => {
                step.finish(id, left_ms, ttl_ms);
                Heard::Nothing
            }
            Deed::Condemn => {
                step.condemn(id, ttl_ms);
                Heard::Nothing
            }
        }
    }

    /// Those who still act as holders stand among the holders, long enough, and are no more than their limits.
    fn promises(&self) -> Result<(), String> {
        let acts = |client: &Client| client.until_ms > self.now_ms && !client.has_ended() && !client.forced;
        let acting: Vec<_> = self.clients.iter().enumerate().filter(|(_, client)| acts(client)).collect();
        for (at, client) in &acting {
            let held = self.store.holders.iter().find(|held| held.id == id(*at));
            if held.is_none_or(|held| held.until_ms < client.until_ms) {
                return Err(format!("{at} acts as holder until {} and the store has {held:?}", client.until_ms));
            }
            if client.limit != 0 && acting.len() > client.limit as usize {
                return Err(format!("{acting:?} act at once"));
            }
        }
        Ok(())
    }
}

/// Visits every world.
fn explore(clients: &[(u32, bool, bool)], budget: &Budget) {
    let more: u8 = std::env::var("RLOCK_EXPLORE").ok().map_or(0, |text| text.parse().expect("a number"));
    let mut budget = budget.clone();
    let Budget { asks, renews, drops, finishes, condemns, forces, evictions, late, lost, .. } = &mut budget;
    for count in [asks, renews, drops, finishes, condemns, forces, evictions, late, lost] {
        *count += if *count > 0 { more } else { 0 };
    }
    let mut seen = HashSet::new();
    let mut open = vec![(0, "at first".to_owned(), World::new(clients, &budget))];
    let mut path = vec![];
    while let Some((depth, label, world)) = open.pop() {
        path.truncate(depth);
        path.push(label);
        let next = world.next().unwrap_or_else(|what| panic!("after\n{}\n{what}", path.join("\n")));
        let unseen = next.into_iter().filter(|(_, world)| seen.insert(world.print()));
        open.extend(unseen.map(|(label, world)| (depth + 1, label, world)));
    }
    assert!(seen.len() > 100_000, "only {} worlds: the setup says nothing", seen.len());
}

const EXCLUSIVE: (u32, bool, bool) = (1, true, true);
const SHARED: (u32, bool, bool) = (0, true, true);

fn budget() -> Budget {
    Budget {
        asks: 3,
        renews: 1,
        drops: 1,
        finishes: 0,
        condemns: 0,
        forces: 0,
        evictions: 0,
        late: 1,
        lost: 1,
        ticks: vec![(3_000, 2), (11_000, 1)],
    }
}

#[test]
fn two_exclusive() {
    explore(&[EXCLUSIVE; 2], &Budget { asks: 4, late: 2, ..budget() });
}

#[test]
fn three_exclusive() {
    explore(&[EXCLUSIVE; 3], &Budget { asks: 4, lost: 0, ..budget() });
}

#[test]
fn shared_and_exclusive() {
    explore(&[SHARED, EXCLUSIVE, SHARED], &Budget { asks: 4, lost: 0, ..budget() });
}

#[test]
fn permits_with_losses() {
    explore(&[(2, true, true), (2, true, true), (3, true, true)], &Budget { evictions: 1, lost: 0, ..budget() });
}

#[test]
fn condemned_and_forced() {
    explore(&[EXCLUSIVE; 2], &Budget { condemns: 1, forces: 1, lost: 0, ..budget() });
}

#[test]
fn last_words_and_condemned() {
    let acquired = (1, true, false);
    explore(
        &[acquired, EXCLUSIVE],
        &Budget { finishes: 2, condemns: 1, ticks: vec![(3_000, 2), (70_000, 1)], ..budget() },
    );
}

#[test]
fn some_do_not_wait() {
    explore(&[EXCLUSIVE, (1, false, true), SHARED], &budget());
}
