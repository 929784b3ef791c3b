//! What holds a key and is not rlock's.

use rlock::claim::Answer;
use rlock::store::{Foreign, Store, Trouble};

use crate::kit::{ample, ask, key, open};
use crate::servers::Server;

fn run(server: &Server, command: &[&str]) {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]);
    cmd.exec(&mut server.connect()).unwrap();
}

fn seen(store: &mut dyn Store, text: &str) -> Foreign {
    store.look(&key(text), ample()).unwrap().foreign.expect(text)
}

#[test]
fn every_type_is_told_for_what_it_is() {
    let server = Server::start();
    let (mut store, _) = open(&server.url());
    let redisson = "7d1b3f0e-8f0a-4e5b-9d53-0a5a1c1f2b3c:41";
    let long = "x".repeat(5000);
    let wide = "w".repeat(100);
    for (name, command, kind, what) in [
        ("a1", &["SET", "a1", "2b8fd0a6c3f611ee8a6a0242ac120002", "PX", "60000"][..], "string", "redis-py"),
        ("a2", &["SET", "a2", "AAAAAAAAAAAAAAAAAAAAAA=="], "string", "redsync"),
        ("a3", &["SET", "a3", ""], "string", "a string of another"),
        ("a4", &["SET", "a4", r#"{"rlock":2,"more":true}"#], "string", "newer rlock"),
        ("a5", &["SET", "a5", &long], "string", "5000 bytes"),
        ("b1", &["HSET", "b1", redisson, "1"], "hash", "thread 41"),
        ("b2", &["HSET", "b2", "mode", "read", redisson, "1"], "hash", "read-write lock of Redisson's (read)"),
        ("b3", &["HSET", "b3", "f", &wide], "hash", "with 1 field"),
        ("c1", &["RPUSH", "c1", "x", "y"], "list", "2 elements"),
        ("d1", &["SADD", "d1", "x"], "set", "with 1 member"),
        ("e1", &["ZADD", "e1", "5", "__write__"], "zset", "Symfony"),
        ("e2", &["ZADD", "e2", "5", "x", "6", "y"], "zset", "2 members"),
        ("f1", &["XADD", "f1", "*", "a", "b"], "stream", "with 1 entry"),
    ] {
        run(&server, command);
        let found = seen(&mut *store, name);
        assert_eq!(found.kind, kind, "{name}");
        assert!(found.what.contains(what), "{name}: {}", found.what);
        assert!(!found.what.contains(" 1 ") || !found.what.ends_with('s'), "{name}: {}", found.what);
        assert_eq!(found.left.is_some(), name == "a1", "{name}");
        let shown = !matches!(name, "a3" | "a5" | "b3" | "c1" | "d1" | "e1" | "e2" | "f1");
        assert_eq!(found.value.is_empty(), !shown, "{name}");
        // It keeps others out, and no WRONGTYPE comes of it.
        let answer = store.ask(&key(name), &ask(1, false), ample());
        assert_eq!(answer, Ok(Answer::Busy { holders: vec![] }), "{name}");
    }
    assert_eq!(seen(&mut *store, "b1").value, format!("{redisson}=1").into_bytes());
}

#[test]
fn only_what_was_shown_is_removed() {
    let server = Server::start();
    let (mut store, _) = open(&server.url());
    for (set, change) in [
        (&["SET", "k", "x y"][..], &["SET", "k", "x z"][..]),
        (&["SET", "k", ""], &["RPUSH", "k", "x"]),
        (&["HSET", "k", "f", "1", "g", "2"], &["HSET", "k", "g", "3"]),
        (&["HSET", "k", "f", "1"], &["HSET", "k", "g", "3"]),
        (&["HSET", "k", "f", "1", "g", "2"], &["HDEL", "k", "g"]),
    ] {
        run(&server, &["DEL", "k"]);
        run(&server, set);
        let shown = seen(&mut *store, "k");
        if change[0] == "RPUSH" {
            run(&server, &["DEL", "k"]);
        }
        run(&server, change);
        assert_eq!(store.remove_foreign(&key("k"), &shown, ample()), Ok(false), "{change:?}");
        assert!(store.look(&key("k"), ample()).unwrap().foreign.is_some());
        run(&server, &["DEL", "k"]);
        run(&server, set);
        assert_eq!(store.remove_foreign(&key("k"), &shown, ample()), Ok(true), "{set:?}");
        assert!(store.look(&key("k"), ample()).unwrap().is_free());
        assert_eq!(store.remove_foreign(&key("k"), &shown, ample()), Ok(false));
    }
    let long = "x".repeat(5000);
    for set in [&["RPUSH", "k", "x"][..], &["SET", "k", &long], &["HSET", "k", "f", &long]] {
        run(&server, &["DEL", "k"]);
        run(&server, set);
        let shown = seen(&mut *store, "k");
        assert!(shown.seen.is_empty());
        let trouble = store.remove_foreign(&key("k"), &shown, ample()).unwrap_err();
        assert!(matches!(&trouble, Trouble::Config(text) if text.contains("redis-cli")), "{trouble}");
    }
}
