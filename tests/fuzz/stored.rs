//! What could stand in a store: of another program, of another version, or spoilt.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use rlock::store::{Store, Trouble};
use serde_json::Value;

use crate::kit::{TTL, after, ample, ask, id, key, open, renew};
use crate::record;
use crate::servers::Server;
use crate::strange::{config, entry, is_fit_to_be_said, number, spoilt};

/// Every operation, and what was wrong with each.
fn every_operation(store: &mut dyn Store) -> Vec<(&'static str, Trouble)> {
    let key = key("k");
    let mut all = Vec::new();
    let mut note = |what, trouble: Option<Trouble>| all.extend(trouble.map(|trouble| (what, trouble)));
    note("look", store.look(&key, ample()).err());
    note("ask", store.ask(&key, &ask(1, true), ample()).err());
    note("ask again", store.ask(&key, &ask(2, false), ample()).err());
    note("renew", store.renew(&key, &renew(1), ample()).err());
    note("renew another", store.renew(&key, &renew(3), ample()).err());
    note("wait", store.wait(&key, id(1), after(1)).err());
    note("condemn", store.condemn(&key, id(2), TTL, ample()).err());
    note("finish", store.finish(&key, id(1), TTL, TTL, ample()).err());
    note("list", store.list(None, TTL, &mut |_| true).err());
    note("drop", store.drop_claim(&key, id(1), TTL, ample()).err());
    note("look again", store.look(&key, ample()).err());
    all
}

/// One command that puts something strange into one of the lock's keys.
fn put() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let side = |name: &str| format!("k:rlock1:{name}:{{k}}");
    let text = || prop_oneof![4 => spoilt(entry()), 1 => vec(any::<u8>(), 0..60), 1 => Just(rlock::store::redis::script::MARKER.as_bytes().to_vec())];
    let claim = || prop_oneof![3 => (0..4_u128).prop_map(|bits| format!("{bits:032x}")), 1 => (0..4_u128).prop_map(|bits| format!("c:{bits:032x}")), 1 => ".{0,40}"];
    let end = |start: Vec<Vec<u8>>, last: Vec<u8>| start.into_iter().chain([last]).collect::<Vec<_>>();
    prop_oneof![
        4 => text().prop_map(move |text| end(words(&["SET", "k"]), text)),
        1 => Just(words(&["SET", "k", rlock::store::redis::script::MARKER])),
        3 => (prop::sample::select(vec!["waiters", "holders"]), claim(), text())
            .prop_map(move |(name, id, text)| end(words(&["HSET", &side(name), &id]), text)),
        3 => (prop::sample::select(vec!["queue", "gone"]), number(), claim())
            .prop_map(move |(name, score, id)| words(&["ZADD", &side(name), &score.to_string(), &id])),
        2 => prop_oneof![number().prop_map(|number| number.to_string()), ".{0,20}"]
            .prop_map(move |number| words(&["SET", &side("token"), &number])),
    ]
}

proptest! {
    #![proptest_config(config(600))]

    /// A server's keys with values that nobody wrote: rlock says what it makes of them, and its script never breaks off.
    #[test]
    fn no_value_of_a_server_is_too_strange(puts in vec(put(), 1..6)) {
        thread_local!(static SERVER: Server = Server::start());
        SERVER.with(|server| {
            let mut redis = server.connect();
            redis::cmd("FLUSHALL").exec(&mut redis).unwrap();
            for words in &puts {
                // Two of them may not go together.
                let _ = redis::cmd(std::str::from_utf8(&words[0]).unwrap()).arg(&words[1..]).exec(&mut redis);
            }
            let (mut store, _) = open(&server.unix_url());
            let troubles = every_operation(&mut *store);
            assert!(troubles.is_empty(), "{troubles:?}");
        });
    }
}

/// A key's record in a directory of its own, held by one claim and waited for by another.
fn local() -> (tempfile::TempDir, PathBuf, String) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("locks");
    fs::DirBuilder::new().mode(0o700).create(&root).unwrap();
    let url = format!("local:{}", root.display());
    let (mut store, _) = open(&url);
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    store.ask(&key("k"), &ask(2, true), ample()).unwrap();
    store.condemn(&key("k"), id(3), TTL, ample()).unwrap();
    (dir, root.join("keys/k"), url)
}

/// Every number in it.
fn numbers(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Number(_) => vec![value],
        Value::Array(all) => all.iter_mut().flat_map(numbers).collect(),
        Value::Object(all) => all.values_mut().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

fn survives(url: &str, folder: &Path) {
    let (mut store, _) = open(url);
    for (what, trouble) in every_operation(&mut *store) {
        is_fit_to_be_said(&trouble.to_string());
        assert!(matches!(trouble, Trouble::Config(_)), "{what}: {trouble:?} in {}", folder.display());
    }
}

proptest! {
    #![proptest_config(config(600))]

    /// A record that is whole, and says what nobody would have written.
    #[test]
    fn no_record_is_too_strange(changes in vec((any::<prop::sample::Index>(), number()), 1..4)) {
        let (_dir, folder, url) = local();
        record::change(&folder, |record| {
            for (at, number) in &changes {
                let mut all = numbers(record);
                let at = at.index(all.len());
                *all[at] = u64::try_from(*number).map_or(Value::Null, Value::from);
            }
        });
        survives(&url, &folder);
    }

    /// Files that are not whole.
    #[test]
    fn no_file_is_too_broken(
        which in 0..3_usize,
        noise in prop::option::weighted(0.2, vec(any::<u8>(), 0..200)),
        at: prop::sample::Index,
        bit in 0..8_u8,
        cut: bool,
    ) {
        let (_dir, folder, url) = local();
        for name in [&["a"][..], &["b"], &["a", "b"]][which] {
            let path = folder.join(name);
            let mut bytes = fs::read(&path).unwrap();
            // Beyond the text stand zeros that nobody reads.
            let at = at.index(600.min(bytes.len()));
            match &noise {
                Some(noise) => bytes.clone_from(noise),
                None if cut => bytes.truncate(at),
                None => bytes[at] ^= 1 << bit,
            }
            fs::write(&path, bytes).unwrap();
        }
        survives(&url, &folder);
    }
}
