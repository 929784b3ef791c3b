//! Random histories of more claims, with different leases and limits, under the laws that hold for any operation.

use proptest::collection::vec;
use proptest::prelude::*;
use rlock::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Limit, Renew, Renewal, State, What};

use crate::laws::{self, Deed};

const BEGINNING_MS: u64 = 1_000_000_000;
const FEW: u128 = 6;

/// One operation: after how long, by whom, what.
#[derive(Clone, Debug)]
struct Move {
    pause_ms: u64,
    by: u128,
    deed: Deed,
    ttl_ms: u64,
    process: bool,
    number: Number,
}

/// What a renewal says of its number.
#[derive(Clone, Copy, Debug)]
enum Number {
    Unsaid,
    Granted,
    Other(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let pause = prop_oneof![5 => Just(0), 3 => 1..1500_u64, 2 => 2000..4000_u64, 1 => 9000..12_000_u64, 1 => 60_000..100_000_u64];
    let deed = prop_oneof![
        6 => any::<bool>().prop_map(Deed::Ask),
        3 => Just(Deed::Renew),
        2 => Just(Deed::Drop),
        1 => prop_oneof![Just(0), 1..40_000_u64].prop_map(Deed::Finish),
        1 => Just(Deed::Condemn),
    ];
    let number =
        prop_oneof![Just(Number::Unsaid), Just(Number::Granted), any::<u32>().prop_map(|n| Number::Other(n.into()))];
    let ttl = prop_oneof![Just(2000_u64), Just(5000), Just(30_000)];
    let one = (pause, 0..FEW, deed, ttl, any::<bool>(), number)
        .prop_map(|(pause_ms, by, deed, ttl_ms, process, number)| Move { pause_ms, by, deed, ttl_ms, process, number });
    vec(one, 1..60)
}

/// Does it. What the answer says must be what the state shows.
fn play(state: &mut State, now_ms: u64, one: &Move, limit: Limit, granted: &mut Option<u64>) -> Result<(), String> {
    let (id, ttl_ms, process, record) = (ClaimId::from_bits(one.by), one.ttl_ms, one.process, String::new());
    let mut step = state.at(now_ms * 1000);
    let agrees = match one.deed {
        Deed::Ask(wait) => match step.ask(&Ask { id, limit, ttl_ms, process, wait, record }) {
            Answer::Granted { number, left_ms } => {
                *granted = Some(number);
                state
                    .holders
                    .iter()
                    .any(|held| held.id == id && held.until_ms == now_ms + left_ms && held.ttl_ms == ttl_ms)
                    && left_ms >= ttl_ms
            }
            Answer::Waiting { position, lapse_ms, holders } => {
                wait && state.queue[position - 1].id == id
                    && state.queue[position - 1].until_ms == now_ms + 10_000
                    && holders == state.holders
                    && lapse_ms == holders.iter().map(|held| held.until_ms - now_ms).min()
            }
            Answer::Busy { holders } => !wait && holders == state.holders && !stands(state, id),
            Answer::Gone => state.traces.iter().any(|trace| trace.id == id),
        },
        Deed::Renew => {
            let number = match one.number {
                Number::Unsaid => None,
                Number::Granted => *granted,
                Number::Other(number) => Some(number),
            };
            match step.renew(&Renew { id, limit, ttl_ms, process, number, record }) {
                Renewal::Renewed { left_ms, .. } => {
                    let held = state.holders.iter().find(|held| held.id == id);
                    held.is_some_and(|held| held.until_ms == now_ms + left_ms && (held.process || !process))
                        && left_ms >= ttl_ms
                }
                Renewal::Condemned => state.traces.iter().any(|trace| trace.id == id && trace.condemned),
                Renewal::Gone => !state.holders.iter().any(|held| held.id == id) || !state.traces.is_empty(),
            }
        }
        Deed::Drop => {
            let stood = step.drop_claim(id, ttl_ms) != Dropped::Unknown;
            let told = step.events.iter().any(|event| event.what == What::Released && event.entry.id == id);
            !stands(state, id) && (stood || !told)
        }
        Deed::Finish(left_ms) => match step.finish(id, left_ms, ttl_ms) {
            Renewal::Renewed { left_ms: left, .. } => {
                let ends = state.holders.iter().find(|held| held.id == id).map(|held| held.until_ms);
                left <= left_ms && ends.map_or(left == 0, |ends| ends == now_ms + left)
            }
            Renewal::Condemned | Renewal::Gone => !stands(state, id),
        },
        Deed::Condemn => match step.condemn(id, ttl_ms) {
            Condemnation::Marked { .. } => state.holders.iter().any(|held| held.id == id && held.process),
            Condemnation::Dropped | Condemnation::Unknown => !stands(state, id),
        },
    };
    if agrees { Ok(()) } else { Err(format!("the answer to {one:?} is not what the state shows: {state:#?}")) }
}

fn stands(state: &State, id: ClaimId) -> bool {
    state.holders.iter().chain(&state.queue).any(|entry| entry.id == id)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_laws_hold(moves in moves(), limits in vec(prop_oneof![3 => Just(1_u32), 2 => Just(0), 2 => 2..4_u32], 6)) {
        let mut state = State::default();
        let mut now_ms = BEGINNING_MS;
        let mut granted = [None; 6];
        for one in &moves {
            now_ms += one.pause_ms;
            let before = state.clone();
            let at = usize::try_from(one.by).expect("an index");
            let said = play(&mut state, now_ms, one, Limit::of(limits[at]), &mut granted[at]);
            prop_assert!(said.is_ok(), "{}", said.unwrap_err());
            let law = laws::broken(&before, &state, one.deed, ClaimId::from_bits(one.by), now_ms);
            prop_assert_eq!(law, None, "{:?} made of {:#?} {:#?}", one, before, state);
        }
    }

    /// The same operation again, at the same instant, changes nothing but how long a trace stands: an answer that
    /// was lost costs nothing.
    #[test]
    fn repeating_changes_nothing(moves in moves()) {
        let mut state = State::default();
        let mut now_ms = BEGINNING_MS;
        for one in &moves {
            now_ms += one.pause_ms;
            let mut granted = None;
            let limit = Limit::of(u32::try_from(one.by % 3).expect("small"));
            let said = play(&mut state, now_ms, one, limit, &mut granted);
            prop_assert!(said.is_ok(), "{}", said.unwrap_err());
            let once = state.clone();
            let said = play(&mut state, now_ms, one, limit, &mut granted);
            prop_assert!(said.is_ok(), "{}", said.unwrap_err());
            prop_assert_eq!((&once.holders, &once.queue, once.number), (&state.holders, &state.queue, state.number));
            let traces = |state: &State| state.traces.iter().map(|t| (t.id, t.condemned)).collect::<Vec<_>>();
            prop_assert_eq!(traces(&once), traces(&state));
        }
    }
}
