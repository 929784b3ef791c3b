//! One round trip for an operation, on every kind of connection, for every kind of key.

use rlock::claim::{Answer, Dropped, Renewal};
use rlock::store::Key;

use crate::kit::{TTL, ample, ask, id, key, open, renew};
use crate::servers::Server;

/// How often the server ran `command`.
fn calls(server: &Server, command: &str) -> u64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connect()).unwrap();
    let prefix = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn the_script_is_sent_once_and_again_when_it_was_lost() {
    let server = Server::start();
    let (mut store, _) = open(&server.url());
    assert!(!store.is_connected() && store.round_trip().is_none());
    assert!(matches!(store.ask(&key("k"), &ask(1, false), ample()), Ok(Answer::Granted { .. })));
    assert_eq!((calls(&server, "evalsha"), calls(&server, "eval")), (1, 1));
    assert!(store.is_connected() && store.round_trip().is_some());
    let mut other = open(&server.unix_url()).0;
    for _ in 0..3 {
        assert!(matches!(store.renew(&key("k"), &renew(1), ample()), Ok(Renewal::Renewed { restored: false, .. })));
    }
    assert!(
        matches!(other.ask(&key("k"), &ask(2, false), ample()), Ok(Answer::Busy { holders }) if holders[0].id == id(1))
    );
    assert_eq!((calls(&server, "evalsha"), calls(&server, "eval")), (5, 1));
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connect()).unwrap();
    assert!(matches!(store.renew(&key("k"), &renew(1), ample()), Ok(Renewal::Renewed { .. })));
    assert_eq!((calls(&server, "evalsha"), calls(&server, "eval")), (6, 2));
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connect()).unwrap();
    assert!(matches!(store.drop_claim(&key("k"), id(1), TTL, ample()), Ok(Dropped::Held(_))));
    // Nothing else went over the line.
    for command in ["hello", "auth", "select", "client|setinfo", "script|load"] {
        assert_eq!(calls(&server, command), 0, "{command}");
    }
}

#[test]
fn a_database_is_selected_before_anything_is_sent() {
    let server = Server::start();
    let select = |db: u8| {
        let mut redis = server.connect();
        redis::cmd("SELECT").arg(db).exec(&mut redis).unwrap();
        redis::cmd("DBSIZE").query::<u64>(&mut redis).unwrap()
    };
    for (url, db) in [(format!("{}/3", server.url()), 3), (format!("{}?db=4", server.unix_url()), 4)] {
        let (mut store, _) = open(&url);
        store.ask(&key("k"), &ask(1, false), ample()).unwrap();
        store.disconnect();
        store.renew(&key("k"), &renew(1), ample()).unwrap();
        assert!(select(db) > 0 && select(0) == 0, "{url}");
    }
    let trouble = open(&format!("{}/99", server.url())).0.ask(&key("k"), &ask(1, false), ample()).unwrap_err();
    assert!(matches!(&trouble, rlock::store::Trouble::Config(text) if text.contains("database")), "{trouble}");
}

#[test]
fn every_key_works() {
    let server = Server::start();
    let (mut store, _) = open(&server.unix_url());
    let longest = "k".repeat(512);
    let texts = ["a b", "it's \"quoted\"", "schlüssel-鍵", "{tag}", "a{b}c", "a*b?[c]\\d", &longest];
    for text in texts {
        let key = key(text);
        assert!(matches!(store.ask(&key, &ask(1, false), ample()), Ok(Answer::Granted { .. })), "{text}");
        assert_eq!(store.look(&key, ample()).unwrap().holders[0].id, id(1));
    }
    let mut listed: Vec<Key> = Vec::new();
    let mut add = |one: rlock::store::Listed| {
        listed.push(one.key);
        true
    };
    store.list(None, TTL, &mut add).unwrap();
    listed.sort();
    let mut wanted = texts.map(key).to_vec();
    wanted.sort();
    assert_eq!(listed, wanted);
    for text in texts {
        assert!(matches!(store.drop_claim(&key(text), id(1), TTL, ample()), Ok(Dropped::Held(_))), "{text}");
    }
}

#[test]
fn a_record_that_is_not_utf8_keeps_the_key_busy() {
    let server = Server::start();
    let (mut store, _) = open(&server.url());
    let mut redis = server.connect();
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    let mut value: Vec<u8> = redis::cmd("GET").arg("k").query(&mut redis).unwrap();
    let at = value.windows(3).position(|part| part == b"db1").unwrap();
    value[at] = 0xff;
    redis::cmd("SET").arg("k").arg(&value).arg("KEEPTTL").exec(&mut redis).unwrap();
    let look = store.look(&key("k"), ample()).unwrap();
    assert!(look.foreign.is_none() && look.holders[0].id == id(1), "{look:?}");
    let answer = store.ask(&key("k"), &ask(2, false), ample());
    assert!(matches!(&answer, Ok(Answer::Busy { holders }) if *holders == look.holders), "{answer:?}");
    assert!(matches!(store.ask(&key("k"), &ask(2, true), ample()), Ok(Answer::Waiting { position: 1, .. })));
    assert!(matches!(store.drop_claim(&key("k"), id(1), TTL, ample()), Ok(Dropped::Held(_))));
}
