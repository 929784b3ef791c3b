//! What strangers say: bytes that a server could answer, values that could stand in a store, files and words that could be
//! given to rlock. No panic, no hang, no memory without bound; what is said is one line without control characters and
//! without a password.
//!
//! `PROPTEST_CASES=100000 cargo test --test fuzz` makes more of them; a failure shows the shortest case that was found.
//! `cfg(test)` tells clippy that the helpers are tests too.

#![allow(clippy::duplicate_mod, reason = "the harness of the other tests, each of which needs a part of it")]

#[cfg(test)]
#[path = "../wire/kit.rs"]
#[allow(dead_code, reason = "shared with tests that need another part of it")]
mod kit;
#[cfg(test)]
mod lines;
#[path = "../store/local/record.rs"]
#[allow(dead_code, reason = "shared with tests that need another part of it")]
mod record;
#[cfg(test)]
mod replies;
#[path = "../store/servers.rs"]
mod servers;
#[cfg(test)]
mod stored;

#[cfg(test)]
mod words;

#[cfg(test)]
mod strange {
    //! Makers of strange things.

    use proptest::collection::vec;
    use proptest::prelude::*;

    /// As many cases as take a second or two, `share` being how many of the usual 256 that is in thousandths.
    pub(crate) fn config(share: u32) -> ProptestConfig {
        let usual = ProptestConfig::default();
        let cases = u32::try_from(u64::from(usual.cases) * u64::from(share) / 1000).unwrap_or(u32::MAX).max(1);
        ProptestConfig { cases, failure_persistence: None, ..usual }
    }

    /// A password that must never be seen.
    pub(crate) const SECRET: &str = "hunter2x";

    /// Bytes that were changed: cut off, turned, doubled or put in.
    pub(crate) fn spoilt(whole: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
        let change = (any::<prop::sample::Index>(), 0..5_u8, any::<u8>());
        (whole, vec(change, 0..3)).prop_map(|(mut bytes, changes)| {
            for (at, how, byte) in changes {
                let at = at.index(bytes.len() + 1);
                match how {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, byte),
                    2 if at < bytes.len() => bytes[at] ^= 1 << (byte % 8),
                    3 if at < bytes.len() => drop(bytes.remove(at)),
                    4 => bytes.extend_from_within(at..),
                    _ => {}
                }
            }
            bytes
        })
    }

    /// Numbers at the borders of what fits somewhere.
    pub(crate) fn number() -> impl Strategy<Value = i128> {
        prop_oneof![
            -3..10_i128,
            Just(i128::from(u32::MAX)),
            Just(1 << 53),
            Just(i128::from(i64::MAX)),
            Just(i128::from(u64::MAX)),
            any::<i64>().prop_map(i128::from),
            1_700_000_000_000..1_900_000_000_000_i128,
        ]
    }

    /// The text of an entry, as a server keeps it, with strange numbers.
    pub(crate) fn entry() -> impl Strategy<Value = Vec<u8>> {
        let id = prop_oneof![3 => 0..4_u128, 1 => any::<u128>()];
        let record = prop_oneof![Just(String::new()), Just(r#","host":"db1","pid":7"#.to_owned()), ".{0,40}"];
        (id, vec(number(), 6), record).prop_map(|(id, numbers, record)| {
            let [limit, process, token, since, until, ttl] = numbers[..] else { unreachable!() };
            format!(
                r#"{{"rlock":1,"id":"{id:032x}","limit":{limit},"process":{process},"token":{token},"since_ms":{since},"until_ms":{until},"ttl_ms":{ttl}{record}}}"#
            )
            .into_bytes()
        })
    }

    /// What is said to people: one line, nothing hidden, no secret.
    #[track_caller]
    pub(crate) fn is_fit_to_be_said(text: &str) {
        assert!(!text.contains(SECRET), "{text:?}");
        is_one_short_line(text);
    }

    /// The same where the secret was never given, and is only what a stranger says.
    #[track_caller]
    pub(crate) fn is_one_short_line(text: &str) {
        assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
        // It is said in its escaped form, which must not blow it up.
        let said = rlock::text::escape(text);
        assert!(said.chars().count() < 2000, "{} characters: {said:.200}", said.chars().count());
    }
}
