use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use rlock::clock::Boot;

use super::server::{Ended, Server};

/// rlock without a store, with this environment.
fn rlock(words: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new("setsid");
    command.args(["--wait", env!("CARGO_BIN_EXE_rlock")]).args(words).stdin(Stdio::null());
    command.env_remove("RLOCK_URL").env("RLOCK_CONFIG", "/dev/null").envs(environment.iter().copied());
    command.output().unwrap().into()
}

#[test]
fn a_wrong_command_line_is_64_and_one_line() {
    rlock(&[], &[]).is(64, "nothing to do; try: rlock --help");
    rlock(&["inspect"], &[]).is(64, "try: rlock inspect --help");
    rlock(&["run", "-k", "a", "--tll", "3s", "x"], &[])
        .is(64, "a similar argument exists: '--ttl'; try: rlock run --help");
    rlock(&["run", "-k", "a", "--ttl", "0", "x"], &[]).is(64, "give a duration from 2s to 24h");
    rlock(&["run", "-k", "a", "-k", "b", "x"], &[]).is(64, "give one key");
    rlock(&["run", "-k", "a", "-n", "-w", "3", "x"], &[]).is(64, "cannot be used with");
    rlock(&["inspect", "a}b"], &[]).is(64, "the key `a}b` has a brace");
    rlock(&["--url", "redis://u:hunter2@h", "list"], &[]).is(64, "--password-file");
    rlock(&["--url", "gopher://h", "list"], &[]).is(64, "--url: the URL ");
}

#[test]
fn help_and_version_go_to_stdout() {
    for words in [&["--help"][..], &["-h"], &["run", "--help"], &["--version"], &["force-release", "-h"]] {
        let ended = rlock(words, &[("RLOCK_URL", "redis://u:hunter2@h")]);
        assert!(ended.code == Some(0) && ended.err.is_empty() && !ended.out.is_empty(), "{ended:?}");
        assert!(!ended.out.contains("hunter2"), "{ended:?}");
    }
}

#[test]
fn a_wrong_configuration_is_78() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    let file = file.to_str().unwrap();
    std::fs::write(file, "url = 'redis://h'\n\nttl = 'soon'\ntll = 3\n").unwrap();
    rlock(&["list"], &[("RLOCK_URL", "gopher://u:hunter2@h")]).is(78, "RLOCK_URL: the URL ");
    rlock(&["list"], &[("RLOCK_CONFIG", file)]).is(78, &format!("{file}:4: unknown key `tll`"));
    rlock(&["list", "--config", file], &[]).is(78, &format!("{file}:4: unknown key `tll`"));
    rlock(&["--config", "/nonexistent/x", "list"], &[]).is(78, "cannot read /nonexistent/x");
    // A pipe would wait for a writer.
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let pipe = pipe.to_str().unwrap();
    rlock(&["--config", pipe, "list"], &[]).is(78, &format!("cannot read {pipe}: it is not a regular file; correct"));
    rlock(&["--config", "/", "list"], &[]).is(78, "cannot read /: it is a directory; correct");
    rlock(&["--password-file", "/nonexistent/x", "list"], &[("RLOCK_URL", "redis://h")]).is(78, "/nonexistent/x");
    std::fs::write(file, "url = 'redis://h'\n\nttl = 'soon'\n").unwrap();
    rlock(&["--config", file, "run", "-k", "k", "x"], &[]).is(78, &format!("{file}:3: `ttl` `soon` is no duration"));
}

#[test]
fn a_dead_or_silent_store_is_69_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("redis://{}", silent.local_addr().unwrap());
    for url in ["redis://127.0.0.1:1", silent.as_str(), "unix:///nonexistent/redis.sock"] {
        for words in [&["inspect", "k"][..], &["list"], &["ttl", "k"], &["force-release", "-y", "k"]] {
            let start = Boot::now();
            let words = [&["--url", url, "--store-timeout", "0.5"], words].concat();
            rlock(&words, &[]).is(69, "no answer within 500ms");
            assert!(Boot::now().since(start) < Duration::from_secs(3), "{words:?}");
        }
    }
}

#[test]
fn a_refused_login_is_77() {
    let server = Server::with(&["--requirepass", "hunter2"]);
    server.rlock(&["inspect", "k"]).is(77, "--password-file");
    let file = server.path("password");
    std::fs::write(&file, "wrong-one\n").unwrap();
    let words = ["--password-file", file.to_str().unwrap(), "inspect", "k"];
    let refused = server.rlock(&words);
    refused.is(77, "");
    assert!(!refused.err.contains("wrong-one"), "{refused:?}");
    std::fs::write(&file, "hunter2\n").unwrap();
    server.rlock(&words).printed(1, "k\n  free\n");
}

#[test]
fn a_stderr_that_nobody_reads_holds_nothing_up() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    let flags = nix::fcntl::OFlag::O_NONBLOCK;
    nix::fcntl::fcntl(&filler, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
    while std::io::Write::write(&mut filler, &[0; 4096]).is_ok() {}
    nix::fcntl::fcntl(&filler, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let start = Boot::now();
    let ended = Command::new(env!("CARGO_BIN_EXE_rlock")).arg("frobnicate").stderr(writer).status().unwrap();
    assert_eq!(ended.code(), Some(64));
    assert!(Boot::now().since(start) < Duration::from_secs(10));
    drop(reader);
}
