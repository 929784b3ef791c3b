use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlock::claim::{Answer, ClaimId, Limit, Renew, Renewal};
use rlock::clock::Boot;

use super::server::{Ended, Server, key, soon, until};

const DB1: &str = r#""host":"db1","pid":4121,"user":"backup","cmd":"pg_dump""#;
const ID: ClaimId = ClaimId::from_bits(1);
const TTL: Duration = Duration::from_secs(60);

/// Renews until told to stop, then takes `dying` to let go.
fn obey(server: &Server, dying: Duration) {
    let mut store = server.open();
    let renew =
        Renew { id: ID, limit: Limit::EXCLUSIVE, ttl_ms: 60_000, process: true, number: None, record: String::new() };
    until("it is told to stop", || store.renew(&key("k"), &renew, soon()) == Ok(Renewal::Condemned));
    assert!(!server.look("k").is_free());
    thread::sleep(dying);
    store.drop_claim(&key("k"), ID, TTL, soon()).unwrap();
}

#[test]
fn a_free_key_was_not_held() {
    let server = Server::start();
    server.rlock(&["force-release", "k"]).is(0, "`k` was not held");
    server.rlock(&["force-release", "k", "--claim", &ID.to_string()]).is(0, "`k` was not held");
    let json = server.rlock(&["force-release", "k", "--json"]).json();
    assert_eq!((&json[0]["outcome"], &json[0]["code"]), (&"not_held".into(), &0.into()));
}

#[test]
fn nobody_there_to_ask_is_64() {
    let server = Server::start();
    server.ask("k", 1, 60_000, DB1);
    let ended = server.rlock(&["force-release", "k"]);
    ended.is(64, "`k` is held by backup@db1 pid 4121 (pg_dump) for");
    ended.is(64, "give --yes");
    assert_eq!(server.look("k").condemned, []);
}

#[test]
fn the_holder_is_told_to_stop_and_then_the_key_passes() {
    let server = Server::start();
    server.ask("k", 1, 60_000, DB1);
    let dying = Duration::from_millis(300);
    let ended = thread::scope(|scope| {
        scope.spawn(|| obey(&server, dying));
        let start = Boot::now();
        let ended = server.rlock(&["force-release", "k", "--yes"]);
        assert!(Boot::now().since(start) >= dying, "it did not wait");
        ended
    });
    ended.is(0, "`k` was held by backup@db1 pid 4121 (pg_dump) for");
    ended.is(0, "s; it is free");
    assert!(!ended.err.contains("lease"), "{ended:?}");
    assert!(server.look("k").is_free());
}

#[test]
fn a_holder_that_is_gone_lapses_with_its_lease() {
    let server = Server::start();
    server.ask("k", 1, 2_000, DB1);
    server.rlock(&["force-release", "k", "-y", "-w", "0.3"]).is(75, "`k` is still held by backup@db1");
    server.rlock(&["force-release", "k", "-y"]).is(0, "; it is free");
    assert!(server.look("k").is_free());
}

#[test]
fn a_mark_that_the_store_lost_is_set_again() {
    let server = Server::start();
    server.ask("k", 1, 60_000, DB1);
    let ended = thread::scope(|scope| {
        scope.spawn(|| {
            until("it is marked", || !server.look("k").condemned.is_empty());
            assert_eq!(server.cli(&["DEL", "k:rlock1:gone:{k}"]), "1");
            obey(&server, Duration::ZERO);
        });
        server.rlock(&["force-release", "k", "-y"])
    });
    ended.is(0, "; it is free");
}

#[test]
fn it_says_to_whom_the_key_has_passed() {
    let server = Server::start();
    server.ask("k", 1, 2_000, DB1);
    server.ask("k", 2, 60_000, r#""host":"db2","pid":7,"user":"deploy","cmd":"make""#);
    let ended = thread::scope(|scope| {
        scope.spawn(|| {
            until("the next one holds", || {
                let record = r#""host":"db2","pid":7,"user":"deploy","cmd":"make""#;
                matches!(server.ask("k", 2, 60_000, record), Answer::Granted { .. })
            });
        });
        server.rlock(&["force-release", "k", "-y"])
    });
    ended.is(0, "; it has passed to deploy@db2 pid 7 (make)");
}

#[test]
fn a_removal_whose_answer_was_late_is_one() {
    let server = Server::start();
    server.cli(&["SET", "s", "x"]);
    let line = format!("'{}' force-release s --now", env!("CARGO_BIN_EXE_rlock"));
    let mut child = std::process::Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("RLOCK_URL", server.url())
        .env("RLOCK_CONFIG", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut typed, mut screen_end) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut screen = String::new();
    let mut shows = |part: &str| {
        let mut bytes = [0; 512];
        while !screen.contains(part) {
            let count = screen_end.read(&mut bytes).unwrap();
            assert!(count > 0, "{part:?} is not in {screen:?}");
            screen += &String::from_utf8_lossy(&bytes[..count]);
        }
    };
    shows("[y/N]");
    server.freeze();
    typed.write_all(b"y\n").unwrap();
    shows("trying for another");
    server.thaw();
    shows("`s` was held by a string of another program's; removed");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(server.cli(&["EXISTS", "s"]), "0");
}

#[test]
fn only_the_claim_that_was_named() {
    let server = Server::start();
    server.ask("k", 1, 60_000, DB1);
    server.ask("k", 2, 60_000, "");
    let name = |id| ClaimId::from_bits(id).to_string();
    server.rlock(&["force-release", "k", "-y", "--claim", &name(3)]).is(1, "not by that claim; left alone");
    server.rlock(&["force-release", "k", "-y", "--claim", &name(2)]).is(0, "waited for `k`; removed");
    assert_eq!(server.ask("k", 2, 60_000, ""), Answer::Gone);
    let look = server.look("k");
    assert!(look.queue.is_empty() && look.condemned.is_empty() && look.holders[0].id == ID);
}

#[test]
fn now_passes_the_key_in_the_same_step() {
    let server = Server::start();
    server.ask("k", 1, 60_000, DB1);
    server.ask("k", 2, 60_000, "");
    let ended = server.rlock(&["force-release", "k", "--yes", "--now", "--json"]);
    let json = ended.json();
    assert_eq!(
        (ended.code, &json[0]["outcome"], &json[0]["holders"][0]["host"]),
        (Some(0), &"passed_at_once".into(), &"db1".into())
    );
    assert_eq!(server.look("k").holders[0].id, ClaimId::from_bits(2));
    server.ask("other", 3, 60_000, DB1);
    server.rlock(&["force-release", "other", "-y", "--now"]).is(0, "two may run side by side");
}

#[test]
fn the_command_that_is_shown_removes_it_there_and_nowhere_else() {
    let server = Server::start();
    server.cli(&["RPUSH", "l", "x"]);
    server.cli(&["-n", "3", "RPUSH", "l", "x"]);
    let url = format!("{}?db=3", server.url());
    let ended: Ended = server.command(&["--url", &url, "force-release", "l", "-y", "--now"]).output().unwrap().into();
    let (_, command) = ended.err.split_once("to remove it: ").unwrap();
    let (command, _) = command.rsplit_once(')').unwrap();
    let removed = Command::new("sh").args(["-c", command]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&removed.stdout).trim(), "1", "{command}");
    assert_eq!(server.cli(&["EXISTS", "l"]), "1");
}

#[test]
fn what_is_not_rlocks_goes_only_with_now() {
    let server = Server::start();
    server.cli(&["SET", "s", "x"]);
    server.cli(&["RPUSH", "l", "x"]);
    server.rlock(&["force-release", "s", "-y"]).is(1, "left alone; --now removes it");
    server.rlock(&["force-release", "l", "-y", "--now"]).is(1, "redis-cli ");
    assert_eq!(server.cli(&["EXISTS", "s", "l"]), "2");
    server.rlock(&["force-release", "s", "--now"]).is(64, "give --yes");
    server.rlock(&["force-release", "s", "-y", "--now"]).is(0, "`s` was held by a string");
    assert_eq!(server.cli(&["EXISTS", "s", "l"]), "1");
}

#[test]
fn on_a_terminal_it_shows_the_holder_and_asks() {
    let server = Server::start();
    server.ask("k", 1, 60_000, DB1);
    for no in ["n\n", "\n"] {
        let ended = server.on_terminal(&["force-release", "k"], no);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(
            ended.out.contains("is held by backup@db1 pid 4121 (pg_dump)") && ended.out.contains("[y/N]"),
            "{ended:?}"
        );
        assert!(ended.out.contains("`k` is left alone"), "{ended:?}");
    }
    assert_eq!(server.look("k").condemned, []);
    let ended = server.on_terminal(&["force-release", "k", "--now"], "y\n");
    assert!(ended.code == Some(0) && ended.out.contains("passed on at once"), "{ended:?}");
    assert!(server.look("k").is_free());
}

#[test]
fn a_signal_ends_the_wait_and_it_says_what_it_leaves() {
    let server = Server::start();
    server.ask("k", 1, 60_000, DB1);
    let signalled = |signal| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rlock"));
        command.args(["force-release", "k", "-yv"]).env("RLOCK_URL", server.url()).env("RLOCK_CONFIG", "/dev/null");
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // It says so after it has taken the signal and the mark is answered.
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("told to stop; its lease has"), "{line}");
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!(ended.signal, Some(signal as i32), "{ended:?}");
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        rest
    };
    let said = signalled(Signal::SIGINT);
    assert!(said.contains("the holder of `k` was told to stop all the same"), "{said}");
    assert_eq!(server.look("k").condemned, [ID]);
    for plain in [Signal::SIGTERM, Signal::SIGHUP] {
        assert_eq!(signalled(plain), "", "their default action is kept");
    }
}
