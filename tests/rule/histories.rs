//! Histories that went wrong in earlier forms of the rule, and what is said of them now.

use rlock::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Entry, Limit, Renew, Renewal, State, What};

const A: ClaimId = ClaimId::from_bits(0xa);
const B: ClaimId = ClaimId::from_bits(0xb);
const C: ClaimId = ClaimId::from_bits(0xc);
const TTL: u64 = 30_000;
const HOUR: u64 = 3_600_000;

/// A store of one key, and its clock.
struct Told {
    state: State,
    now_ms: u64,
    limit: Limit,
    ttl_ms: u64,
}

impl Told {
    fn with(limit: Limit, ttl_ms: u64) -> Self {
        Self { state: State::default(), now_ms: 1_000_000_000, limit, ttl_ms }
    }

    fn exclusive() -> Self {
        Self::with(Limit::EXCLUSIVE, TTL)
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    fn asks(&mut self, id: ClaimId, wait: bool) -> Answer {
        let (limit, ttl_ms, record) = (self.limit, self.ttl_ms, String::new());
        self.state.at(self.now_ms * 1000).ask(&Ask { id, limit, ttl_ms, process: true, wait, record })
    }

    fn granted(&mut self, id: ClaimId) -> u64 {
        match self.asks(id, true) {
            Answer::Granted { number, .. } => number,
            other => panic!("{id} is told {other:?}"),
        }
    }

    fn waits(&mut self, id: ClaimId, place: usize) {
        let answer = self.asks(id, true);
        assert!(matches!(answer, Answer::Waiting { position, .. } if position == place), "{answer:?}");
    }

    fn renews(&mut self, id: ClaimId, number: u64) -> Renewal {
        let (limit, ttl_ms, number) = (self.limit, self.ttl_ms, Some(number));
        let renew = Renew { id, limit, ttl_ms, process: true, number, record: String::new() };
        self.state.at(self.now_ms * 1000).renew(&renew)
    }

    fn drops(&mut self, id: ClaimId) -> Dropped {
        self.state.at(self.now_ms * 1000).drop_claim(id, self.ttl_ms)
    }

    fn finishes(&mut self, id: ClaimId, left_ms: u64) -> Renewal {
        self.state.at(self.now_ms * 1000).finish(id, left_ms, self.ttl_ms)
    }

    fn condemned(&mut self, id: ClaimId) -> Condemnation {
        self.state.at(self.now_ms * 1000).condemn(id, self.ttl_ms)
    }

    fn holders(&mut self) -> Vec<ClaimId> {
        self.state.at(self.now_ms * 1000).serve();
        self.state.holders.iter().map(|held| held.id).collect()
    }

    fn evicted(&mut self) {
        self.state.holders.clear();
    }
}

fn restored(ttl_ms: u64) -> Renewal {
    Renewal::Renewed { left_ms: ttl_ms, restored: true }
}

#[test]
fn r1_a_late_renewal_after_the_last_word_restores_nothing() {
    let mut told = Told::exclusive();
    let number = told.granted(A);
    assert_eq!(told.finishes(A, 5_000), Renewal::Renewed { left_ms: 5_000, restored: false });
    told.pass(5_001);
    assert_eq!(told.renews(A, number), Renewal::Gone);
    assert!(told.holders().is_empty());
}

#[test]
fn r2_a_renewal_under_way_when_condemned_and_evicted_restores_nothing() {
    let mut told = Told::exclusive();
    let number = told.granted(A);
    assert_eq!(told.condemned(A), Condemnation::Marked { left_ms: TTL });
    told.evicted();
    assert_eq!(told.renews(A, number), Renewal::Condemned);
    // The mark also stands for a claim that is not known just now.
    let mut told = Told::exclusive();
    let number = told.granted(A);
    told.evicted();
    assert_eq!(told.condemned(A), Condemnation::Unknown);
    assert_eq!(told.renews(A, number), Renewal::Condemned);
    told.pass(TTL + 60_000);
    assert_eq!(told.renews(A, number), restored(TTL));
}

#[test]
fn r3_permits_are_all_restored() {
    let mut told = Told::with(Limit::of(3), TTL);
    let numbers = [A, B, C].map(|id| told.granted(id));
    told.evicted();
    for (id, number) in [A, B, C].into_iter().zip(numbers) {
        assert_eq!(told.renews(id, number), restored(TTL));
    }
    assert_eq!(told.holders(), [A, B, C]);
}

#[test]
fn r4_a_tombstone_outlives_a_long_lease() {
    let mut told = Told::with(Limit::EXCLUSIVE, HOUR);
    let number = told.granted(A);
    assert!(matches!(told.drops(A), Dropped::Held(_)));
    for _ in 0..59 {
        told.pass(61_000);
        assert_eq!(told.renews(A, number), Renewal::Gone);
        assert_eq!(told.asks(A, true), Answer::Gone);
    }
    // The lease that is dropped is longer than the one the drop knows of.
    let mut told = Told::with(Limit::EXCLUSIVE, HOUR);
    let number = told.granted(A);
    told.ttl_ms = 2_000;
    told.drops(A);
    told.pass(HOUR);
    assert_eq!(told.renews(A, number), Renewal::Gone);
}

#[test]
fn r5_a_late_ask_of_one_that_did_not_wait_is_stopped_by_its_drop() {
    let mut told = Told::exclusive();
    told.granted(B);
    assert!(matches!(told.asks(A, false), Answer::Busy { .. }), "its second ask; the first is late");
    assert_eq!(told.drops(A), Dropped::Unknown);
    told.drops(B);
    assert_eq!(told.asks(A, false), Answer::Gone, "the first ask arrives");
    assert!(told.holders().is_empty());
}

#[test]
fn r6_asking_again_keeps_the_place() {
    let mut told = Told::exclusive();
    told.granted(A);
    told.waits(B, 1);
    told.waits(C, 2);
    for _ in 0..5 {
        told.pass(5_000);
        told.waits(B, 1);
        told.waits(C, 2);
    }
    told.drops(A);
    assert_eq!(told.holders(), [B]);
    told.waits(C, 1);
}

#[test]
fn r7_what_is_left_may_be_more_than_the_own_ttl() {
    let mut told = Told::exclusive();
    let number = told.granted(A);
    told.ttl_ms = 2_000;
    assert_eq!(told.renews(A, number), Renewal::Renewed { left_ms: TTL, restored: false });
    told.now_ms -= HOUR;
    assert_eq!(told.renews(A, number), Renewal::Renewed { left_ms: TTL + HOUR, restored: false });
    assert!(matches!(told.asks(A, true), Answer::Granted { left_ms, .. } if left_ms == TTL + HOUR));
}

#[test]
fn a_last_word_said_twice_shortens_and_lengthens_nothing() {
    let mut told = Told::exclusive();
    told.granted(A);
    told.finishes(A, 20_000);
    told.pass(5_000);
    assert_eq!(told.finishes(A, 15_000), Renewal::Renewed { left_ms: 15_000, restored: false }, "its answer was lost");
    assert_eq!(told.finishes(A, 20_000), Renewal::Renewed { left_ms: 15_000, restored: false }, "the first one, late");
    told.waits(B, 1);
    told.pass(14_999);
    told.waits(B, 1);
    told.pass(1);
    assert_eq!(told.holders(), [B]);
}

#[test]
fn a_last_word_on_a_condemned_claim_is_a_drop() {
    let mut told = Told::exclusive();
    told.granted(A);
    told.waits(B, 1);
    told.condemned(A);
    assert_eq!(told.finishes(A, 20_000), Renewal::Condemned);
    assert_eq!(told.holders(), [B]);
}

#[test]
fn a_condemned_holder_keeps_its_lease_and_no_more() {
    let mut told = Told::exclusive();
    let number = told.granted(A);
    told.waits(B, 1);
    told.pass(9_000);
    assert_eq!(told.condemned(A), Condemnation::Marked { left_ms: TTL - 9_000 });
    told.waits(B, 1);
    assert_eq!(told.renews(A, number), Renewal::Condemned);
    assert_eq!(told.asks(A, true), Answer::Gone);
    for _ in 0..2 {
        told.pass(9_000);
        told.waits(B, 1);
    }
    told.pass(3_000);
    assert_eq!(told.holders(), [B]);
}

#[test]
fn a_claim_without_a_process_is_condemned_at_once_until_a_run_renews_it() {
    let acquired = |told: &mut Told| {
        let number = told.granted(A);
        told.state.holders[0].process = false;
        number
    };
    let mut told = Told::exclusive();
    acquired(&mut told);
    assert_eq!(told.condemned(A), Condemnation::Dropped);
    assert!(told.holders().is_empty());
    let mut told = Told::exclusive();
    let number = acquired(&mut told);
    told.renews(A, number);
    assert!(matches!(told.condemned(A), Condemnation::Marked { .. }));
}

#[test]
fn an_exclusive_waiter_is_not_starved_by_shared_ones() {
    let mut told = Told::with(Limit::SHARED, TTL);
    told.granted(A);
    told.limit = Limit::EXCLUSIVE;
    told.waits(B, 1);
    told.limit = Limit::SHARED;
    told.waits(C, 2);
    told.drops(A);
    assert_eq!(told.holders(), [B]);
    told.drops(B);
    assert_eq!(told.holders(), [C]);
}

#[test]
fn the_smallest_limit_in_force_governs() {
    let mut told = Told::with(Limit::of(3), TTL);
    told.granted(A);
    told.limit = Limit::of(2);
    told.granted(B);
    told.limit = Limit::of(3);
    told.waits(C, 1);
    told.drops(B);
    assert_eq!(told.holders(), [A, C]);
}

#[test]
fn ten_dead_waiters_cost_one_heartbeat_and_a_window() {
    let mut told = Told::exclusive();
    told.granted(A);
    for dead in 1..=10 {
        told.waits(ClaimId::from_bits(100 + dead), usize::try_from(dead).expect("small"));
    }
    told.waits(B, 11);
    told.drops(A);
    let mut waited = 0;
    while !told.holders().contains(&B) {
        told.pass(1_000);
        waited += 1_000;
        let _ = told.asks(B, true);
        assert!(waited <= 14_000, "B still waits");
    }
}

#[test]
fn the_number_grows_over_a_loss_and_a_lagging_clock() {
    let mut told = Told::exclusive();
    let first = told.granted(A);
    told.drops(A);
    let second = told.granted(B);
    assert_eq!(second, first + 1, "within one instant it counts");
    told.drops(B);
    told.state = State::default();
    told.pass(1);
    assert!(told.granted(C) > second, "from nothing it goes by the clock");
}

#[test]
fn the_log_hears_of_every_end_once() {
    let mut told = Told::exclusive();
    told.granted(A);
    told.waits(B, 1);
    let mut step = told.state.at(told.now_ms * 1000);
    step.finish(A, 0, TTL);
    let heard: Vec<_> = step.events.iter().map(|event| (event.what, event.entry.id)).collect();
    assert_eq!(heard, [(What::Released, A), (What::Served, B)]);
    let mut step = told.state.at((told.now_ms + 3_000) * 1000);
    step.serve();
    let heard: Vec<(What, Entry)> = step.events.drain(..).map(|event| (event.what, event.entry)).collect();
    assert!(matches!(&heard[..], [(What::Lost, held)] if held.id == B), "{heard:?}");
}
