//! Durations as people type them: units (`30s`, `1m30s`) or bare seconds with a fraction (`30`, `0.5`).

use std::ops::RangeInclusive;
use std::time::Duration;

/// A year, the longest wait.
pub(super) const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The duration that `text` says, or why it is refused, with the range: the rest of a sentence that begins with its
/// name.
pub(super) fn parse(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let accepted = || format!("from {} to {}", exact(*range.start()), exact(*range.end()));
    match read(text) {
        Read::Value(value) if range.contains(&value) => Ok(value),
        Read::Value(_) | Read::TooLarge => Err(format!("`{text}` is out of range; give a duration {}", accepted())),
        Read::Nonsense => Err(format!("`{text}` is no duration; give one {}, as in 90, 0.5, 30s or 1m30s", accepted())),
    }
}

enum Read {
    Value(Duration),
    TooLarge,
    Nonsense,
}

fn read(text: &str) -> Read {
    if text.bytes().any(|b| b.is_ascii_digit()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return seconds(text);
    }
    match humantime::parse_duration(text) {
        Ok(value) => Read::Value(value),
        Err(humantime::DurationError::NumberOverflow) => Read::TooLarge,
        Err(_) => Read::Nonsense,
    }
}

/// Bare seconds; digits beyond nanoseconds are left out.
fn seconds(text: &str) -> Read {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.contains('.') {
        return Read::Nonsense;
    }
    let nanos = format!("{fraction:0<9}")[..9].parse().unwrap_or_default();
    match if whole.is_empty() { Ok(0) } else { whole.parse() } {
        Ok(whole) => Read::Value(Duration::new(whole, nanos)),
        Err(_) => Read::TooLarge,
    }
}

/// A bound as people would type it.
fn exact(duration: Duration) -> String {
    let hours = duration.as_secs() / 3600;
    if hours > 0 && duration == Duration::from_secs(hours * 3600) {
        return format!("{hours}h");
    }
    humantime::format_duration(duration).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::timing;

    proptest! {
        #[test]
        fn what_is_printed_reads_back(secs in 0..YEAR.as_secs(), nanos in 0..1_000_000_000_u32) {
            let time = Duration::new(secs, nanos);
            for text in [humantime::format_duration(time).to_string(), format!("{secs}.{nanos:09}")] {
                prop_assert_eq!(parse(&text, &ANY), Ok(time), "{}", text);
            }
        }

        #[test]
        fn no_text_is_too_strange(text in prop_oneof![".{0,20}", "[0-9.]{0,25}", "[0-9]{1,22}[a-zµ]{0,6} ?[0-9]{0,3}[a-z]?"]) {
            match parse(&text, &TTL) {
                Ok(time) => prop_assert!(TTL.contains(&time)),
                Err(why) => {
                    let is_named = why.starts_with(&format!("`{text}` "));
                    prop_assert!(is_named && why.contains("from 2s to 24h"), "{}", why);
                }
            }
        }
    }

    const TTL: RangeInclusive<Duration> = timing::LEAST_TTL..=timing::GREATEST_TTL;
    const ANY: RangeInclusive<Duration> = Duration::ZERO..=YEAR;

    #[test]
    fn units_and_bare_seconds_are_read() {
        for (text, ms) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("2h", 7_200_000),
            ("500ms", 500),
            ("30", 30_000),
            ("0.5", 500),
            (".5", 500),
            ("7.", 7000),
            ("0", 0),
            ("0s", 0),
            ("1.0000000000000000001", 1000),
        ] {
            assert_eq!(parse(text, &ANY), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn a_ttl_out_of_range_is_refused_with_the_range() {
        for text in ["0", "500us", "1M", "99999999999999999999s", "99999999999999999999", "1.999", "86401", "25h"] {
            let why = parse(text, &TTL).unwrap_err();
            assert!(why.contains("out of range; give a duration from 2s to 24h"), "{text}: {why}");
        }
        assert_eq!(parse("2", &TTL), Ok(timing::LEAST_TTL));
        assert_eq!(parse("24h", &TTL), Ok(timing::GREATEST_TTL));
    }

    #[test]
    fn nonsense_is_refused_with_the_range() {
        for text in ["", " ", "x", "-1", "-1s", "1e3", "1.2.3", ".", "..", "inf", "NaN", "30 seconds ago", "0x10", "+5"]
        {
            let why = parse(text, &TTL).unwrap_err();
            assert!(why.contains("no duration") && why.contains("from 2s to 24h"), "{text}: {why}");
        }
    }
}
