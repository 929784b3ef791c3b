//! What is parsed and written again, in this process: thousands of cases where a process for each would be hundreds.

use std::ffi::OsStr;

use proptest::prelude::*;
use rlock::claim::{ClaimId, Entry, Limit};
use rlock::nest::Nest;
use rlock::report::Who;
use rlock::store::redis::script::{Stored, entry_text, key_of, parse_entry, side_key};
use rlock::store::{Key, Url};

use crate::strange::{SECRET, config, entry, is_fit_to_be_said, spoilt};

fn url() -> impl Strategy<Value = String> {
    let form = format!(
        "(redis|valkey|unix|local|redis\\+unix|rediss|etcd|x)?:?(//)?([a-z%0-9]{{0,5}}:{SECRET}@)?\\[?[a-z0-9:/.?=&%#-]{{0,20}}\\]?\
         (@|:|/|#)?([a-z?]{{0,4}}(pass=)?{SECRET})?"
    );
    let form = proptest::string::string_regex(&form).unwrap().prop_map(String::into_bytes);
    prop_oneof![1 => any::<String>(), 9 => spoilt(form).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())]
}

proptest! {
    #![proptest_config(config(10_000))]

    #[test]
    fn a_url_is_a_place_or_told_without_its_secret(text in url()) {
        match Url::parse(&text) {
            Ok(url) => {
                let name = url.name();
                // Where no host stands before it, what looks like a login is part of a path, and paths are shown.
                let has_login = text.contains(&format!(":{SECRET}@")) && !text.contains("local") && !text.contains("unix");
                // A host that is called like it is no secret.
                let has_login = has_login && text.matches(SECRET).count() == 1;
                prop_assert!(!(has_login && name.contains(SECRET)), "{name}");
                // What is shown can be typed, but for what must be encoded in a path.
                if !name.contains(['%', '?', '#', ' ', '\\']) && !name.contains(char::is_control) {
                    prop_assert_eq!(Url::parse(&name).map(|again| again.name()), Ok(name));
                }
            }
            Err(why) => {
                is_fit_to_be_said(&why);
                prop_assert!(!why.contains(char::is_control));
            }
        }
    }

    #[test]
    fn a_key_is_itself_and_its_side_keys_are_its_own(text in prop_oneof![".{0,30}", "[a-c{}:]{0,12}(:rlock1)?[:{}a]{0,3}"]) {
        match Key::parse(&text) {
            Ok(key) => {
                prop_assert_eq!(key.as_str(), &text);
                for name in ["token", "queue"] {
                    prop_assert_eq!(key_of(&side_key(&key, name), name), Some(key.clone()));
                }
            }
            Err(why) => prop_assert!(!why.is_empty() && !why.contains(char::is_control)),
        }
        // Whatever else is among a server's keys.
        let _ = key_of(&text, "token");
    }

    #[test]
    fn an_entry_survives_its_text(
        (bits, limit, process) in (any::<u128>(), any::<u32>(), any::<bool>()),
        numbers in [0..1_u64 << 53, 0..1 << 53, 0..1 << 53, 0..1 << 53],
        record in prop_oneof![Just(String::new()), "\"[a-z]{1,5}\":.{0,60}"],
    ) {
        let [number, since_ms, until_ms, ttl_ms] = numbers;
        let (id, limit) = (ClaimId::from_bits(bits), Limit::of(limit));
        let entry = Entry { id, limit, process, number, since_ms, until_ms, ttl_ms, record };
        prop_assert_eq!(parse_entry(&entry_text(&entry)), Some(entry));
    }

    #[test]
    fn no_text_of_an_entry_is_too_strange(bytes in prop_oneof![spoilt(entry()), proptest::collection::vec(any::<u8>(), 0..99)]) {
        if let Stored::Holder(entry) = Stored::of(&bytes) {
            let text = entry_text(&entry);
            prop_assert_eq!(Some(*entry.clone()), parse_entry(&text));
            let shown = Who::from_members(&entry.record).shown();
            prop_assert!(!shown.is_empty() && !shown.contains(char::is_control));
        }
    }

    #[test]
    fn the_claims_around_a_run_are_passed_on(text in "([0-9a-f]{31,33}@[^,]{0,9},?|.{0,9},?){0,6}", bits: u128) {
        let (id, key) = (ClaimId::from_bits(bits), Key::parse("a b,c").unwrap());
        let value = Nest::read(Some(OsStr::new(&text))).with(id, &key);
        let nest = Nest::read(Some(OsStr::new(&value)));
        prop_assert!(nest.has(id));
        // Nothing is lost and nothing comes twice on the way down.
        let again = nest.with(id, &key);
        prop_assert_eq!(again.strip_prefix(&value).map(|rest| rest.split(',').count()), Some(2), "{} {}", value, again);
    }
}
