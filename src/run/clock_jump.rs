//! Sees a step of the store's clock, which ends every lease sooner or later than its holder counts.
//!
//! The store read its clock somewhere between a request and its answer, so each answer tells within what bounds that
//! clock is ahead of this host's. Bounds that lie apart by more than two clocks can drift are a step.

use std::time::Duration;

use crate::clock::Boot;

/// By how much the store's clock is ahead of this host's, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    least: i64,
    most: i64,
}

/// The store's clock as its answers tell it.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    last: Option<Ahead>,
}

impl StoreClock {
    /// A request sent at `sent` was answered at `heard`, and the store's clock stood at `now_ms`. Returns by how many
    /// milliseconds it has jumped since the last answer, if by more than `tolerated`: below that the margin covers it.
    pub(super) fn saw(&mut self, sent: Boot, heard: Boot, now_ms: u64, tolerated: Duration) -> Option<i64> {
        let ahead_of = |here: Boot| signed(u128::from(now_ms)) - signed(here.since_boot().as_millis());
        // The grain of both clocks is a millisecond.
        let now = Ahead { least: ahead_of(heard) - 1, most: ahead_of(sent) + 1 };
        let last = self.last.replace(now)?;
        let jump = if now.least > last.most { now.least - last.most } else { (now.most - last.least).min(0) };
        (signed(tolerated.as_millis()) < jump.abs()).then_some(jump)
    }
}

fn signed(ms: u128) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: Duration = Duration::from_millis(302);

    fn at(ms: u64) -> Boot {
        Boot::at(Duration::from_millis(ms))
    }

    /// Answers as (sent, heard, the store's clock); the first only sets the bounds.
    fn jumps(answers: &[(u64, u64, u64)]) -> Vec<Option<i64>> {
        let mut clock = StoreClock::default();
        answers.iter().map(|&(sent, heard, now_ms)| clock.saw(at(sent), at(heard), now_ms, MARGIN)).collect()
    }

    #[test]
    fn a_slow_answer_and_a_drift_are_no_jump() {
        assert_eq!(jumps(&[(1_000, 1_001, 90_000), (11_000, 11_900, 100_000), (21_000, 21_001, 110_000)]), [None; 3]);
        assert_eq!(jumps(&[(1_000, 1_001, 90_000), (11_000, 11_001, 100_100), (21_000, 21_001, 110_200)]), [None; 3]);
        assert_eq!(jumps(&[(1_000, 1_001, 0), (1_002, 1_003, 0)]), [None; 2]);
    }

    #[test]
    fn a_step_is_told_once_in_both_directions() {
        let forth = jumps(&[(1_000, 1_001, 90_000), (11_000, 11_001, 160_000), (21_000, 21_001, 170_000)]);
        assert_eq!(forth, [None, Some(59_997), None]);
        let back = jumps(&[(1_000, 1_001, 90_000), (11_000, 11_001, 40_000), (21_000, 21_001, 50_000)]);
        assert_eq!(back, [None, Some(-59_997), None]);
    }
}
