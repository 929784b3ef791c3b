use super::Stage;
use crate::rlock::rlock;

#[test]
fn times_out_of_range_are_refused_with_the_range() {
    let stage = Stage::new();
    for ttl in ["0", "500us", "1M", "99999999999999999999s", "1s", "25h", "-1", "soon", ""] {
        stage.run("job", &["--ttl", ttl, "--", "touch", "ran"]).done().says(64, &["ttl", "2s", "24h"]);
    }
    stage.run("job", &["--ttl", "30s", "--kill-after", "11s", "--", "touch", "ran"]).done().says(64, &["10s"]);
    stage.run("job", &["-n", "-w", "1s", "--", "touch", "ran"]).done().says(64, &["-w"]);
    stage.run("job", &["--signal", "NOPE", "--", "touch", "ran"]).done().says(64, &["NOPE"]);
    stage.run("job", &["-E", "256", "--", "touch", "ran"]).done().says(64, &["255"]);
    assert!(!stage.path("ran").exists());
}

#[test]
fn keys_are_refused_for_what_is_wrong_with_them() {
    let stage = Stage::new();
    for key in ["", "a\nb", "a}b", "{}a", "x:rlock1:y", &"x".repeat(513)] {
        stage.run(key, &["--", "touch", "ran"]).done().says(64, &["key"]);
    }
    for key in ["with space", "it's", "\"q\"", "schlüssel:日本", "{tag}:a", &"x".repeat(512)] {
        stage.run(key, &["--", "true"]).done().is(0, "");
    }
    assert!(!stage.path("ran").exists());
}

#[test]
fn usage_errors_are_one_line_that_ends_in_what_to_try() {
    let stage = Stage::new();
    for args in [
        &["run"][..],
        &["run", "-k", "job"],
        &["run", "--", "true"],
        &["run", "-k", "job", "--no-such-option", "--", "true"],
        &["run", "-k", "a", "-k", "b", "--", "true"],
        &["run", "-k", "job", "-c", "true", "--", "true"],
        &["nonsense"],
        &[],
        &["ttl"],
        &["force-release"],
    ] {
        stage.rlock(args).done().says(64, &[]);
    }
}

#[test]
fn a_wrong_url_is_told_where_it_came_from() {
    rlock(["run", "--url", "http://x", "-k", "job", "--", "true"]).done().says(64, &["--url"]);
    rlock(["run", "-k", "job", "--", "true"]).env("RLOCK_URL", "http://x").done().says(78, &["RLOCK_URL"]);
    let secret = rlock(["run", "--url", "redis://:geheim@127.0.0.1:1", "-k", "job", "--", "true"]).done().code(64);
    assert!(!secret.stderr.contains("geheim"), "{}", secret.stderr);
}
