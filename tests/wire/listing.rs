//! Looking at keys and finding them.

use std::time::Duration;

use rlock::claim::{Answer, Entry, Limit};
use rlock::store::redis::script::{Call, entry_text};
use rlock::store::{Listed, Store, Trouble};

use crate::kit::{TTL, ample, ask, id, key, open};
use crate::servers::Server;

const STEP: Duration = Duration::from_secs(10);

fn names(store: &mut dyn Store, pattern: Option<&str>) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |one: Listed| {
        names.push(one.key.to_string());
        true
    };
    store.list(pattern, STEP, &mut add).unwrap();
    names.sort();
    names
}

#[test]
fn a_look_shows_holders_waiters_and_marks() {
    let server = Server::start();
    let (mut store, cancel) = open(&server.url());
    let free = store.look(&key("k"), ample()).unwrap();
    assert!(free.is_free() && free.queue.is_empty() && free.number == 0 && free.now_ms > 1_700_000_000_000);
    let Ok(Answer::Granted { number, .. }) = store.ask(&key("k"), &ask(1, false), ample()) else { panic!() };
    for bits in 2..5 {
        store.ask(&key("k"), &ask(bits, true), ample()).unwrap();
    }
    store.condemn(&key("k"), id(1), TTL, ample()).unwrap();
    let look = store.look(&key("k"), ample()).unwrap();
    assert_eq!((look.holders.len(), look.holders[0].id, look.number), (1, id(1), number));
    assert_eq!(look.holders[0].record, r#""host":"db1","pid":7"#);
    assert_eq!(look.queue.iter().map(|entry| entry.id).collect::<Vec<_>>(), [id(2), id(3), id(4)]);
    assert_eq!(look.condemned, [id(1)]);
    // Several holders stand beside the key.
    for bits in [5, 6] {
        let shared = rlock::claim::Ask { limit: Limit::SHARED, ..ask(bits, false) };
        store.ask(&key("s"), &shared, ample()).unwrap();
    }
    assert_eq!(store.look(&key("s"), ample()).unwrap().holders.len(), 2);
    // Without its holders the mark is what it is, and is not removed by hand.
    redis::cmd("DEL").arg("s:rlock1:holders:{s}").exec(&mut server.connect()).unwrap();
    let lost = store.look(&key("s"), ample()).unwrap().foreign.unwrap();
    assert!(lost.what.contains("lost") && lost.seen.is_empty() && lost.left.is_some());
    cancel.fire();
    assert_eq!(store.look(&key("k"), ample()), Err(Trouble::Interrupted));
}

#[test]
fn what_has_run_out_is_left_out() {
    let server = Server::start();
    let (mut store, _) = open(&server.url());
    let now_ms = store.look(&key("k"), ample()).unwrap().now_ms;
    let text = |bits, until_ms| {
        let (limit, process, record) = (Limit::EXCLUSIVE, true, String::new());
        let entry = Entry { id: id(bits), limit, process, number: 5, since_ms: 1, until_ms, ttl_ms: 1, record };
        entry_text(&entry)
    };
    let mut put = redis::pipe();
    put.cmd("SET").arg("k").arg(text(1, now_ms - 1)).ignore();
    for (bits, until_ms) in [(2, now_ms - 1), (3, now_ms + 60_000)] {
        put.cmd("ZADD").arg("k:rlock1:queue:{k}").arg(bits).arg(id(bits).to_string()).ignore();
        put.cmd("HSET").arg("k:rlock1:waiters:{k}").arg(id(bits).to_string()).arg(text(bits, until_ms)).ignore();
    }
    put.exec(&mut server.connect()).unwrap();
    let look = store.look(&key("k"), ample()).unwrap();
    assert!(look.is_free() && look.queue.len() == 1 && look.queue[0].id == id(3), "{look:?}");
    // A mark that has run out marks nobody.
    let mut put = redis::pipe();
    put.cmd("SET").arg("k").arg(text(1, now_ms + 60_000)).ignore();
    put.cmd("ZADD").arg("k:rlock1:gone:{k}").arg(now_ms - 1).arg(format!("c:{}", id(1))).ignore();
    put.exec(&mut server.connect()).unwrap();
    let look = store.look(&key("k"), ample()).unwrap();
    assert!(look.holders.len() == 1 && look.condemned.is_empty(), "{look:?}");
}

#[test]
fn ten_thousand_waiters_are_seen() {
    let server = Server::start();
    let (mut store, _) = open(&server.url());
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    let record = format!(r#""label":"{}""#, "x".repeat(1000));
    let mut fill = redis::pipe();
    for bits in 2..10_002 {
        let mut waiter = ask(bits, true);
        waiter.record.clone_from(&record);
        fill.add_command(Call::ask(&key("k"), &waiter).by_name()).ignore();
    }
    fill.exec(&mut server.connect()).unwrap();
    let look = store.look(&key("k"), ample()).unwrap();
    assert_eq!((look.queue.len(), look.queue[9_999].id), (10_000, id(10_001)));
}

#[test]
fn three_locks_among_a_hundred_thousand_foreign_keys() {
    let server = Server::start();
    let mut fill = redis::pipe();
    for n in 0..100_000 {
        fill.cmd("SET").arg(format!("app:{n}")).arg("x").ignore();
    }
    fill.exec(&mut server.connect()).unwrap();
    let (mut store, cancel) = open(&server.url());
    for text in ["job:a", "job:b", "other"] {
        store.ask(&key(text), &ask(1, false), ample()).unwrap();
    }
    // Neither what is free again, nor what only looks like one of ours.
    store.ask(&key("job:free"), &ask(1, false), ample()).unwrap();
    store.drop_claim(&key("job:free"), id(1), TTL, ample()).unwrap();
    redis::cmd("SET").arg("x:rlock1:token").arg(1).exec(&mut server.connect()).unwrap();
    assert_eq!(names(&mut *store, None), ["job:a", "job:b", "other"]);
    assert_eq!(names(&mut *store, Some("job:?")), ["job:a", "job:b"]);
    assert_eq!(names(&mut *store, Some("*")), ["job:a", "job:b", "other"]);
    assert_eq!(names(&mut *store, Some("job:*:*")), [""; 0]);
    let mut count = 0;
    let mut stop = |_| {
        count += 1;
        false
    };
    store.list(None, STEP, &mut stop).unwrap();
    assert_eq!(count, 1);
    // A key that is held by something else counts, where a lock was there before.
    store.drop_claim(&key("other"), id(1), TTL, ample()).unwrap();
    redis::cmd("SET").arg("other").arg("x").exec(&mut server.connect()).unwrap();
    assert_eq!(names(&mut *store, Some("o*")), ["other"]);
    cancel.fire();
    assert_eq!(store.list(None, STEP, &mut |_| true), Err(Trouble::Interrupted));
}
