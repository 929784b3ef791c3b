use serde_json::Value;

use super::Stage;

#[test]
fn inspect_list_and_ttl_show_a_held_key() {
    let stage = Stage::new();
    let holder = stage.run("job:backup", &["--label", "nightly", "--", "sleep", "100"]).start();
    stage.held("job:backup");
    let _waiter = stage.run("job:backup", &["-q", "--", "true"]).start();
    stage.waiting("job:backup", 1);
    let pid = holder.pid().as_raw();

    let json = |args: &[&str]| -> Vec<Value> {
        let done = stage.rlock(args).done().code(0);
        done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let inspect = &json(&["inspect", "--json", "job:backup"])[0];
    assert_eq!((&inspect["v"], &inspect["key"]), (&1.into(), &"job:backup".into()), "{inspect}");
    assert_eq!(inspect["holders"][0]["pid"], pid, "{inspect}");
    assert_eq!((&inspect["holders"][0]["cmd"], &inspect["holders"][0]["label"]), (&"sleep".into(), &"nightly".into()));
    assert_eq!(inspect["queue"].as_array().unwrap().len(), 1, "{inspect}");
    let list = json(&["list", "--json"]);
    assert_eq!((list.len(), &list[0]["key"]), (1, &"job:backup".into()));
    assert!(json(&["list", "--json", "other:*"]).is_empty());
    let ttl = &json(&["ttl", "--json", "job:backup"])[0];
    assert!((1..=30_000).contains(&ttl["left_ms"].as_i64().unwrap()), "{ttl}");

    let done = stage.rlock(["inspect", "job:backup"]).done().code(0);
    for word in ["job:backup", &pid.to_string(), "sleep", "nightly"] {
        assert!(done.stdout.contains(word), "{word} in {}", done.stdout);
    }
    assert!(stage.rlock(["list"]).done().code(0).stdout.contains("job:backup"));
    let ms: i64 = stage.rlock(["ttl", "--ms", "job:backup"]).done().code(0).stdout.trim().parse().unwrap();
    assert!((1..=30_000).contains(&ms));
}

#[test]
fn escape_sequences_never_reach_the_terminal() {
    let stage = Stage::new();
    let holder = stage.run("job", &["--label", "a\u{1b}[31mb\u{202e}c", "--", "sleep", "100"]).start();
    stage.held("job");
    for args in [&["inspect", "job"][..], &["inspect", "--json", "job"], &["list"], &["ttl", "job"]] {
        let done = stage.rlock(args).done().code(0);
        for bad in ['\u{1b}', '\u{7}', '\u{202e}', '\r'] {
            assert!(!done.stdout.contains(bad) && !done.stderr.contains(bad), "{bad:?} in {done:?}");
        }
    }
    let busy = stage.run("job", &["-n", "--", "true"]).done().code(75);
    assert!(!busy.stderr.contains('\u{1b}'), "{busy:?}");
    drop(holder);
}
