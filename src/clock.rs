//! Time as a lease sees it: `CLOCK_BOOTTIME`, which goes on while the machine sleeps.
//!
//! `std::time::Instant` stands still in suspend, so a lease timed with it seems to have time left when it has long
//! passed to somebody else.

use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// An instant of `CLOCK_BOOTTIME`, as the time since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Boot(Duration);

impl Boot {
    /// The present instant.
    pub fn now() -> Self {
        // The clock exists on every Linux that rlock runs on; a zero would only end leases early.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        Self(now)
    }

    /// The instant `since_boot` after the machine was started.
    pub const fn at(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// The time since the machine was started.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this instant, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from now to this instant, zero if it is past.
    pub fn left(self) -> Duration {
        self.since(Self::now())
    }

    /// The instant `by` before this one, the machine's start at the earliest.
    #[must_use]
    pub const fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }
}

impl Add<Duration> for Boot {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

/// A time in whole milliseconds, as it is stored and reported.
pub fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock in milliseconds since 1970: to show to people, never to decide by.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ms(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_never_go_below_zero() {
        let (a, b) = (Boot::at(Duration::from_secs(5)), Boot::at(Duration::from_secs(7)));
        assert_eq!(b.since(a), Duration::from_secs(2));
        assert_eq!(a.since(b), Duration::ZERO);
        assert_eq!(a.before(Duration::from_secs(9)), Boot::at(Duration::ZERO));
        assert_eq!(a + Duration::MAX, Boot::at(Duration::MAX));
    }

    #[test]
    fn the_clock_runs() {
        let first = Boot::now();
        assert!(first.since_boot() > Duration::ZERO);
        assert!(Boot::now() >= first);
    }
}
