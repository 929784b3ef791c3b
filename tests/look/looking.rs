use std::process::Stdio;

use super::server::Server;

const DB1: &str = r#""host":"db1","pid":4121,"user":"backup","cmd":"pg_dump","label":"nightly""#;
const DB2: &str = r#""host":"db2","pid":7,"user":"app","cmd":"sh""#;

#[test]
fn inspect_shows_who_holds_and_who_waits() {
    let server = Server::start();
    server.ask("job:a", 1, 60_000, DB1);
    server.ask("job:a", 2, 60_000, DB2);
    server.ask("job:a", 3, 60_000, "");
    let shown = server.rlock(&["inspect", "job:a"]);
    let token = server.look("job:a").holders[0].number;
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""), "{shown:?}");
    let lines: Vec<&str> = shown.out.lines().collect();
    assert_eq!(lines[0], "job:a");
    assert_eq!(lines[1], "  held by backup@db1 pid 4121 (pg_dump, nightly)");
    assert!(lines[2].starts_with("  since   20") && lines[3].contains("s left of 1m"), "{shown:?}");
    assert_eq!(lines[4], format!("  token   {token}"));
    assert_eq!(lines[5], "  claim   00000000000000000000000000000001");
    assert!(lines[6].starts_with("  queue   1. app@db2 pid 7 (sh) waiting "), "{shown:?}");
    assert!(lines[7].starts_with("          2. somebody waiting "), "{shown:?}");
    assert_eq!(lines.len(), 8);
}

#[test]
fn inspect_is_1_when_one_is_free_and_json_is_one_object_a_line() {
    let server = Server::start();
    server.ask("a", 1, 60_000, DB1);
    server.ask("a", 2, 60_000, DB2);
    server.rlock(&["inspect", "b"]).printed(1, "b\n  free\n");
    let shown = server.rlock(&["inspect", "--json", "a", "b"]);
    assert_eq!(shown.code, Some(1));
    let [a, b] = &shown.json()[..] else { panic!("{shown:?}") };
    assert_eq!((&a["v"], &a["key"], &a["free"]), (&1.into(), &"a".into(), &false.into()));
    let holder = &a["holders"][0];
    assert_eq!((&holder["host"], &holder["pid"], &holder["label"]), (&"db1".into(), &4121.into(), &"nightly".into()));
    assert_eq!(holder["claim"], "00000000000000000000000000000001");
    assert_eq!(holder["token"], a["token"]);
    assert!(holder["left_ms"].as_u64().is_some_and(|ms| ms <= 60_000 && ms > 30_000), "{holder}");
    assert!(holder["since_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{holder}");
    assert_eq!((&a["queue"][0]["position"], &a["queue"][0]["host"]), (&1.into(), &"db2".into()));
    assert_eq!((&b["free"], &b["left_ms"], &b["holders"]), (&true.into(), &().into(), &serde_json::json!([])));
}

#[test]
fn what_is_not_rlocks_is_shown_for_what_it_is() {
    let server = Server::start();
    server.cli(&["SET", "s", "x", "PX", "50000"]);
    server.cli(&["HSET", "h", "7d1b3f0e-8f0a-4e5b-9d53-0a5a1c1f2b3c:1", "1"]);
    server.cli(&["RPUSH", "l", "a", "b"]);
    server.cli(&["SET", "n", r#"{"rlock":9,"id":"?"}"#]);
    for (key, what) in
        [("s", "a string of another"), ("h", "Redisson"), ("l", "a list of another"), ("n", "newer rlock")]
    {
        let shown = server.rlock(&["inspect", key]);
        assert!(shown.code == Some(0) && shown.out.contains("held by") && shown.out.contains(what), "{shown:?}");
        let json = server.rlock(&["inspect", "--json", key]).json();
        assert!(json[0]["foreign"]["what"].as_str().is_some_and(|told| told.contains(what)), "{json:?}");
    }
    server.rlock(&["ttl", "--ms", "h"]).printed(0, "-1\n");
    server.rlock(&["ttl", "h"]).printed(0, "without end\n");
    assert!(server.rlock(&["ttl", "s"]).out.starts_with('4'));
}

#[test]
fn nothing_that_moves_a_cursor_is_printed_raw() {
    let server = Server::start();
    server.ask("a", 1, 60_000, r#""host":"\u001b[2Jdb1","user":"\u202eu","cmd":"c\nd","label":"\u0007""#);
    server.cli(&["SET", "f", "\u{1b}]0;evil\u{7}\n\u{9b}", "PX", "50000"]);
    server.cli(&["HSET", "h", "\u{1b}[31m", "\u{202e}"]);
    for words in [
        &["inspect", "a", "f", "h"][..],
        &["inspect", "--json", "a", "f", "h"],
        &["list"],
        &["list", "--json"],
        &["force-release", "a"],
        &["force-release", "f"],
        &["force-release", "h", "--json"],
        &["inspect", "bad\u{1b}[2J"],
        &["ttl", "--b\u{1b}[2Jad"],
        &["--url", "x\u{1b}[2J", "list"],
    ] {
        let shown = server.rlock(words);
        for c in (shown.out + &shown.err).chars().filter(|c| *c != '\n') {
            assert!(!c.is_control() && c != '\u{202e}', "{words:?} printed {c:?}");
        }
    }
    let shown = server.rlock(&["inspect", "a"]);
    assert!(shown.out.contains(r"\u{202e}u@\x1b[2Jdb1 (c\nd, \x07)"), "{shown:?}");
}

#[test]
fn ttl_prints_what_is_left() {
    let server = Server::start();
    server.ask("a", 1, 60_000, DB1);
    let left: u64 = server.rlock(&["ttl", "--ms", "a"]).out.trim().parse().unwrap();
    assert!((30_000..=60_000).contains(&left), "{left}");
    assert!(server.rlock(&["ttl", "a"]).out.ends_with("s\n"));
    server.rlock(&["ttl", "b"]).printed(1, "free\n");
    server.rlock(&["ttl", "--ms", "b"]).printed(1, "-2\n");
    let both = server.rlock(&["ttl", "a", "bcd"]);
    assert!(both.code == Some(1) && both.out.starts_with("a    ") && both.out.ends_with("bcd  free\n"), "{both:?}");
    let json = server.rlock(&["ttl", "--json", "a", "b"]).json();
    assert!(json[0]["left_ms"].is_u64() && json[1]["left_ms"].is_null() && json[1]["free"] == true, "{json:?}");
}

#[test]
fn list_shows_the_keys_in_order() {
    let server = Server::start();
    server.rlock(&["list"]).printed(0, "");
    server.ask("job:b", 1, 60_000, DB1);
    server.ask("job:b", 2, 60_000, DB2);
    server.ask("job:a", 3, 60_000, DB2);
    server.ask("other", 4, 60_000, "");
    server.cli(&["SET", "foreign", "x"]);
    let all = server.rlock(&["list"]);
    let rows: Vec<Vec<&str>> =
        all.out.lines().map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect()).collect();
    assert_eq!(rows[0], ["KEY", "HOLDER", "SINCE", "LEFT", "WAITERS"]);
    assert_eq!((rows[1][0], rows[1][1], rows[1][4]), ("job:a", "app@db2 pid 7 (sh)", "0"));
    assert_eq!((rows[2][0], rows[2][1], rows[2][4]), ("job:b", "backup@db1 pid 4121 (pg_dump, nightly)", "1"));
    assert_eq!((rows.len(), rows[3][0]), (4, "other"));
    let json = server.rlock(&["--json", "list", "job:*"]).json();
    assert_eq!(json.iter().map(|view| view["key"].as_str().unwrap()).collect::<Vec<_>>(), ["job:a", "job:b"]);
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let server = Server::start();
    server.ask("a", 1, 60_000, DB1);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = server.command(&["inspect", "a"]).stdin(Stdio::null()).stdout(writer).output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended = server.command(&["inspect", "a"]).stdin(Stdio::null()).stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(71), "{ended:?}");
}
