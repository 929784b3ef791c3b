//! The script as the server sees it: what it may touch, what it needs, what it leaves.

use redis::{Cmd, Connection, RedisResult, Value};
use rlock::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Limit, Renew, Renewal};
use rlock::store::Key;
use rlock::store::redis::script::{self, Call};

use crate::servers::Server;

const FIRST: ClaimId = ClaimId::from_bits(1);
const SECOND: ClaimId = ClaimId::from_bits(2);

fn job() -> Key {
    Key::parse("job:backup").expect("a key")
}

fn ask(id: ClaimId, limit: Limit) -> Ask {
    Ask { id, limit, ttl_ms: 30_000, process: true, wait: true, record: r#""host":"db1""#.into() }
}

fn renew(id: ClaimId) -> Renew {
    let record = String::new();
    Renew { id, limit: Limit::EXCLUSIVE, ttl_ms: 30_000, process: true, number: None, record }
}

fn run(connection: &mut Connection, call: &Call) -> RedisResult<Value> {
    call.by_text().query(connection)
}

fn set(connection: &mut Connection, words: &[&str]) {
    let mut command = Cmd::new();
    command.arg(words).exec(connection).unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

fn answer(reply: RedisResult<Value>) -> Answer {
    script::read_answer(&reply.expect("an answer")).expect("sense").answer
}

/// One of each operation on `key`, with a hand-over and shared holders.
fn everything(connection: &mut Connection, key: &Key) {
    let granted = answer(run(connection, &Call::ask(key, &ask(FIRST, Limit::EXCLUSIVE))));
    assert!(matches!(granted, Answer::Granted { number: 1_700_000_000_000_000.., left_ms: 30_000 }), "{granted:?}");
    let waiting = answer(run(connection, &Call::ask(key, &ask(SECOND, Limit::SHARED))));
    assert!(matches!(waiting, Answer::Waiting { position: 1, .. }), "{waiting:?}");
    let renewed = run(connection, &Call::renew(key, &renew(FIRST))).expect("an answer");
    assert_eq!(
        script::read_renewal(&renewed).expect("sense").answer,
        Renewal::Renewed { left_ms: 30_000, restored: false }
    );
    let condemned = run(connection, &Call::condemn(key, FIRST, 30_000)).expect("an answer");
    let condemned = script::read_condemnation(&condemned).expect("sense").answer;
    assert!(matches!(condemned, Condemnation::Marked { .. }), "{condemned:?}");
    let dropped = run(connection, &Call::drop_claim(key, FIRST, 30_000)).expect("an answer");
    assert!(matches!(script::read_dropped(&dropped).expect("sense").answer, Dropped::Held(_)));
    for id in [FIRST, SECOND] {
        let woken: u64 = redis::cmd("LLEN").arg(script::wake_key(key, id)).query(connection).expect("LLEN");
        assert_eq!(woken, 1, "{id}");
    }
    let events: u64 = redis::cmd("XLEN").arg(script::side_key(key, "log")).query(connection).expect("XLEN");
    assert_eq!(events, 4, "acquired, condemned, released, acquired");
    let finished = run(connection, &Call::finish(key, SECOND, 0, 30_000)).expect("an answer");
    assert!(matches!(script::read_renewal(&finished).expect("sense").answer, Renewal::Renewed { left_ms: 0, .. }));
    let left: u64 = redis::cmd("EXISTS").arg(key.as_str()).query(connection).expect("EXISTS");
    assert_eq!(left, 0);
}

#[test]
fn it_needs_no_more_than_the_keys_of_its_lock() {
    let server = Server::start();
    let mut connection = server.connect();
    let commands = "+eval +time +type +strlen +get +set +del +pttl +pexpire +pexpireat +hget +hset +hdel +hvals +zadd \
                    +zrem +zrank +zscore +zcard +zrange +zrevrange +zremrangebyscore +rpush +xadd +llen +xlen +exists";
    let mut words = vec!["ACL", "SETUSER", "default", "resetkeys", "~job:*", "-@all"];
    words.extend(commands.split_whitespace());
    set(&mut connection, &words);
    everything(&mut connection, &job());
    everything(&mut connection, &Key::parse("job:{tag}").expect("a key"));
    let refused = run(&mut connection, &Call::ask(&Key::parse("other").expect("a key"), &ask(FIRST, Limit::SHARED)));
    assert_eq!(refused.expect_err("no right").code(), Some("NOPERM"));
}

#[test]
fn a_refused_log_or_wake_up_undoes_nothing() {
    let server = Server::start();
    let mut connection = server.connect();
    set(&mut connection, &["ACL", "SETUSER", "default", "-xadd", "-rpush"]);
    run(&mut connection, &Call::ask(&job(), &ask(FIRST, Limit::EXCLUSIVE))).expect("granted");
    run(&mut connection, &Call::ask(&job(), &ask(SECOND, Limit::EXCLUSIVE))).expect("waiting");
    run(&mut connection, &Call::drop_claim(&job(), FIRST, 30_000)).expect("dropped");
    let granted = answer(run(&mut connection, &Call::ask(&job(), &ask(SECOND, Limit::EXCLUSIVE))));
    assert!(matches!(granted, Answer::Granted { .. }), "{granted:?}");
}

#[test]
fn it_runs_in_a_cluster() {
    let server = Server::with(&["cluster-enabled yes"]);
    let mut connection = server.connect();
    set(&mut connection, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let until = rlock::clock::Boot::now() + std::time::Duration::from_secs(10);
    loop {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection).expect("CLUSTER INFO");
        if info.contains("cluster_state:ok") {
            break;
        }
        assert!(!until.left().is_zero(), "{info}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    for key in ["job:backup", "a{b}c", "{tag}", "it's \"ü\""] {
        everything(&mut connection, &Key::parse(key).expect("a key"));
    }
}

#[test]
fn renew_and_drop_pass_when_memory_is_out() {
    let server = Server::start();
    let mut connection = server.connect();
    run(&mut connection, &Call::ask(&job(), &ask(FIRST, Limit::EXCLUSIVE))).expect("granted");
    run(&mut connection, &Call::ask(&job(), &ask(SECOND, Limit::EXCLUSIVE))).expect("waiting");
    set(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    let refused = redis::cmd("SET").arg("other").arg(1).exec(&mut connection).expect_err("no memory");
    assert_eq!(refused.code(), Some("OOM"));
    run(&mut connection, &Call::renew(&job(), &renew(FIRST))).expect("renewed");
    run(&mut connection, &Call::drop_claim(&job(), FIRST, 30_000)).expect("dropped");
    let value: String = redis::cmd("GET").arg("job:backup").query(&mut connection).expect("GET");
    assert_eq!(script::parse_entry(&value).expect("an entry").id, SECOND);
}

#[test]
fn a_replica_says_so_on_every_path() {
    let server = Server::start();
    let mut connection = server.connect();
    set(&mut connection, &["REPLICAOF", "127.0.0.1", "1"]);
    for call in [
        Call::ask(&job(), &ask(FIRST, Limit::EXCLUSIVE)),
        Call::renew(&job(), &renew(FIRST)),
        Call::drop_claim(&job(), FIRST, 30_000),
        Call::finish(&job(), FIRST, 0, 30_000),
        Call::condemn(&job(), FIRST, 30_000),
    ] {
        let refused = run(&mut connection, &call).expect_err("a replica takes no writes");
        assert_eq!(refused.code(), Some("READONLY"), "{refused}");
    }
}

#[test]
fn ends_go_by_the_servers_clock() {
    let server = Server::start();
    let mut connection = server.connect();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).expect("TIME");
    let reply = run(&mut connection, &Call::ask(&job(), &ask(FIRST, Limit::EXCLUSIVE))).expect("granted");
    let told = script::read_answer(&reply).expect("sense");
    assert!((seconds * 1000..seconds * 1000 + 60_000).contains(&told.now_ms));
    let ends: u64 = redis::cmd("PEXPIRETIME").arg("job:backup").query(&mut connection).expect("PEXPIRETIME");
    assert_eq!(ends, told.now_ms + 30_000);
    set(&mut connection, &["SET", "job:other", "somebody", "PX", "20000"]);
    let other = Key::parse("job:other").expect("a key");
    match answer(run(&mut connection, &Call::ask(&other, &ask(FIRST, Limit::SHARED)))) {
        Answer::Waiting { lapse_ms: Some(lapse), holders, .. } => {
            assert!(holders.is_empty() && (1..=20_000).contains(&lapse), "{lapse}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_log_keeps_its_last_entries() {
    let server = Server::start();
    let mut connection = server.connect();
    for bits in 1..=40 {
        let id = ClaimId::from_bits(bits);
        run(&mut connection, &Call::ask(&job(), &ask(id, Limit::EXCLUSIVE))).expect("granted");
        run(&mut connection, &Call::drop_claim(&job(), id, 30_000)).expect("dropped");
    }
    let log = script::side_key(&job(), "log");
    let events: u64 = redis::cmd("XLEN").arg(&log).query(&mut connection).expect("XLEN");
    assert_eq!(events, 64);
}

#[test]
fn the_script_is_known_by_its_name() {
    let server = Server::start();
    let mut connection = server.connect();
    let name: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(script::SOURCE).query(&mut connection).expect("SCRIPT LOAD");
    assert_eq!(name, script::SHA1, "set SHA1 in script.rs to {name}");
}
