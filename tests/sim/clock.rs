//! Simulated time: nanoseconds of a true clock that nobody in the simulation can read, and the clocks they do read.

use std::time::Duration;

use rlock::clock::Boot;

/// True time, in nanoseconds since the beginning.
pub(crate) type Time = u64;

pub(crate) const MS: Time = 1_000_000;
pub(crate) const S: Time = 1_000 * MS;

/// The server's wall clock at the beginning, in microseconds.
const BEGINNING_US: u64 = 1_700_000_000_000_000;

/// A clock that runs `ppm` fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) ppm: i64,
    /// How far it is ahead, in nanoseconds.
    pub(crate) ahead: u64,
}

impl Clock {
    fn rate(self) -> u128 {
        u128::from((1_000_000 + self.ppm).unsigned_abs())
    }

    fn read(self, at: Time) -> u64 {
        self.ahead + u64::try_from(u128::from(at) * self.rate() / 1_000_000).expect("a time")
    }

    /// The first true time at which it shows `shown`.
    fn when(self, shown: u64) -> Time {
        let run = u128::from(shown.saturating_sub(self.ahead));
        u64::try_from((run * 1_000_000).div_ceil(self.rate())).unwrap_or(Time::MAX)
    }

    /// What an owner reads.
    pub(crate) fn boot(self, at: Time) -> Boot {
        Boot::at(Duration::from_nanos(self.read(at)))
    }

    /// When an owner reads that.
    pub(crate) fn when_boot(self, shown: Boot) -> Time {
        self.when(u64::try_from(shown.since_boot().as_nanos()).unwrap_or(u64::MAX))
    }

    /// What the server reads.
    pub(crate) fn wall_us(self, at: Time) -> u64 {
        BEGINNING_US + self.read(at) / 1000
    }

    /// When the server reads that.
    pub(crate) fn when_wall_ms(self, shown: u64) -> Time {
        self.when((shown * 1000).saturating_sub(BEGINNING_US) * 1000)
    }
}

pub(crate) fn nanos(time: Duration) -> Time {
    u64::try_from(time.as_nanos()).unwrap_or(Time::MAX)
}

pub(crate) fn seconds(time: Time) -> f64 {
    Duration::from_nanos(time).as_secs_f64()
}
