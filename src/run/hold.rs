//! Hold the key: renew in time, hear of a condemnation, and release at the end.

use std::time::Duration;

use super::clock_jump::StoreClock;
use super::wait::Grant;
use super::worker::{News, Order, Work, Worker};
use crate::claim::{Dropped, Renew, Renewal};
use crate::clock::Boot;
use crate::lease::{Loss, Pace};
use crate::store::{Reply, Trouble};
use crate::timing;

/// By how many answers a line is judged.
const JUDGED_BY: usize = 3;

/// How a release ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Release {
    /// The key is free, or the next waiter's.
    Done,
    /// The claim held no more when it was to be released.
    NotOurs,
    /// No answer; the lease lapses by itself.
    Unanswered(String),
}

/// Holds until an order ends it.
pub(super) fn hold(worker: &mut Worker, grant: Grant) {
    let Grant { number, sent, left } = grant;
    worker.tell(News::Granted { number, sent, left });
    let order = keep(worker, grant);
    if let Order::Release { by, keep_until } = order {
        let released = release(worker, by, keep_until);
        worker.tell(News::Released(released));
    }
}

/// Renews until an order comes.
fn keep(worker: &mut Worker, grant: Grant) -> Order {
    let ask = &worker.work.ask;
    let renew = Renew {
        id: ask.id,
        limit: ask.limit,
        ttl_ms: ask.ttl_ms,
        process: true,
        number: Some(grant.number),
        record: ask.record.clone(),
    };
    let mut pace = Pace::new(worker.work.ttl, grant.sent);
    let mut round_trips = vec![worker.work.store.round_trip()];
    let mut clock = StoreClock::default();
    watch(worker, &mut clock, grant.sent);
    if worker.sleep(pace.due().min(worker.now() + timing::LISTEN_AFTER)).is_err()
        && let Some(order) = worker.interrupted()
    {
        return order;
    }
    loop {
        let rested = rest(worker, &mut pace);
        let tried = rested.and_then(|()| renew_once(worker, &mut pace, &renew));
        match tried {
            Ok(None) => {
                judge(worker, &mut round_trips);
                watch(worker, &mut clock, pace.sent());
            }
            Ok(Some(loss)) => {
                let look = look(worker);
                worker.tell(News::Lost(loss, look));
                return worker.await_order();
            }
            Err(_) => {
                if let Some(order) = worker.interrupted() {
                    return order;
                }
            }
        }
    }
}

/// Tells of a line that is too slow for the ttl: the fastest of the first answers counts, since any one of them can be
/// held up by a busy host.
fn judge(worker: &Worker, round_trips: &mut Vec<Option<Duration>>) {
    // After a try that failed there is no new answer to judge by.
    if round_trips.len() == JUDGED_BY || !worker.work.store.is_connected() {
        return;
    }
    round_trips.push(worker.work.store.round_trip());
    let fastest = round_trips.iter().flatten().min().copied();
    if let Some(fastest) =
        fastest.filter(|one| round_trips.len() == JUDGED_BY && timing::is_short_for(worker.work.ttl, *one))
    {
        worker.tell(News::ShortTtl(fastest));
    }
}

/// Tells of a step of the store's clock since the last answer; this one's request was sent at `sent`.
fn watch(worker: &Worker, clock: &mut StoreClock, sent: Boot) {
    // After a try that failed it is an old answer's.
    let Some((now_ms, heard)) = worker.work.store.server_clock().filter(|(_, heard)| *heard >= sent) else { return };
    if let Some(jump) = clock.saw(sent, heard, now_ms, timing::margin(worker.work.ttl)) {
        worker.tell(News::ClockJumped(jump));
    }
}

/// Waits until the next try is due, or something may have changed. Only an interruption is an error.
fn rest(worker: &mut Worker, pace: &mut Pace) -> Result<(), Trouble> {
    while worker.now() < pace.due() {
        let now = worker.now();
        let work = &mut worker.work;
        // Nobody has listened since the last answer, and whoever closed the line may have forgotten the claim.
        if !work.store.is_connected() {
            pace.unheard(now);
        }
        let until = pace.due().min(now + timing::LONGEST_LISTEN);
        match work.store.wait(&work.key, work.ask.id, until) {
            Ok(true) => pace.hurry(worker.now()),
            Ok(false) => {}
            Err(Trouble::Interrupted) => return Err(Trouble::Interrupted),
            // The store may have been started again without what it knew, and a call may have been lost.
            Err(Trouble::Unknown(_) | Trouble::Later(_) | Trouble::Os(_) | Trouble::TooFew(_)) => {
                pace.unheard(worker.now());
                worker.sleep(pace.due())?;
            }
            // A wake-up is only a hint: without it the next renewal tells.
            Err(Trouble::Refused(_) | Trouble::Config(_)) => worker.sleep(pace.due())?,
        }
    }
    Ok(())
}

fn renew_once(worker: &mut Worker, pace: &mut Pace, renew: &Renew) -> Result<Option<Loss>, Trouble> {
    let sent = worker.now();
    let work = &mut worker.work;
    let limit = timing::try_limit(work.ttl, work.store.round_trip(), work.store.is_connected());
    match work.store.renew(&work.key, renew, sent + limit) {
        Ok(Renewal::Renewed { left_ms, restored }) => {
            pace.answered(sent);
            worker.tell(News::Renewed { sent, left: Duration::from_millis(left_ms), restored });
            Ok(None)
        }
        Ok(Renewal::Condemned) => Ok(Some(Loss::Condemned)),
        Ok(Renewal::Gone) => Ok(Some(Loss::Gone)),
        Err(Trouble::Interrupted) => Err(Trouble::Interrupted),
        // Not known is not lost, and a refused login may be a password that is just being changed: the deadline decides.
        Err(trouble) => {
            pace.failed(sent, worker.now(), limit);
            worker.tell(News::NotRenewed(trouble.to_string()));
            Ok(None)
        }
    }
}

fn look(worker: &mut Worker) -> Option<crate::store::Look> {
    let now = worker.now();
    let work = &mut worker.work;
    let limit = timing::try_limit(work.ttl, work.store.round_trip(), work.store.is_connected());
    work.store.look(&work.key, now + limit.min(timing::FIRST_PAUSE * 4)).ok()
}

/// Retried briefly, never past `by`.
fn release(worker: &mut Worker, by: Boot, keep_until: Option<Boot>) -> Release {
    let mut pace = Pace::new(worker.work.ttl, worker.now());
    // Whether an earlier try may have done it, and only its answer was lost.
    let mut may_be_done = false;
    loop {
        let sent = worker.now();
        let work = &mut worker.work;
        let limit = timing::try_limit(work.ttl, work.store.round_trip(), work.store.is_connected());
        let trouble = match give_back(work, keep_until.map(|until| until.since(sent)), by.min(sent + limit)) {
            Ok(true) => return Release::Done,
            Ok(false) if may_be_done => return Release::Done,
            Ok(false) => return Release::NotOurs,
            Err(trouble) => trouble,
        };
        may_be_done |= matches!(trouble, Trouble::Unknown(_) | Trouble::Interrupted);
        worker.around.clear();
        pace.failed(sent, worker.now(), limit);
        if pace.due() >= by {
            return Release::Unanswered(trouble.to_string());
        }
        // A second order cannot come: an interrupted sleep only makes the next try earlier.
        let _ = worker.sleep(pace.due());
        worker.around.clear();
    }
}

/// False where the claim did not hold. A lease that is kept answers every time until it ends, a dropped one only once.
fn give_back(work: &mut Work, keep: Option<Duration>, by: Boot) -> Reply<bool> {
    let (key, id, ttl) = (&work.key, work.ask.id, work.ttl);
    match keep.filter(|left| !left.is_zero()) {
        Some(left) => Ok(work.store.finish(key, id, left, ttl, by)? != Renewal::Gone),
        None => Ok(matches!(work.store.drop_claim(key, id, ttl, by)?, Dropped::Held(_))),
    }
}
