//! Random histories: the local store answers as `claim.rs` does and leaves the same behind, also when the processes
//! behind claims are killed in between.
//!
//! Time is the machine's; to let it pass, the record's origin is moved, which is what the store adds the clock to.
//! `RLOCK_SEED` repeats a history.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlock::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Entry, Limit, Renew, Renewal, State, Step};
use rlock::clock::Boot;
use rlock::store::{Key, Reply, Store};

use super::{PATIENCE, Place, id, record};
use crate::same::history::Rng;

const OPERATIONS: u64 = 6_000;
const ONE_GAME: u64 = 300;
const CLAIMS: u128 = 10;
const LIMITS: [&[u32]; 5] = [&[1], &[1, 0], &[1, 2, 3, 0], &[2, 3], &[0]];

/// One operation.
#[derive(Clone, Debug)]
enum Call {
    Ask(Ask),
    Renew(Renew),
    Drop(ClaimId, u64),
    Finish(ClaimId, u64, u64),
    Condemn(ClaimId, u64),
}

#[derive(Clone, Debug, PartialEq)]
enum Said {
    Ask(Answer),
    Renewal(Renewal),
    Dropped(Dropped),
    Condemnation(Condemnation),
}

impl Call {
    fn on_rule(&self, step: &mut Step<'_>) -> Said {
        match self {
            Self::Ask(ask) => Said::Ask(step.ask(ask)),
            Self::Renew(renew) => Said::Renewal(step.renew(renew)),
            Self::Drop(id, ttl) => Said::Dropped(step.drop_claim(*id, *ttl)),
            Self::Finish(id, left, ttl) => Said::Renewal(step.finish(*id, *left, *ttl)),
            Self::Condemn(id, ttl) => Said::Condemnation(step.condemn(*id, *ttl)),
        }
    }

    /// What the rule says and leaves; `own` is the claim of the store that asks, which leaves no trace of an end that
    /// it was told of.
    fn on_model(&self, model: &mut State, now_us: u64, own: Option<ClaimId>) -> Said {
        let said = self.on_rule(&mut model.at(now_us));
        let ended = match (self, &said) {
            (Self::Ask(ask), Said::Ask(Answer::Busy { .. } | Answer::Gone)) => Some(ask.id),
            (Self::Drop(id, _) | Self::Finish(id, ..), _) => Some(*id),
            _ => None,
        };
        if let Some(ended) = ended.filter(|ended| Some(*ended) == own) {
            let holds = model.holders.iter().any(|held| held.id == ended);
            model.traces.retain(|trace| trace.id != ended || holds);
        }
        said
    }

    fn on_store(&self, store: &mut dyn Store, key: &Key) -> Reply<Said> {
        let (by, ms) = (Boot::now() + PATIENCE, Duration::from_millis);
        Ok(match self {
            Self::Ask(ask) => Said::Ask(store.ask(key, ask, by)?),
            Self::Renew(renew) => Said::Renewal(store.renew(key, renew, by)?),
            Self::Drop(id, ttl) => Said::Dropped(store.drop_claim(key, *id, ms(*ttl), by)?),
            Self::Finish(id, left, ttl) => Said::Renewal(store.finish(key, *id, ms(*left), ms(*ttl), by)?),
            Self::Condemn(id, ttl) => Said::Condemnation(store.condemn(key, *id, ms(*ttl), by)?),
        })
    }

    fn random(state: &State, limits: &[u32], rng: &mut Rng) -> Self {
        let claim = id(u128::from(rng.below(u64::try_from(CLAIMS).expect("small"))) + 1);
        let limit = Limit::of(rng.pick(limits));
        let ttl_ms = rng.pick(&[2_000, 5_000, 30_000]);
        let (process, record) = (rng.percent(70), "\"host\":\"h\"".to_owned());
        let held = state.holders.iter().find(|held| held.id == claim);
        match rng.below(100) {
            0..50 => Self::Ask(Ask { id: claim, limit, ttl_ms, process, wait: rng.percent(75), record }),
            50..70 => {
                let known = held.map_or(state.number, |held| held.number);
                let number = rng.percent(80).then(|| known.saturating_sub(rng.pick(&[0, 0, 0, 1])));
                Self::Renew(Renew { id: claim, limit, ttl_ms, process, number, record })
            }
            70..88 => Self::Drop(claim, ttl_ms),
            88..93 => Self::Finish(claim, rng.pick(&[0, 1_000, 40_000]), ttl_ms),
            _ => Self::Condemn(claim, ttl_ms),
        }
    }
}

/// Without what people are shown, which is told by the wall clock.
fn plain(mut said: Said) -> Said {
    let strip = |entry: &mut Entry| (entry.since_ms, entry.until_ms) = (0, 0);
    match &mut said {
        Said::Ask(Answer::Waiting { holders, .. } | Answer::Busy { holders }) => holders.iter_mut().for_each(strip),
        Said::Dropped(Dropped::Held(entry) | Dropped::Waited(entry)) => strip(entry),
        _ => {}
    }
    said
}

fn seed() -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos();
    let seed = std::env::var("RLOCK_SEED").ok().map(|text| text.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|| u64::try_from(clock % 1_000_000_000).expect("in range"));
    println!("RLOCK_SEED={seed}");
    seed
}

/// The store's clock, whose origin the record holds.
fn now_us(origin_us: u64) -> u64 {
    origin_us + u64::try_from(Boot::now().since_boot().as_micros()).expect("in range")
}

fn origin(place: &Place) -> u64 {
    record::read(&place.folder("job")).expect("a record")["origin_us"].as_u64().expect("a number")
}

/// Carries the call out on the store and on the rule, at each instant at which the store may have done it, until both
/// say and leave the same.
fn both(place: &Place, store: &mut dyn Store, own: Option<ClaimId>, model: &mut State, call: &Call) -> Said {
    let known = record::read(&place.folder("job")).is_some().then(|| origin(place));
    let before = known.map(now_us);
    let said = plain(call.on_store(store, &Key::parse("job").expect("a key")).expect("an answer"));
    let origin = origin(place);
    let (after, before) = (now_us(origin), before.unwrap_or_else(|| now_us(origin) - 1_000_000));
    let left = record::state(&place.folder("job"));
    // The first grant of an operation gets its instant as its number, further ones the numbers after it.
    let granted =
        (0..4).map(|more| left.number.saturating_sub(more)).filter(|number| (before..=after).contains(number));
    let each_ms = (before / 1000..=after / 1000).map(|ms| (ms * 1000).max(before));
    let instants: Vec<u64> = granted.chain(each_ms).collect();
    for now_us in &instants {
        let mut state = model.clone();
        let right = plain(call.on_model(&mut state, *now_us, own));
        if (&right, &state) == (&said, &left) {
            *model = state;
            return said;
        }
    }
    let mut state = model.clone();
    let right = plain(call.on_model(&mut state, after, own));
    panic!(
        "{call:?} on {model:#?}\nthe rule says   {right:?}\nthe store says {said:?}\nthe rule leaves  {state:#?}\nthe store leaves {left:#?}"
    );
}

/// Lets time pass: a little, to the edge of what ends next, or beyond everything.
fn pass(place: &Place, model: &State, rng: &mut Rng) {
    let Some(record) = record::read(&place.folder("job")) else { return };
    let now_ms = now_us(record["origin_us"].as_u64().expect("a number")) / 1000;
    let ends = model.holders.iter().chain(&model.queue).map(|entry| entry.until_ms);
    let next = ends.chain(model.traces.iter().map(|trace| trace.until_ms)).filter(|end| *end > now_ms).min();
    let ms = match rng.below(100) {
        0..60 => return,
        60..80 => rng.below(2_000),
        80..93 => next.map_or(0, |end| (end - now_ms).saturating_sub(rng.below(4))),
        93..98 => rng.below(15_000),
        _ => rng.below(200_000),
    };
    record::change(&place.folder("job"), |record| {
        record["origin_us"] = (record["origin_us"].as_u64().expect("a number") + ms * 1000).into();
    });
}

fn word(said: &Said) -> String {
    format!("{said:?}").chars().take_while(|c| *c != '{' && *c != ' ').collect()
}

#[test]
fn the_store_and_the_rule_agree() {
    let seed = seed();
    let mut rng = Rng(seed);
    let mut counts = BTreeMap::<String, u64>::new();
    for _ in 0..OPERATIONS / ONE_GAME {
        let (place, limits) = (Place::new(), rng.pick(&LIMITS));
        // Two stores of two processes: nothing is kept in one of them. One has a claim of its own.
        let mut stores = [place.open(), place.open()];
        assert!(stores[0].enrol(id(1)).is_some());
        let mut model = State::default();
        for _ in 0..ONE_GAME {
            pass(&place, &model, &mut rng);
            let call = Call::random(&model, limits, &mut rng);
            let at = rng.index(2);
            let own = (at == 0).then(|| id(1));
            let said = both(&place, stores[at].as_mut(), own, &mut model, &call);
            *counts.entry(word(&said)).or_default() += 1;
        }
    }
    println!("{counts:?}");
    assert!(counts.len() >= 13, "some answer never came: {counts:?}");
}

/// A process that keeps a claim's descriptor, as rlock and its keeper do.
struct Alive(Child);

impl Alive {
    fn start(store: &mut dyn Store, claim: ClaimId) -> Self {
        let fd = store.enrol(claim).expect("a descriptor").try_clone_to_owned().expect("a copy");
        let child = Command::new("sleep").arg("1000").stdin(Stdio::from(fd)).spawn().expect("sleep");
        Self(child)
    }

    /// Kills it, and waits until nobody keeps the descriptor: a child that another test has just forked has all of this
    /// process's descriptors until it becomes its program, and the claim lives as long as one of them is open.
    fn kill(self, place: &Place, claim: ClaimId) {
        drop(self);
        let fifo = place.fifo(claim);
        let is_read = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).is_ok();
        super::until("nobody keeps the descriptor", || !is_read());
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // It lives: nothing else ends it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is left when the dead are left out.
fn alive(mut state: State, dead: &BTreeSet<ClaimId>) -> State {
    state.holders.retain(|held| !dead.contains(&held.id));
    state.queue.retain(|waiter| !dead.contains(&waiter.id));
    state
}

#[test]
fn killed_processes_are_out_and_the_others_are_answered_as_if_those_had_never_been() {
    let mut rng = Rng(seed());
    let key = Key::parse("job").expect("a key");
    let mut killed = 0;
    for _ in 0..6 {
        let place = Place::new();
        let mut model = State::default();
        let mut processes = BTreeMap::new();
        let mut dead = BTreeSet::new();
        let mut next = 1_u128;
        for _ in 0..80 {
            while processes.len() < 6 {
                let mut store = place.open();
                processes.insert(id(next), Alive::start(store.as_mut(), id(next)));
                next += 1;
            }
            let ids: Vec<ClaimId> = processes.keys().copied().collect();
            let claim = ids[rng.index(ids.len())];
            if rng.percent(30) {
                processes.remove(&claim).expect("it lives").kill(&place, claim);
                dead.insert(claim);
                killed += 1;
                model = alive(model, &dead);
                continue;
            }
            let ask = Ask { id: claim, ttl_ms: 60_000, ..super::ask(0, true) };
            let renew = Renew {
                id: claim,
                limit: ask.limit,
                ttl_ms: 60_000,
                process: true,
                number: None,
                record: String::new(),
            };
            let call = match rng.below(10) {
                0..6 => Call::Ask(ask),
                6..8 => Call::Renew(renew),
                _ => Call::Drop(claim, 0),
            };
            let said = call.on_store(place.open().as_mut(), &key).expect("an answer");
            let left = record::state(&place.folder("job"));
            let now_us = left.number.max(now_us(origin(&place)));
            let right = call.on_rule(&mut model.at(now_us));
            assert_eq!(sketch(&said), sketch(&right), "{call:?}");
            let shape = |state: &State| {
                let ids = |entries: &[Entry]| entries.iter().map(|entry| entry.id).collect::<Vec<_>>();
                (ids(&state.holders), ids(&state.queue))
            };
            assert!(left.holders.iter().all(|held| !dead.contains(&held.id)), "a dead one holds: {left:#?}");
            assert_eq!(shape(&alive(left, &dead)), shape(&model), "{call:?}");
            if matches!(call, Call::Drop(..)) {
                processes.remove(&claim).expect("it lives").kill(&place, claim);
                dead.insert(claim);
            }
        }
    }
    println!("{killed} were killed");
}

/// The answer without times and places: dead waiters in the middle of a queue are taken out when it is their turn.
fn sketch(said: &Said) -> String {
    match said {
        Said::Ask(Answer::Waiting { holders, .. }) => {
            format!("waiting for {:?}", holders.iter().map(|held| held.id).collect::<Vec<_>>())
        }
        Said::Dropped(Dropped::Held(entry) | Dropped::Waited(entry)) => format!("{} {}", word(said), entry.id),
        said => word(said),
    }
}
