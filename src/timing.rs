//! Every constant of the lock and the lease, with its arithmetic. Nothing here reads a clock.
//!
//! The figures come from simulations of the rule under loss, delay, pauses and clock drift. What other values would cost
//! and bring stands side by side in `tests/sim/measure.rs`.

use std::time::Duration;

/// The least `--ttl`. At 1 s, pauses of rlock itself made 368 late kills where 2 s made 58 and 5 s none.
pub const LEAST_TTL: Duration = Duration::from_secs(2);

/// The greatest `--ttl`: a day. A lease longer than that is a lock without an end.
pub const GREATEST_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a waiter that was granted the key by somebody else's operation has to confirm, never above its ttl. It is
/// what a waiter that died costs the next one; who does not get to run for longer loses its place (of 2,300 waiters
/// that paused for about a second 19 with 2 s, 12 with 3 s, 2 with 5 s).
pub const WINDOW: Duration = Duration::from_secs(3);

/// How often a waiter asks again. Below the window, else a lost wake-up costs the place
/// (where one message in ten is lost, 8,807 of 614,956 grants with a refresh above it; none below).
pub const REFRESH: Duration = Duration::from_secs(1);

/// The longest rest of a waiter that is far from the head. With the answer to a wake-up that is overdue and a try on a
/// new connection, 600 ms each, it is still below the window: 1.7 + 1.2 < 3 s.
pub const LONGEST_REFRESH: Duration = Duration::from_millis(1700);

/// How long the waiter at this place of the queue, 1 being the head, rests before it asks again. Who is far from the
/// head rests longer: a thousand waiters would send more refreshes than all else. Nobody rests long beyond the next
/// `lapse` of a lease: whoever of the dead was granted the key, the next that lives asks when that one's window ends.
/// They do not all ask at once: each place adds a millisecond, several times what a server needs for an ask.
pub fn rest(position: usize, lapse: Option<Duration>) -> Duration {
    let behind = u32::try_from(position.saturating_sub(1)).unwrap_or(u32::MAX);
    let each = |ms| Duration::from_millis(ms).saturating_mul(behind);
    let refresh = (REFRESH + each(20)).min(LONGEST_REFRESH);
    lapse.map_or(refresh, |lapse| refresh.min(lapse + each(1)))
}

/// The longest single wait of a holder for a call: a line that died in silence is noticed then, not at the next renewal
/// of a lease of hours.
pub const LONGEST_LISTEN: Duration = Duration::from_secs(10);

/// When a holder begins to listen for a call, after the grant: a command that is over before then is released on a
/// connection that nothing waits on. A call that comes earlier is kept, and heard then.
pub const LISTEN_AFTER: Duration = Duration::from_millis(100);

/// How long a waiter counts after its last ask. However many waiters died, the next live one has the key within
/// heartbeat + window + the head's refresh = 14 s: whoever rests longer looks when a lease ends.
pub const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long a tombstone outlives the lease: later than any late message worth fearing.
/// A later one costs a ttl of waiting, never safety.
pub const TOMBSTONE: Duration = Duration::from_secs(60);

/// The longest single try, whatever the ttl.
pub const LONGEST_TRY: Duration = Duration::from_secs(2);

/// The longest try of a waiter, a window: a longer one could confirm no grant. Without it one answer that took 4.5 s made
/// a try of 36 s, and a message that was lost just when a store came back cost 48 s. A line that was cut off for up to
/// heartbeat − rest − try − pause = 10 − 1.7 − 3 − 0.6 = 4.7 s costs no place, and for 7.1 s where it is a fast one.
pub const LONGEST_WAITERS_TRY: Duration = WINDOW;

/// The pause after a failed try; it doubles up to a try's limit.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// What a deadline is ahead of the lease's end: ttl/100 for two clocks 1 % apart, and 2 ms for the grain of the
/// store's clock (1 ms of expiry precision, 1 ms of rounding). The Redlock page counts drift the same way.
pub fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// What KILL is ahead of the deadline: the time for a killed tree to be dead. At 50 ms 5 of 329,104 trees were
/// late, at 100 ms none.
pub fn slack(ttl: Duration) -> Duration {
    (ttl / 100).max(Duration::from_millis(100))
}

/// How much later than rlock the keeper acts, so that it acts only when rlock does not. Of the least slack, 100 ms,
/// 75 ms are left for a killed tree to be dead; at 50 ms 5 of 329,104 trees were late.
pub const KEEPER_LATER: Duration = Duration::from_millis(25);

/// The time between the first signal and KILL where `--kill-after` does not say: ttl/6, at most 5 s.
/// A clean shutdown is weighed against the time left to renew.
pub fn grace(ttl: Duration) -> Duration {
    (ttl / 6).min(Duration::from_secs(5))
}

/// The greatest `--kill-after`: beyond ttl/3 a single late renewal would already send the signal.
pub fn greatest_grace(ttl: Duration) -> Duration {
    ttl / 3
}

/// How often a lease is renewed: ttl/3, the field's watchdog (ttl/2 loses ten times as many leases needlessly). An
/// outage shorter than 2/3 ttl − grace − slack − margin − one try is not noticed (12.4 s at 30 s).
pub fn renew_every(ttl: Duration) -> Duration {
    ttl / 3
}

/// How long one try to renew may take: max(ttl/15, 100 ms), at most 2 s. Needless losses per 1,000 h at ttl 30 s: 0 at
/// 2 % loss; with ttl/5 instead 49. Over a slow line at least three round trips as last measured, eight on a new
/// connection, whose handshakes come on top (without them 53,664 losses at ttl 5 s over 80 ms). Never longer than the
/// time between two renewals: after one slow answer a single try could outlast the lease.
pub fn try_limit(ttl: Duration, round_trip: Option<Duration>, connected: bool) -> Duration {
    let by_ttl = (ttl / 15).max(Duration::from_millis(100)).min(LONGEST_TRY);
    by_ttl.max(by_round_trips(round_trip, connected).min(renew_every(ttl)))
}

/// How long one try of a waiter may take, and how long it waits for a wake-up's answer beyond its second: window/5,
/// since the dead connection that ate the wake-up also eats the refresh (with 2 s instead 122 of 12,651 places were
/// lost at 5 % loss; with 0.6 s none of 15,014). At most [`LONGEST_WAITERS_TRY`].
pub fn waiter_try_limit(round_trip: Option<Duration>, connected: bool) -> Duration {
    (WINDOW / 5).max(by_round_trips(round_trip, connected)).min(LONGEST_WAITERS_TRY)
}

fn by_round_trips(round_trip: Option<Duration>, connected: bool) -> Duration {
    let count = if connected { 3 } else { 8 };
    round_trip.map_or(Duration::ZERO, |one| one.saturating_mul(count))
}

/// A ttl under a hundred round trips leaves no room for the tries above: it is warned of.
pub fn is_short_for(ttl: Duration, round_trip: Duration) -> bool {
    ttl < round_trip.saturating_mul(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_stated_figures_hold_at_30_s() {
        let ttl = Duration::from_secs(30);
        assert_eq!(margin(ttl), MS(302));
        assert_eq!(slack(ttl), MS(300));
        assert_eq!(grace(ttl), MS(5000));
        assert_eq!(renew_every(ttl), MS(10_000));
        assert_eq!(try_limit(ttl, None, true), MS(2000));
        let noticed = renew_every(ttl) + grace(ttl) + slack(ttl) + margin(ttl) + try_limit(ttl, None, true);
        assert_eq!(noticed + MS(12_398), ttl);
    }

    #[test]
    fn a_slow_line_gets_longer_tries() {
        let ttl = Duration::from_secs(5);
        assert_eq!(try_limit(ttl, None, false), MS(5000) / 15);
        assert_eq!(try_limit(ttl, Some(MS(80)), false), MS(640));
        assert_eq!(try_limit(ttl, Some(MS(120)), true), MS(360));
        assert_eq!(waiter_try_limit(Some(MS(80)), true), MS(600));
        assert_eq!(waiter_try_limit(Some(MS(4500)), false), LONGEST_WAITERS_TRY);
        assert_eq!(try_limit(ttl, Some(MS(4500)), false), renew_every(ttl));
        assert!(is_short_for(ttl, MS(51)) && !is_short_for(ttl, MS(50)));
    }

    #[test]
    fn the_waiters_constants_fit_each_other() {
        assert!(LONGEST_REFRESH + waiter_try_limit(None, true) * 2 < WINDOW && WINDOW < HEARTBEAT);
        assert_eq!(KEEPER_LATER + MS(75), slack(LEAST_TTL));
        assert_eq!(HEARTBEAT + WINDOW + REFRESH, Duration::from_secs(14));
        assert_eq!(rest(1, None), REFRESH);
        assert_eq!(rest(1, Some(MS(5))), MS(5));
        assert_eq!(rest(11, Some(WINDOW)), MS(1200));
        assert_eq!(rest(1000, Some(MS(5))), MS(1004));
        assert_eq!(rest(usize::MAX, Some(WINDOW)), LONGEST_REFRESH);
        assert!(renew_every(LEAST_TTL) + grace(LEAST_TTL) + slack(LEAST_TTL) + margin(LEAST_TTL) < LEAST_TTL);
    }
}
