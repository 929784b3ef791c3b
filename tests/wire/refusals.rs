//! What a server refuses, for good or for now, and what is told of it.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use rlock::claim::{Answer, Dropped, Renewal};
use rlock::store::{self, Cancel, Store, Trouble, Url};

use crate::kit::{TTL, after, ample, ask, id, key, open, renew, until};
use crate::servers::Server;

fn run(server: &Server, command: &str) {
    let words: Vec<_> = command.split(' ').collect();
    let mut cmd = redis::cmd(words[0]);
    cmd.arg(&words[1..]);
    cmd.exec(&mut server.connect()).unwrap();
}

fn as_user(server: &Server, login: &str) -> Box<dyn Store> {
    open(&format!("redis://{login}@127.0.0.1:{}", server.port())).0
}

fn refused<T: std::fmt::Debug>(reply: Result<T, Trouble>) -> String {
    match reply {
        Err(Trouble::Refused(text)) => text,
        other => panic!("not refused: {other:?}"),
    }
}

fn later<T: std::fmt::Debug>(reply: Result<T, Trouble>) -> String {
    match reply {
        Err(Trouble::Later(text)) => text,
        other => panic!("not later: {other:?}"),
    }
}

#[test]
fn a_login_is_refused_in_the_servers_words() {
    let server = Server::with(&["user app on >pw ~* &* +@all", "user free on nopass ~* +@all"]);
    run(&server, "CONFIG SET requirepass secret");
    let mut none = open(&server.url()).0;
    assert!(refused(none.ask(&key("k"), &ask(1, false), ample())).contains("wants a login"));
    assert!(refused(none.look(&key("k"), ample())).contains("--password-file"));
    for login in ["app:hunter2", "nobody:hunter2", ":hunter2", "app"] {
        let text = refused(as_user(&server, login).ask(&key("k"), &ask(1, false), ample()));
        assert!(text.contains("WRONGPASS invalid username-password pair") && !text.contains("hunter2"), "{text}");
    }
    for login in ["app:pw", ":secret", "free"] {
        as_user(&server, login).renew(&key("k"), &renew(1), ample()).unwrap();
    }
    let text = refused(as_user(&Server::start(), ":hunter2").ask(&key("k"), &ask(1, false), ample()));
    assert!(text.contains("without any password") && !text.contains("hunter2"), "{text}");
}

#[test]
fn a_password_is_never_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "hunter2-secret\n").unwrap();
    for (line, part) in
        [("rename-command AUTH \"\"", "unknown command 'AUTH'"), ("user app on >pw ~* &* +@all", "WRONGPASS")]
    {
        let server = Server::with(&[line]);
        for user in ["", "app@"] {
            let url = Url::parse(&format!("redis://{user}127.0.0.1:{}/3", server.port())).unwrap();
            let mut store = store::open(&url, Some(&file), &Cancel::new().unwrap());
            let text = store.ask(&key("k"), &ask(1, false), ample()).unwrap_err().to_string();
            assert!(!text.contains("hunter2") && !text.contains("args beginning"), "{text}");
            assert!(text.contains(part) || user.is_empty(), "{text}");
        }
    }
}

#[test]
fn a_login_without_a_password_says_so() {
    let server = Server::with(&["user app on >pw ~* &* +@all"]);
    let text = refused(as_user(&server, "app").ask(&key("k"), &ask(1, false), ample()));
    assert!(text.contains("no password was given") && text.contains("RLOCK_URL"), "{text}");
    run(&server, "CONFIG SET requirepass secret");
    let text = refused(open(&server.url()).0.ask(&key("k"), &ask(1, false), ample()));
    assert!(text.contains("wants a login; give") && !text.contains("multibulk"), "{text}");
}

#[test]
fn a_removals_rule_is_enough() {
    let server = Server::with(&["user app on >pw"]);
    for set in ["SET k x", "HSET k a b"] {
        run(&server, "DEL k");
        run(&server, set);
        let shown = open(&server.url()).0.look(&key("k"), ample()).unwrap().foreign.unwrap();
        run(&server, "ACL SETUSER app reset on >pw");
        let mut app = as_user(&server, "app:pw");
        let text = refused(app.remove_foreign(&key("k"), &shown, ample()));
        run(&server, rule(&text));
        assert_eq!(app.remove_foreign(&key("k"), &shown, ample()), Ok(true), "{text}");
    }
}

#[test]
fn a_missing_right_to_the_database_comes_with_its_rule() {
    let server = Server::with(&["user app on >pw ~* &* +@all -select"]);
    let url = format!("redis://app:pw@127.0.0.1:{}/3", server.port());
    let text = refused(open(&url).0.look(&key("k"), ample()));
    run(&server, rule(&text));
    open(&url).0.look(&key("k"), ample()).unwrap();
}

#[test]
fn a_password_file_is_read_again_at_each_connect() {
    let server = Server::with(&["user app on >first ~* &* +@all"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    let url = Url::parse(&format!("redis://app@127.0.0.1:{}", server.port())).unwrap();
    let mut store = store::open(&url, Some(&file), &Cancel::new().unwrap());
    let config = |store: &mut dyn Store, part: &str| {
        let trouble = store.look(&key("k"), ample()).unwrap_err();
        assert!(matches!(&trouble, Trouble::Config(text) if text.contains(part)), "{trouble}");
    };
    config(&mut *store, "No such file");
    std::fs::write(&file, "\n").unwrap();
    config(&mut *store, "has an empty line and no password; write");
    std::fs::write(&file, "x".repeat(5000)).unwrap();
    config(&mut *store, "4096");
    std::fs::write(&file, "first\n").unwrap();
    store.look(&key("k"), ample()).unwrap();
    run(&server, "ACL SETUSER app >second <first");
    std::fs::write(&file, "second").unwrap();
    store.disconnect();
    store.look(&key("k"), ample()).unwrap();
    // A pipe would wait for a writer.
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    config(&mut *store::open(&url, Some(&file), &Cancel::new().unwrap()), "not a regular file");
    // It was right once: it is being written anew.
    store.disconnect();
    assert!(later(store.look(&key("k"), ample())).contains("not a regular file"));
    std::fs::remove_file(&file).unwrap();
    assert!(later(store.look(&key("k"), ample())).contains("No such file"));
    std::fs::write(&file, "").unwrap();
    assert!(later(store.look(&key("k"), ample())).contains("is empty; write"));
    std::fs::write(&file, "second").unwrap();
    store.look(&key("k"), ample()).unwrap();
}

/// The rule that a refusal names.
fn rule(text: &str) -> &str {
    text.split("grant it with: ").nth(1).unwrap_or_else(|| panic!("no rule: {text}"))
}

/// Every operation, each held to `check`.
fn every_operation(store: &mut dyn Store, name: &str, check: &mut dyn FnMut(&str, Option<Trouble>)) {
    let key = key(name);
    check("ask", store.ask(&key, &ask(1, false), ample()).err());
    check("queue", store.ask(&key, &ask(2, true), ample()).err());
    check("busy", store.ask(&key, &ask(3, false), ample()).err());
    check("renew", store.renew(&key, &renew(1), ample()).err());
    check("wait", store.wait(&key, id(1), after(300)).err());
    check("look", store.look(&key, ample()).err());
    check("condemn", store.condemn(&key, id(1), TTL, ample()).err());
    check("drop", store.drop_claim(&key, id(1), TTL, ample()).err());
    check("finish", store.finish(&key, id(2), Duration::ZERO, TTL, ample()).err());
}

#[test]
fn the_rule_that_is_told_is_the_one_that_is_missing() {
    let server = Server::with(&["user app on >pw"]);
    for name in ["job:a", "a b*c", "{t}x"] {
        run(&server, "ACL SETUSER app reset on >pw");
        let mut app = as_user(&server, "app:pw");
        let text = refused(app.ask(&key(name), &ask(1, false), ample()));
        run(&server, rule(&text));
        assert!(app.ask(&key(name), &ask(1, false), ample()).is_ok(), "{text}");
        let text = refused(app.look(&key(name), ample()));
        run(&server, rule(&text));
        every_operation(&mut *app, name, &mut |what, trouble| assert_eq!(trouble, None, "{what} of {name}"));
        // Another key is not covered.
        let text = refused(app.ask(&key("other"), &ask(1, false), ample()));
        assert!(text.contains("~other ~other:rlock1:*"), "{text}");
        let text = refused(app.wait(&key("other"), id(1), after(500)));
        assert!(text.contains("~other:rlock1:*"), "{text}");
        refused(app.look(&key("other"), ample()));
        let text = refused(app.list(None, TTL, &mut |_| true));
        run(&server, &format!("ACL SETUSER app{}", rule(&text).split("~*").nth(1).unwrap()));
        // Others' keys are passed over.
        open(&server.url()).0.ask(&key("other"), &ask(1, false), ample()).unwrap();
        let mut found = Vec::new();
        let listed = app.ask(&key(name), &ask(5, false), ample()).and_then(|_| {
            app.list(None, TTL, &mut |one| {
                found.push(one.key.to_string());
                true
            })
        });
        assert_eq!((listed, found), (Ok(()), vec![name.to_owned()]));
    }
}

#[test]
fn each_command_that_is_missing_is_a_refusal() {
    let server = Server::with(&["user app on >pw"]);
    let mut app = as_user(&server, "app:pw");
    let change = refused(app.ask(&key("k"), &ask(1, false), ample()));
    let look = refused(app.look(&key("k"), ample()));
    let (change, look) = (rule(&change).to_owned(), rule(&look).to_owned());
    let words = change.split(' ').chain(look.split(' '));
    let mut commands: Vec<_> = words.filter_map(|word| word.strip_prefix('+')).collect();
    commands.sort_unstable();
    commands.dedup();
    for command in commands {
        run(&server, "FLUSHALL");
        run(&server, &change);
        run(&server, &look);
        run(&server, &format!("ACL SETUSER app -{command}"));
        let mut count = 0;
        every_operation(&mut *app, "k", &mut |what, trouble| match trouble {
            None => {}
            Some(Trouble::Refused(_)) => count += 1,
            Some(other) => panic!("{what} without {command}: {other:?}"),
        });
        // The log and the wake-ups are best effort. The first text of the script goes as EVAL.
        let optional = matches!(command, "xadd" | "rpush" | "eval");
        assert!(count > 0 || optional, "nothing is refused without {command}");
    }
}

#[test]
fn a_replica_and_a_demoted_master() {
    let master = Server::start();
    let server = Server::start();
    let mut store = open(&server.url()).0;
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    run(&server, &format!("REPLICAOF 127.0.0.1 {}", master.port()));
    until("the replica follows", || {
        let info: String = redis::cmd("INFO").arg("replication").query(&mut server.connect()).unwrap();
        info.contains("master_link_status:up")
    });
    // Its keys are the master's now, and it says of none that it is gone.
    for _ in 0..2 {
        assert!(later(store.renew(&key("k"), &renew(1), ample())).contains("READONLY"));
        assert!(!store.is_connected());
    }
    later(store.ask(&key("k"), &ask(1, false), ample()));
    later(store.drop_claim(&key("k"), id(1), TTL, ample()));
    later(store.condemn(&key("k"), id(1), TTL, ample()));
    later(store.finish(&key("k"), id(1), TTL, TTL, ample()));
    assert!(later(store.wait(&key("k"), id(1), after(400))).contains("READONLY"));
    run(&master, "SET k x");
    until("the key has come over", || store.look(&key("k"), ample()).unwrap().foreign.is_some());
    let shown = store.look(&key("k"), ample()).unwrap().foreign.unwrap();
    assert!(later(store.remove_foreign(&key("k"), &shown, ample())).contains("READONLY"));
    // Nor does it say that the key has changed.
    run(&master, "SET k yy");
    until("the change has come over", || store.look(&key("k"), ample()).unwrap().foreign != Some(shown.clone()));
    later(store.remove_foreign(&key("k"), &shown, ample()));
    run(&server, "REPLICAOF NO ONE");
    run(&server, "DEL k");
    assert!(matches!(store.ask(&key("k"), &ask(2, false), ample()), Ok(Answer::Granted { .. })));
}

#[test]
fn a_server_out_of_memory_still_renews_and_releases() {
    let server = Server::with(&["maxmemory-policy noeviction"]);
    let mut store = open(&server.url()).0;
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();
    run(&server, "CONFIG SET maxmemory 1");
    assert!(matches!(store.renew(&key("k"), &renew(1), ample()), Ok(Renewal::Renewed { .. })));
    match store.ask(&key("other"), &ask(2, false), ample()) {
        Ok(Answer::Granted { .. }) => {}
        Err(Trouble::Later(text)) => assert!(text.contains("OOM"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.drop_claim(&key("k"), id(1), TTL, ample()), Ok(Dropped::Held(_))));
}

#[test]
fn a_server_that_is_loading_and_one_that_is_busy() {
    let server = Server::with(&[
        "enable-debug-command yes",
        "key-load-delay 10000",
        "loading-process-events-interval-bytes 1024",
    ]);
    run(&server, "DEBUG POPULATE 200");
    let mut store = open(&server.url()).0;
    let mut redis = server.connect();
    let reload = thread::spawn(move || redis::cmd("DEBUG").arg("RELOAD").exec(&mut redis));
    let mut text = String::new();
    until("it is loading", || match store.ask(&key("k"), &ask(1, false), ample()) {
        Err(Trouble::Later(told)) => {
            text = told;
            true
        }
        Ok(_) => false,
        Err(other) => panic!("{other:?}"),
    });
    assert!(text.contains("LOADING"), "{text}");
    reload.join().unwrap().unwrap();
    store.ask(&key("k"), &ask(1, false), ample()).unwrap();

    run(&server, "CONFIG SET busy-reply-threshold 50");
    let mut redis = server.connect();
    let busy = thread::spawn(move || redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut redis));
    until(
        "it is busy",
        || matches!(store.renew(&key("k"), &renew(1), ample()), Err(Trouble::Later(text)) if text.contains("BUSY")),
    );
    run(&server, "SCRIPT KILL");
    assert!(busy.join().unwrap().is_err());
    store.renew(&key("k"), &renew(1), ample()).unwrap();
}

#[test]
fn a_server_with_no_room_for_another_client() {
    let server = Server::start();
    let mut store = open(&server.url()).0;
    store.look(&key("k"), ample()).unwrap();
    run(&server, "CONFIG SET maxclients 1");
    store.disconnect();
    let _held = server.connect();
    match store.ask(&key("k"), &ask(1, false), ample()) {
        // Its answer may be lost in the reset that follows it.
        Err(Trouble::Later(text)) => assert!(text.contains("max number of clients"), "{text}"),
        Err(Trouble::Unknown(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn something_that_is_not_redis() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            client.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
    });
    let trouble = open(&url).0.ask(&key("k"), &ask(1, false), ample()).unwrap_err();
    assert!(
        matches!(&trouble, Trouble::Config(text) if text.contains("does not speak the Redis protocol")),
        "{trouble}"
    );
}
