use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::resolve::key;
use super::*;
use crate::cli;
use crate::exit::{CONFIG, USAGE};

const PATH: &str = "/f.toml";

/// What `words` after `rlock` mean with this file, on a store where they name none.
fn resolved(words: &[&str], file: &str) -> Result<(Settings, Task), (u8, String)> {
    let mut cli = cli::parse([&["rlock"], words].concat()).unwrap_or_else(|stop| panic!("{stop:?}"));
    if cli.global.url.is_none() && !file.contains("url") {
        cli.global.url = Some("redis://typed".into());
    }
    let file = File::parse(Path::new(PATH), file).expect("the file is right");
    resolve(&cli, &file).map_err(|error| (error.code(), error.to_string()))
}

fn run(words: &[&str], file: &str) -> Result<RunSettings, (u8, String)> {
    let words = [&["run", "-k", "k"], words, &["--", "cmd"]].concat();
    match resolved(&words, file)?.1 {
        Task::Run(run) => Ok(*run),
        other => panic!("{other:?}"),
    }
}

fn refused(words: &[&str], file: &str, code: u8, text: &str) {
    let (said, line) = run(words, file).expect_err(text);
    assert!(said == code && line.contains(text) && !line.contains('\n'), "{words:?} {file:?}: {said} {line}");
}

const S: fn(u64) -> Duration = Duration::from_secs;

#[test]
fn the_defaults_are_those_of_the_manual() {
    let run = run(&[], "").unwrap();
    assert_eq!((run.ttl, run.grace, run.wait, run.busy_code), (S(30), S(5), Wait::Forever, 75));
    assert_eq!((run.on_lost, run.signal, run.forward, run.report), (OnLost::Terminate, 15, true, None));
    assert_eq!(run.command, Command::Argv(vec!["cmd".into()]));
    let (settings, _) = resolved(&["list"], "").unwrap();
    assert_eq!((settings.store.timeout, settings.output), (S(30), Output::default()));
}

#[test]
fn an_option_outranks_the_file_and_the_file_the_default() {
    let file = "ttl = 60\nsignal = 'INT'\nkill-after = '2s'\non-lost = 'kill'\nconflict-exit-code = 3\nlabel = 'f'\n\
                no-forward = true\nreport = '/r'\nstore-timeout = '5s'\n";
    let from_file = run(&[], file).unwrap();
    assert_eq!((from_file.ttl, from_file.signal, from_file.grace), (S(60), 2, S(2)));
    assert_eq!((from_file.on_lost, from_file.busy_code, from_file.forward), (OnLost::Kill, 3, false));
    assert_eq!((from_file.label.as_deref(), from_file.report), (Some("f"), Some(ReportTarget::File("/r".into()))));
    let words = ["--ttl", "20", "--signal", "HUP", "--kill-after", "1", "--on-lost", "warn", "-E", "4", "--label", "o"];
    let typed = run(&words, file).unwrap();
    assert_eq!((typed.ttl, typed.signal, typed.grace), (S(20), 1, S(1)));
    assert_eq!((typed.on_lost, typed.busy_code, typed.label.as_deref()), (OnLost::Warn, 4, Some("o")));
    assert_eq!(resolved(&["list"], file).unwrap().0.store.timeout, S(5));
    assert_eq!(resolved(&["list", "--store-timeout", "0.5"], file).unwrap().0.store.timeout, S(1) / 2);
}

#[test]
fn a_ttl_is_2_s_to_24_h() {
    for text in ["0", "500us", "1M", "99999999999999999999s"] {
        refused(
            &["--ttl", text],
            "",
            USAGE,
            &format!("--ttl `{text}` is out of range; give a duration from 2s to 24h"),
        );
    }
    refused(&["--ttl", "-1"], "", USAGE, "--ttl `-1` is no duration");
    refused(&["--ttl", "soon"], "", USAGE, "--ttl `soon` is no duration; give one from 2s to 24h");
    refused(&[], "\nttl = 1\n", CONFIG, "/f.toml:2: `ttl` `1` is out of range");
    refused(
        &["--store-timeout", "0"],
        "",
        USAGE,
        "--store-timeout `0` is out of range; give a duration from 100ms to 24h",
    );
}

#[test]
fn the_grace_is_at_most_a_third_of_the_ttl() {
    assert_eq!(run(&["--kill-after", "10"], "").unwrap().grace, S(10));
    assert_eq!(run(&["--kill-after", "0"], "").unwrap().grace, S(0));
    refused(
        &["--kill-after", "10.001"],
        "",
        USAGE,
        "--kill-after of 10s is more than a third of the ttl of 30s; give 10s",
    );
    refused(
        &["--ttl", "10"],
        "kill-after = 5",
        USAGE,
        "`kill-after` of 5s is more than a third of the ttl of 10s; give 3.3s",
    );
    refused(&[], "kill-after = 5\nttl = 10", CONFIG, "/f.toml:1: `kill-after` of 5s is more than");
    assert_eq!(run(&["--ttl", "2"], "").unwrap().grace, S(2) / 6);
}

#[test]
fn waiting_is_off_in_several_ways() {
    assert_eq!(run(&["-n"], "").unwrap().wait, Wait::No);
    assert_eq!(run(&["-w", "0"], "").unwrap().wait, Wait::No);
    assert_eq!(run(&["-w", "1.5"], "").unwrap().wait, Wait::For(Duration::from_millis(1500)));
    assert_eq!(run(&[], "wait = 7").unwrap().wait, Wait::For(S(7)));
    assert_eq!(run(&[], "nonblock = true").unwrap().wait, Wait::No);
    assert_eq!(run(&[], "nonblock = false").unwrap().wait, Wait::Forever);
    assert_eq!(run(&["-w", "3"], "nonblock = true").unwrap().wait, Wait::For(S(3)));
    assert_eq!(run(&["-n"], "wait = 7").unwrap().wait, Wait::No);
    refused(&[], "nonblock = true\nwait = 7", CONFIG, "/f.toml:2: `wait` and `nonblock` exclude each other");
    refused(&["-w", "400d"], "", USAGE, "--wait `400d` is out of range");
}

#[test]
fn skip_is_nonblock_quiet_and_code_0() {
    let (settings, task) = resolved(&["run", "-k", "k", "--skip", "x"], "wait = 7\nconflict-exit-code = 3").unwrap();
    let Task::Run(run) = task else { panic!("{task:?}") };
    assert!(settings.output.quiet && run.wait == Wait::No && run.busy_code == 0);
}

#[test]
fn bad_values_name_their_option_and_what_to_give() {
    refused(&["-E", "256"], "", USAGE, "--conflict-exit-code `256` is no exit code; give 0 to 255");
    refused(&["-E", "-1"], "", USAGE, "--conflict-exit-code `-1` is no exit code");
    refused(&[], "conflict-exit-code = 256", CONFIG, "/f.toml:1: `conflict-exit-code` `256` is no exit code");
    refused(&["--signal", "FOO"], "", USAGE, "--signal `FOO` is no signal; give a name or a number");
    refused(&[], "on-lost = 'cry'", CONFIG, "/f.toml:1: `on-lost` `cry` is unknown; give terminate, kill or warn");
    refused(&["--report", ""], "", USAGE, "--report is empty");
    refused(&["--report", "fd:x"], "", USAGE, "--report fd:x is no descriptor");
    refused(&["--report", "fd:-1"], "", USAGE, "--report fd:-1 is no descriptor");
    refused(&["--report", "fd:2"], "", USAGE, "--report fd:2 belongs to the command");
    assert_eq!(run(&["--report", "fd:3"], "").unwrap().report, Some(ReportTarget::Fd(3)));
    refused(&["-k", "b"], "", USAGE, "several -k are not offered yet; give one key");
}

#[test]
fn keys_are_checked_in_every_subcommand() {
    let long = "x".repeat(513);
    for bad in ["", "a\x1bb", "a}b", "{}a", &long] {
        for words in [&["run", "-k", bad, "x"][..], &["inspect", "a", bad], &["ttl", bad], &["force-release", bad]] {
            let (code, line) = resolved(words, "").unwrap_err();
            assert!(code == USAGE && line.starts_with("the key ") && !line.contains('\x1b'), "{words:?}: {line}");
            assert!(line.len() < 250, "{line}");
        }
    }
    assert!(key(OsStr::from_bytes(b"\xff")).unwrap_err().to_string().contains("not valid UTF-8"));
}

#[test]
fn the_local_store_is_the_default_and_a_password_is_no_argument() {
    let url = |url: Option<&str>, from_environment: bool, file: &str| {
        let mut cli = cli::parse(["rlock", "list"]).unwrap();
        cli.global.url = url.map(OsString::from);
        cli.global.url_from_environment = from_environment;
        let file = File::parse(Path::new(PATH), file).unwrap();
        resolve(&cli, &file)
            .map(|(settings, _)| (settings.store.url.name(), settings.store.unconfigured))
            .map_err(|error| (error.code(), error.to_string()))
    };
    assert_eq!(url(None, false, "").unwrap(), (Url::local().name(), true));
    assert_eq!(url(None, false, "url = 'local:'").unwrap(), (Url::local().name(), false));
    let url =
        |typed: Option<&str>, from_environment, file: &str| url(typed, from_environment, file).map(|(name, _)| name);
    assert!(url(Some("redis://typed"), false, "url = 'redis://file'").unwrap().contains("typed"));
    assert!(url(None, false, "url = 'redis://file'").unwrap().contains("file"));

    let (code, line) = url(Some("redis://u:hunter2@h"), false, "").unwrap_err();
    assert!(code == USAGE && line.contains("--password-file") && !line.contains("hunter2"), "{line}");
    assert!(url(Some("redis://u:hunter2@h"), true, "").is_ok());
    assert!(url(None, false, "url = 'redis://u:hunter2@h'").is_ok());
    assert!(url(Some("redis://u@h"), false, "").is_ok());

    for (from_environment, file, code, begin) in
        [(false, "", USAGE, "--url: the URL "), (true, "", CONFIG, "RLOCK_URL: the URL ")]
    {
        let (said, line) = url(Some("gopher://h"), from_environment, file).unwrap_err();
        assert!(said == code && line.starts_with(begin), "{said} {line}");
    }
    let (said, line) = url(None, false, "\nurl = 'gopher://h'").unwrap_err();
    assert!(said == CONFIG && line.starts_with("/f.toml:2: `url`: the URL "), "{said} {line}");
    let (said, line) = url(Some(""), true, "url = 'redis://file'").unwrap_err();
    assert!(said == CONFIG && line.starts_with("RLOCK_URL is empty; give a URL"), "{said} {line}");
}

#[test]
fn a_password_file_and_a_password_in_the_url_exclude_each_other() {
    let resolved = |url: &str, words: &[&str], file: &str| {
        let mut cli = cli::parse([&["rlock", "list"], words].concat()).unwrap();
        (cli.global.url, cli.global.url_from_environment) = (Some(url.into()), true);
        let file = File::parse(Path::new(PATH), file).unwrap();
        resolve(&cli, &file).map(drop).map_err(|error| (error.code(), error.to_string()))
    };
    let (code, line) = resolved("redis://u:hunter2@h", &["--password-file", "/p"], "").unwrap_err();
    assert!(code == USAGE && line.contains("RLOCK_URL has a password") && !line.contains("hunter2"), "{line}");
    assert_eq!(resolved("redis://u@h", &["--password-file", "/p"], ""), Ok(()));
    assert_eq!(resolved("redis://u:hunter2@h", &[], "password-file = '/p'"), Ok(()));
}

#[test]
fn force_release_takes_a_claim_and_a_wait() {
    let id = "0123456789abcdef0123456789abcdef";
    let (_, task) = resolved(&["force-release", "k", "--claim", id, "-y", "-w", "3"], "").unwrap();
    let Task::ForceRelease(force) = task else { panic!("{task:?}") };
    assert_eq!((force.claim.unwrap().to_string().as_str(), force.wait, force.yes), (id, Some(S(3)), true));
    for words in [["force-release", "k", "--claim", "12"], ["force-release", "k", "-w", "soon"]] {
        assert_eq!(resolved(&words, "").unwrap_err().0, USAGE);
    }
}

#[test]
fn a_password_file_must_be_readable_and_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "url = 'redis://h'\n").unwrap();
    let read = |password_file: &Path| {
        let words =
            ["rlock", "list", "--config", file.to_str().unwrap(), "--password-file", password_file.to_str().unwrap()];
        let mut cli = cli::parse(words).unwrap();
        cli.global.url = None;
        Settings::read(&cli)
            .map(|(settings, _)| settings.store.password_file)
            .map_err(|error| (error.code(), error.to_string()))
    };
    assert_eq!(read(&file), Ok(Some(file.clone())));
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let (code, line) = read(&empty).unwrap_err();
    assert!(code == CONFIG && line.contains("is empty; write the password into it"), "{line}");
    for wrong in [dir.path(), Path::new("/nonexistent/password")] {
        let (code, line) = read(wrong).unwrap_err();
        assert!(code == CONFIG && line.contains("cannot read the password file"), "{line}");
    }
}
