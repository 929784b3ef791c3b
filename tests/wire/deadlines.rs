//! No request outlives its instant, whatever the peer does, and a cancel ends it at once.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use rlock::claim::{Answer, Dropped};
use rlock::clock::Boot;
use rlock::store::{Store, Trouble};

use crate::kit::{Proxy, TTL, after, ample, ask, id, key, open, renew, until};
use crate::servers::Server;

/// What a machine under load may add. Far less than what a limit for each read would.
const TOLERANCE: Duration = Duration::from_millis(400);

/// Runs `request` with a limit of 300 ms and holds it to that.
fn ends_in_time<T: std::fmt::Debug>(
    store: &mut dyn Store,
    request: impl FnOnce(&mut dyn Store, Boot) -> Result<T, Trouble>,
) -> Trouble {
    let by = after(300);
    let trouble = request(store, by).expect_err("there is no answer");
    let now = Boot::now();
    assert!(now >= by && now.since(by) < TOLERANCE, "{:?} late: {trouble}", now.since(by));
    trouble
}

#[test]
fn a_peer_that_drips_a_byte_at_a_time() {
    let server = Server::start();
    let proxy = Proxy::before(server.port(), Some(Duration::from_millis(30)));
    let (mut store, _) = open(&proxy.url);
    let trouble = ends_in_time(&mut *store, |store, by| store.ask(&key("k"), &ask(1, false), by));
    assert!(matches!(&trouble, Trouble::Unknown(text) if text.contains("did not answer in time")), "{trouble}");
    assert!(!store.is_connected());
    let trouble = ends_in_time(&mut *store, |store, by| store.look(&key("k"), by));
    assert!(matches!(trouble, Trouble::Unknown(_)), "{trouble}");
}

#[test]
fn a_peer_that_accepts_and_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for login in ["", ":pw@"] {
        let (mut store, _) = open(&format!("redis://{login}{}", listener.local_addr().unwrap()));
        ends_in_time(&mut *store, |store, by| store.renew(&key("k"), &renew(1), by));
        ends_in_time(&mut *store, |store, by| store.list(None, by.left(), &mut |_| true));
    }
}

#[test]
fn a_server_that_is_frozen_during_a_request_and_goes_on() {
    let server = Server::start();
    let by_name = format!("redis://localhost:{}", server.port());
    for url in [server.url(), by_name, server.unix_url()] {
        let (mut store, _) = open(&url);
        assert!(matches!(store.ask(&key("k"), &ask(1, false), ample()), Ok(Answer::Granted { .. })));
        server.freeze();
        ends_in_time(&mut *store, |store, by| store.renew(&key("k"), &renew(1), by));
        assert!(!store.is_connected());
        ends_in_time(&mut *store, |store, by| store.renew(&key("k"), &renew(1), by));
        server.thaw();
        store.renew(&key("k"), &renew(1), ample()).unwrap();
        assert!(store.is_connected());
    }
}

#[test]
fn nobody_there() {
    let server = Server::start();
    let (url, socket) = (server.url(), server.unix_url());
    drop(server);
    for url in [url, socket, "redis://no-such-host.invalid".into()] {
        let (mut store, _) = open(&url);
        let by = after(3000);
        let trouble = store.ask(&key("k"), &ask(1, false), by).unwrap_err();
        assert!(matches!(&trouble, Trouble::Unknown(text) if text.contains("cannot be reached")), "{trouble}");
        assert!(Boot::now() < by + TOLERANCE);
    }
}

#[test]
fn a_cancel_ends_a_request_and_a_wait_at_once() {
    let server = Server::start();
    let (mut store, cancel) = open(&server.url());
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    let waits = |store: &mut dyn Store| store.wait(&key("k"), id(1), ample()).map(drop);
    let asks = |store: &mut dyn Store| store.ask(&key("k"), &ask(1, false), ample()).map(drop);
    for frozen in [false, true] {
        if frozen {
            server.freeze();
        }
        let firing = cancel.clone();
        let later = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            firing.fire();
            Boot::now()
        });
        let result = if frozen { asks(&mut *store) } else { waits(&mut *store) };
        assert_eq!(result, Err(Trouble::Interrupted));
        let ended = Boot::now();
        assert!(ended.since(later.join().unwrap()) < TOLERANCE);
        // Until it is cleared, nothing goes.
        assert_eq!(store.renew(&key("k"), &renew(1), ample()), Err(Trouble::Interrupted));
        server.thaw();
        cancel.clear();
        store.renew(&key("k"), &renew(1), ample()).unwrap();
    }
}

#[test]
fn a_wait_ends_with_its_time_and_keeps_the_connection() {
    let server = Server::start();
    let (mut store, _) = open(&server.url());
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    for ms in [5, 150, 400, 1000] {
        let by = after(ms);
        assert_eq!(store.wait(&key("k"), id(1), by), Ok(false));
        assert!(by.left().is_zero() && Boot::now().since(by) < TOLERANCE);
        assert!(store.is_connected(), "after {ms} ms");
    }
    assert!(store.round_trip().unwrap() < Duration::from_millis(300), "a wait is no round trip");
    // A server that is gone: nobody listens, and that is told at once.
    drop(server);
    let by = ample();
    assert!(matches!(store.wait(&key("k"), id(1), by), Err(Trouble::Unknown(_))));
    assert!(!by.left().is_zero());
}

#[test]
fn a_wait_hears_of_the_grant_and_of_the_condemnation() {
    let server = Server::start();
    let (mut holder, _) = open(&server.url());
    let (mut waiter, _) = open(&server.unix_url());
    holder.ask(&key("k"), &ask(1, false), ample()).unwrap();
    assert!(matches!(waiter.ask(&key("k"), &ask(2, true), ample()), Ok(Answer::Waiting { position: 1, .. })));
    let waiting = thread::spawn(move || {
        let by = ample();
        (waiter.wait(&key("k"), id(2), by), by, waiter)
    });
    until("the waiter blocks", || blocked(&server) == 1);
    assert!(matches!(holder.drop_claim(&key("k"), id(1), TTL, ample()), Ok(Dropped::Held(_))));
    let (woken, by, mut waiter) = waiting.join().unwrap();
    assert_eq!(woken, Ok(true));
    assert!(!by.left().is_zero());
    assert!(matches!(waiter.ask(&key("k"), &ask(2, true), ample()), Ok(Answer::Granted { .. })));
    // A wake-up that came before the wait is not lost.
    holder.condemn(&key("k"), id(2), TTL, ample()).unwrap();
    assert_eq!(waiter.wait(&key("k"), id(2), ample()), Ok(true));
}

#[test]
fn a_drop_does_not_queue_behind_a_wait() {
    let server = Server::start();
    let (mut store, cancel) = open(&server.url());
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        cancel.fire();
        thread::sleep(Duration::from_millis(50));
        cancel.clear();
    });
    assert_eq!(store.wait(&key("k"), id(1), after(60_000)), Err(Trouble::Interrupted));
    thread::sleep(Duration::from_millis(100));
    assert!(matches!(store.drop_claim(&key("k"), id(1), TTL, ample()), Ok(Dropped::Held(_))));
}

#[test]
fn an_ask_that_a_frozen_server_carries_out_later_leaves_no_ghost() {
    let server = Server::start();
    let (mut other, _) = open(&server.unix_url());
    // With the proxy closed the drop finds no new connection: the one that carries the ask must carry it too.
    for closed in [false, true] {
        let proxy = Proxy::before(server.port(), None);
        let (mut store, _) = open(&proxy.url);
        store.look(&key("k"), ample()).unwrap();
        other.renew(&key("x"), &renew(9), ample()).unwrap();
        server.freeze();
        let bits = 1 + u128::from(closed);
        ends_in_time(&mut *store, |store, by| store.ask(&key("k"), &ask(bits, true), by));
        if closed {
            proxy.close();
        }
        assert!(matches!(store.drop_claim(&key("k"), id(bits), TTL, after(300)), Err(Trouble::Unknown(_))));
        drop(store);
        server.thaw();
        let mut redis = server.connect();
        until("the drop has come", || {
            let mut tombstone = redis::cmd("ZSCORE");
            tombstone.arg("k:rlock1:gone:{k}").arg(id(bits).to_string());
            tombstone.query::<Option<String>>(&mut redis).unwrap().is_some()
        });
        assert!(other.look(&key("k"), ample()).unwrap().is_free());
        let granted = other.ask(&key("k"), &ask(7 + bits, false), ample());
        assert!(matches!(granted, Ok(Answer::Granted { .. })), "{granted:?}");
        other.drop_claim(&key("k"), id(7 + bits), TTL, ample()).unwrap();
    }
}

#[test]
fn a_server_that_was_started_again_is_found_by_the_next_request() {
    let mut server = Server::start();
    let (mut store, _) = open(&server.url());
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    server.restart();
    assert!(matches!(store.ask(&key("k"), &ask(1, false), ample()), Ok(Answer::Granted { .. })));
}

fn blocked(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO").arg("clients").query(&mut server.connect()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("blocked_clients:")).unwrap();
    line.trim().parse().unwrap()
}
