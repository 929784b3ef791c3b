//! What people and their files could give to rlock, and what a server could answer, as the binary takes it.

use std::fs;
use std::process::{Command, Output, Stdio};

use proptest::prelude::*;

use crate::replies::{Liar, Says};
use crate::strange::{SECRET, config, spoilt};

/// `rlock` with nothing but these in its environment.
fn rlock(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["20", env!("CARGO_BIN_EXE_rlock")]).args(args).stdin(Stdio::null());
    command.env_clear().env("PATH", "/usr/bin:/bin").env("RLOCK_CONFIG", "/dev/null");
    command.envs(environment.iter().copied());
    command.output().unwrap()
}

/// What it has said: lines of its own, each without anything that a terminal obeys, none with a secret.
#[track_caller]
fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains("internal error"), "{text}");
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    for line in &lines {
        assert!(line.starts_with("rlock: ") && !line.contains(char::is_control), "{text:?}");
    }
    let plain = |c: char| c == '\n' || !c.is_control();
    assert!(String::from_utf8_lossy(&output.stdout).chars().all(plain), "{:?}", output.stdout);
    lines
}

/// Something that begins well.
fn word() -> impl Strategy<Value = String> {
    let secret = format!(
        "(redis|valkey|unix|local|redis\\+unix|rediss|etcd):(//)?([a-z%0-9]{{0,5}}:{SECRET}@)?[a-z0-9:/.?=&%#\\[\\]-]{{0,20}}"
    );
    let claim = "[0-9a-f]{30,33}@[a-z%:,0-9]{0,12}(,[0-9a-f]{32}@.{0,9})?";
    let whole = prop_oneof![
        3 => proptest::string::string_regex(&secret).unwrap(),
        2 => claim.prop_map(String::from),
        2 => "[0-9]{0,22}(\\.[0-9]{0,12})?(s|ms|m|h|d|y|us)?( ?[0-9]{1,3}(s|h))?",
        1 => "[a-z{}:*]{0,20}(:rlock1:)?",
        1 => any::<String>(),
    ];
    spoilt(whole.prop_map(String::into_bytes)).prop_map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', ""))
}

/// A file that begins well.
fn file() -> impl Strategy<Value = Vec<u8>> {
    let names = "ttl|url|wait|json|label|kill-after|on-lost|report|signal|conflict-exit-code|jitter|x";
    let names = prop::sample::select(names.split('|').map(str::to_owned).collect::<Vec<_>>());
    let values = prop_oneof![
        Just("true".to_owned()),
        Just(format!("\"redis://u:{SECRET}@h\"")),
        "[0-9]{1,25}(\\.[0-9]{1,3})?",
        "\"[^\"\\\\\\x00-\\x1f]{0,20}\"",
        "\\[.{0,9}\\]",
        ".{0,12}",
    ];
    // Elsewhere a URL is nonsense, and is repeated as that.
    let value = |name: &str, value: String| if name == "url" { value } else { value.replace(SECRET, "pass") };
    let line = (names, values).prop_map(move |(name, text)| format!("{name} = {}\n", value(&name, text)));
    let text = proptest::collection::vec(line, 0..5).prop_map(|lines| lines.concat().into_bytes());
    spoilt(prop_oneof![4 => text, 1 => proptest::collection::vec(any::<u8>(), 0..200)])
}

proptest! {
    #![proptest_config(config(400))]

    /// The command does not exist: what is well formed ends with 127 before any store is asked.
    #[test]
    fn no_word_is_too_strange(place in 0..8_usize, word in word()) {
        let options = ["--url", "-k", "--ttl", "--wait", "--label", "--signal", "--kill-after"];
        // Elsewhere a URL is nonsense, and is repeated as that.
        let word = if matches!(place, 0 | 7) { word } else { word.replace(SECRET, "pass") };
        let own = options.get(place).map(|option| format!("{option}={word}"));
        let own = own.map(|own| own.replacen("-k=", "-k", 1));
        let args: Vec<&str> = ["run", "-kjob"].into_iter().chain(own.as_deref()).chain(["--", "/no/such"]).collect();
        // A second key replaces none.
        let args: Vec<_> = args.into_iter().filter(|arg| place != 1 || *arg != "-kjob").collect();
        let from = if word.len() % 2 == 0 { "RLOCK_URL" } else { "RLOCK_CLAIM" };
        let environment = [(from, word.as_str())];
        let output = rlock(&args, if place == 7 { &environment } else { &[] });
        // Clap names the option's own `-k` with nothing behind it.
        let said = lines(&output);
        prop_assert!(matches!(output.status.code(), Some(64 | 78 | 127)), "{:?} {:?}", args, output);
        prop_assert_eq!(said.len(), 1, "{:?} {:?}", args, output);
    }

    #[test]
    fn no_file_is_too_strange(text in file()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rlock.toml");
        fs::write(&path, text).unwrap();
        // Where the file itself opens a report, it is in a directory that does not exist.
        let config = ["run", "--config", path.to_str().unwrap(), "--report=/no/such/report", "-kjob", "--", "/no/such"];
        let output = rlock(&config, &[]);
        let said = lines(&output);
        prop_assert!(matches!(output.status.code(), Some(64 | 73 | 78)), "{:?}", output);
        prop_assert_eq!(said.len(), 1, "{:?}", output);
    }
}

/// A length that a server announces is not believed: with 64 MiB of address space for everything it is told as what it is.
#[test]
fn an_announced_length_takes_no_memory() {
    let liar = Liar::start();
    let url = format!("redis://127.0.0.1:{}", liar.port);
    for length in ["2147483647", "4294967296", "1099511627776", "9223372036854775807", "-5"] {
        for kind in "$*=!%~|>".chars() {
            let bytes = format!("{kind}{length}\r\n").into_bytes();
            liar.says(Says { bytes, at_once: 99, hangs_up: true });
            let args =
                ["--as=67108864", env!("CARGO_BIN_EXE_rlock"), "inspect", "job", "--url", &url, "--store-timeout=0.1"];
            let output = Command::new("prlimit").args(args).env("RLOCK_CONFIG", "/dev/null").output().unwrap();
            let said = lines(&output);
            assert!(matches!(output.status.code(), Some(69 | 78)), "{kind}{length}: {output:?}");
            assert_eq!(said.len(), 1, "{kind}{length}: {output:?}");
        }
    }
}
