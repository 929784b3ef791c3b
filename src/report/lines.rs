//! The lines about a key that is held: busy, waiting.

use std::time::Duration;

use super::{Voice, Who};
use crate::claim::{ClaimId, Entry};
use crate::error::Error;
use crate::settings::DEFAULT_PATH;
use crate::store::Trouble;
use crate::text::{escape, fitted, instant, quoted, short, short_ms, shown};

/// The longest part shown of a key.
const MOST_SHOWN: usize = 120;

/// The columns of a key where the line is to fit on a terminal: time, position and lease stay within 80.
const MOST_SHOWN_LIVE: usize = 17;

/// That the key is held, by whom, since when, and what is left of the lease. `now_ms` is the store's clock, or the
/// nearest to it that is known.
pub fn held(key: &str, holders: &[Entry], now_ms: u64) -> String {
    format!("`{}` is {}", self::key(key), by(holders, now_ms))
}

/// Why nothing was run, and where to look. `waited` is how long it was waited for.
pub fn busy(key: &str, holders: &[Entry], now_ms: u64, waited: Option<Duration>) -> String {
    let held = held(key, holders, now_ms);
    let waited = waited.map(|waited| format!("gave up after {}, ", short(waited))).unwrap_or_default();
    format!("{held}; {waited}not run ({})", inspect_hint(key))
}

/// `see: rlock inspect job:backup`, to be typed as it is.
pub fn inspect_hint(key: &str) -> String {
    format!("see: rlock inspect {}", quoted(key))
}

/// What a store's trouble means after `within` of asking: the error with its code. The trouble names the store.
pub fn store_error(trouble: &Trouble, within: Duration) -> Error {
    let within = short(within);
    match trouble {
        Trouble::Unknown(text) => Error::Unavailable(format!(
            "{text}; no answer within {within}, see whether it runs and can be reached from here"
        )),
        Trouble::Later(text) if is_local(text) => Error::Unavailable(format!("{text}; not done within {within}")),
        Trouble::Later(text) => Error::Unavailable(format!("{text}; not done within {within}, see to the server")),
        Trouble::Os(text) => Error::Os(format!("{text}; not done within {within}")),
        Trouble::TooFew(text) => Error::Unavailable(text.clone()),
        Trouble::Refused(text) => Error::Refused(text.clone()),
        Trouble::Config(text) => Error::Config(text.clone()),
        Trouble::Interrupted => Error::Software("a request was interrupted".into()),
    }
}

/// That the lock is this host's alone, since nothing names a store; `name` is the local store's.
pub fn unconfigured(name: &str) -> String {
    format!(
        "no store is configured: locking on this host alone, in {name}; name a server, or silence this with \
         RLOCK_URL=local: or url = \"local:\" in {DEFAULT_PATH}"
    )
}

/// Whether words of a store's are about a directory of this host, where no server is to be looked at.
pub(super) fn is_local(words: &str) -> bool {
    words.starts_with("local:")
}

/// `held by …`, in the words of every line.
pub(super) fn by(holders: &[Entry], now_ms: u64) -> String {
    let Some(first) = holders.first() else {
        return "held by something that is not rlock's".into();
    };
    let more = match holders.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (who, left) = (Who::from_members(&first.record).shown(), short_ms(first.until_ms.saturating_sub(now_ms)));
    if !first.process {
        return format!("kept until {}, {left} left, after a run of {who} that ended{more}", instant(first.until_ms));
    }
    format!("held by {who} for {}, lease {left} left{more}", short_ms(now_ms.saturating_sub(first.since_ms)))
}

/// A key as it is shown in a line.
pub(super) fn key(key: &str) -> String {
    shown(key, MOST_SHOWN)
}

/// When a wait is told of: on a terminal by one live line that is kept up to date, elsewhere by a line after 1 s, after
/// 1, 2 and 4 minutes, then every 5, and when the holder changes, that at most once a minute.
#[derive(Debug, Default)]
pub struct Waiting {
    told: Option<Duration>,
    holder: Option<ClaimId>,
}

/// What is over sooner is not told.
const FIRST: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

impl Waiting {
    /// When [`Self::tell`] has something new after so long, though nothing happens.
    pub fn next(&self, voice: &Voice, waited: Duration) -> Option<Duration> {
        if voice.output().quiet {
            return None;
        }
        let is_due = self.told.is_none() || voice.can_be_live();
        is_due.then(|| FIRST.max(Duration::from_secs(waited.as_secs() + 1)))
    }

    /// Tells of the wait if it is time to. To be called after every answer of the store, and about once a second.
    pub fn tell(
        &mut self,
        voice: &Voice,
        waited: Duration,
        key: &str,
        position: usize,
        holders: &[Entry],
        now_ms: u64,
    ) {
        if waited < FIRST {
            return;
        }
        if voice.can_be_live() {
            voice.live(&live_line(waited, key, position, holders, now_ms));
        } else if self.is_due(waited, holders.first().map(|holder| holder.id)) {
            voice.say_unless_quiet(&line(waited, key, position, holders, now_ms));
        }
    }

    fn is_due(&mut self, waited: Duration, holder: Option<ClaimId>) -> bool {
        let due = match self.told {
            None => waited >= FIRST,
            Some(told) => waited >= next(told) || (holder != self.holder && waited >= told + MINUTE),
        };
        if due {
            self.told = Some(waited);
            self.holder = holder;
        }
        due
    }
}

/// The next instant of the schedule after `told`.
fn next(told: Duration) -> Duration {
    match told.as_secs() / 60 {
        0 => MINUTE,
        1 => 2 * MINUTE,
        2..4 => 4 * MINUTE,
        minutes => {
            (u32::try_from(minutes).unwrap_or(u32::MAX).saturating_sub(4) / 5).saturating_mul(5).saturating_add(9)
                * MINUTE
        }
    }
}

fn line(waited: Duration, key: &str, position: usize, holders: &[Entry], now_ms: u64) -> String {
    let key = self::key(key);
    format!("waiting for `{key}` for {}, {}, position {position}", short(waited), by(holders, now_ms))
}

/// The same for a terminal, whose width may cut it: what changes comes first, and a long key is cut.
fn live_line(waited: Duration, key: &str, position: usize, holders: &[Entry], now_ms: u64) -> String {
    let (key, waited) = (fitted(&escape(key), MOST_SHOWN_LIVE), short(waited));
    let (lease, holder) = match holders.first() {
        Some(first) => (
            format!(", lease {} left", short_ms(first.until_ms.saturating_sub(now_ms))),
            format!(
                "{} for {}",
                Who::from_members(&first.record).shown(),
                short_ms(now_ms.saturating_sub(first.since_ms))
            ),
        ),
        None => (String::new(), "something that is not rlock's".into()),
    };
    format!("waited {waited} for `{key}`, position {position}{lease}, held by {holder}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Limit;

    fn entry(id: u128, record: &str) -> Entry {
        Entry {
            id: ClaimId::from_bits(id),
            limit: Limit::EXCLUSIVE,
            process: true,
            number: 7,
            since_ms: 1_000_000,
            until_ms: 1_741_000,
            ttl_ms: 30_000,
            record: record.into(),
        }
    }

    const DB1: &str = r#""host":"db1","pid":4121,"user":"backup","cmd":"pg_dump""#;

    #[test]
    fn a_busy_line_says_who_and_where_to_look() {
        let holders = [entry(1, DB1)];
        assert_eq!(
            busy("job:backup", &holders, 1_720_000, None),
            "`job:backup` is held by backup@db1 pid 4121 (pg_dump) for 12m, lease 21s left; not run \
             (see: rlock inspect job:backup)"
        );
        assert_eq!(
            busy("a b", &[], 0, Some(Duration::from_secs(30))),
            "`a b` is held by something that is not rlock's; gave up after 30s, not run (see: rlock inspect 'a b')"
        );
        let two = [entry(1, DB1), entry(2, "")];
        assert!(busy("k", &two, 0, None).contains("for 0s, lease 29m left and 1 more; not run"));
    }

    #[test]
    fn a_waiting_line_says_how_long_for_what_and_where() {
        assert_eq!(
            line(Duration::from_secs(130), "k", 2, &[entry(1, DB1)], 1_720_000),
            "waiting for `k` for 2m10s, held by backup@db1 pid 4121 (pg_dump) for 12m, lease 21s left, position 2"
        );
    }

    #[test]
    fn a_waiting_line_on_a_terminal_begins_with_what_changes() {
        let line = |key: &str| live_line(Duration::from_secs(130), key, 2, &[entry(1, DB1)], 1_720_000);
        assert_eq!(
            line("k"),
            "waited 2m10s for `k`, position 2, lease 21s left, held by backup@db1 pid 4121 (pg_dump) for 12m"
        );
        for key in ["x".repeat(512), "鍵".repeat(100), "\u{1b}".repeat(100)] {
            let seen = fitted(&format!("rlock: {}", line(&key)), 80);
            assert!(seen.contains("position 2, lease 21s left"), "{seen}");
            assert!(fitted(&seen, 20).starts_with("rlock: waited 2m10s"), "{seen}");
        }
    }

    #[test]
    fn waiting_lines_come_rarer_and_rarer() {
        let mut waiting = Waiting::default();
        let holder = Some(ClaimId::from_bits(1));
        let told: Vec<u64> = (0..3600).filter(|s| waiting.is_due(Duration::from_secs(*s), holder)).collect();
        let minutes: Vec<u64> = told.iter().skip(1).map(|s| s / 60).collect();
        assert_eq!(told[0], 1);
        assert_eq!(minutes, [1, 2, 4, 9, 14, 19, 24, 29, 34, 39, 44, 49, 54, 59]);
        assert!(told.iter().skip(1).all(|s| s % 60 == 0), "{told:?}");
    }

    #[test]
    fn a_new_holder_is_told_of_at_most_once_a_minute() {
        let mut waiting = Waiting::default();
        let told: Vec<u64> = (0..400)
            .filter(|s| waiting.is_due(Duration::from_secs(*s), Some(ClaimId::from_bits(u128::from(*s)))))
            .collect();
        assert!(told.len() >= 6 && told.windows(2).skip(1).all(|pair| pair[1] - pair[0] >= 59), "{told:?}");
    }
}
