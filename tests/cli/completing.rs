use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::Stage;
use crate::rlock::{Directory, Running};
use crate::tmux::Terminal;

/// Keys that shells must quote, each in a way of its own.
const KEYS: [&str; 5] = ["job:backup", "job:my key", "it's", r#"q"uo\te"#, "鍵"];

fn held(stage: &Stage) -> Vec<Running> {
    let hold = |key| {
        let run = stage.run(key, &["--", "sleep", "100"]).start();
        stage.held(key);
        run
    };
    KEYS.map(hold).into()
}

fn completions() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("completions").display().to_string()
}

/// PATH with rlock's directory before it.
fn path() -> OsString {
    let own = Path::new(env!("CARGO_BIN_EXE_rlock")).parent().unwrap();
    let all = std::env::var_os("PATH").unwrap();
    std::env::join_paths([own.to_owned()].into_iter().chain(std::env::split_paths(&all))).unwrap()
}

/// A shell with the completions, at an empty prompt.
fn shell<'a>(stage: &'a Stage, start: &str, load: &str) -> Terminal<'a, Directory> {
    std::fs::write(stage.path("load"), load).unwrap();
    std::fs::write(stage.path("some file"), "").unwrap();
    let terminal = Terminal::running(stage, &format!("PATH='{}' exec {start}", path().display()));
    terminal.line(". ./load; PS1='> '; echo loaded");
    terminal.shows("loaded");
    terminal
}

/// Types each line and a tab, and waits until the screen shows what belongs to it.
#[track_caller]
fn complete(terminal: &Terminal<Directory>, lines: &[(&str, &str)]) {
    for (typed, wanted) in lines {
        terminal.key("C-u");
        terminal.key("C-l");
        terminal.text(typed);
        terminal.key("Tab");
        terminal.shows(wanted);
    }
}

/// What every shell does with them.
const IN_EACH: [(&str, &str); 15] = [
    ("rlock ru", "> rlock run"),
    ("rlock force", "> rlock force-release"),
    ("rlock run --on-lost w", "> rlock run --on-lost warn"),
    ("rlock run --signal WIN", "> rlock run --signal WINCH"),
    ("rlock completions z", "> rlock completions zsh"),
    ("rlock run -k job:b", "> rlock run -k job:backup"),
    ("rlock run --key job:m", r"> rlock run --key job:my\ key"),
    ("rlock run -k 'job:m", "> rlock run -k 'job:my key'"),
    ("rlock run --key=i", r"> rlock run --key=it\'s"),
    ("rlock run -nk \"i", "> rlock run -nk \"it's\""),
    ("rlock inspect 鍵 q", r#"> rlock inspect 鍵 q\"uo\\te"#),
    ("rlock ttl job:backup job:m", r"> rlock ttl job:backup job:my\ key"),
    ("rlock run -k a -w 3 -- whoam", "> rlock run -k a -w 3 -- whoami"),
    ("rlock run -k a --skip whoam", "> rlock run -k a --skip whoami"),
    ("rlock run -k a -- cat some", r"> rlock run -k a -- cat some\ file"),
];

#[test]
fn bash_completes_options_held_keys_and_the_command() {
    let stage = Stage::new();
    let runs = held(&stage);
    let load =
        format!("bind 'set show-all-if-ambiguous on'; bind 'set bell-style none'; . '{}/rlock.bash'", completions());
    let terminal = shell(&stage, "bash --norc --noprofile", &load);
    complete(&terminal, &IN_EACH);
    complete(
        &terminal,
        &[
            ("rlock l", "> rlock list"),
            ("rlock run --o", "> rlock run --on-lost"),
            ("rlock run --on-lost=k", "> rlock run --on-lost=kill"),
            ("rlock inspect job:", r"backup   my\ key"),
            ("rlock inspect \"q", r#"> rlock inspect "q\"uo\\te""#),
            ("rlock force-release -y i", r"> rlock force-release -y it\'s"),
            ("rlock run --config some", r"> rlock run --config some\ file"),
        ],
    );
    // The store that the line names is the one that is asked.
    terminal.line("unset RLOCK_URL; clear");
    let url = stage.url();
    complete(
        &terminal,
        &[
            (&format!("rlock --url {url} run -k job:b"), "run -k job:backup"),
            (&format!("rlock --url={url} ttl it"), r"ttl it\'s"),
        ],
    );
    drop(runs);
}

#[test]
fn zsh_completes_options_held_keys_and_the_command() {
    let stage = Stage::new();
    let runs = held(&stage);
    let load = format!(
        "fpath=('{}' $fpath); autoload -U compinit; compinit -D -u; setopt no_beep no_list_beep",
        completions()
    );
    let terminal = shell(&stage, "zsh -f", &load);
    complete(&terminal, &IN_EACH);
    complete(
        &terminal,
        &[
            ("rlock ", "force-release  -- Take a key away from its holder"),
            ("rlock run --o", "> rlock run --on-lost="),
            ("rlock inspect job:", r"job:backup   job:my\ key"),
            ("rlock force-release -y i", r"> rlock force-release -y it\'s"),
            ("rlock run --config some", r"> rlock run --config some\ file"),
            ("rlock run -k a -- ls --almost", "> rlock run -k a -- ls --almost-all"),
        ],
    );
    terminal.line("unset RLOCK_URL; clear");
    let url = stage.url();
    complete(
        &terminal,
        &[(&format!("rlock --url {url} ttl it"), r"ttl it\'s"), (&format!("rlock ttl --url {url} q"), r#"q\"uo\\te"#)],
    );
    drop(runs);
}

#[test]
fn fish_completes_options_held_keys_and_the_command() {
    let stage = Stage::new();
    let runs = held(&stage);
    std::fs::write(stage.path("some file"), "").unwrap();
    let complete = |line: &str, url: Option<&str>| {
        let mut fish = stage.rlock(["run"]);
        let mut command = Command::new("fish");
        for (name, value) in fish.0.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        let script = format!("source '{}/rlock.fish'; complete -C $argv[1]", completions());
        command.args(["-c", &script, line]).current_dir(stage.dir.path()).env("PATH", path());
        command.env("HOME", stage.dir.path()).env("RLOCK_URL", url.unwrap_or(&stage.url()));
        fish.0 = command;
        let done = fish.stdin(std::process::Stdio::null()).done().code(0);
        assert_eq!(done.stderr, "", "{line}");
        done.stdout.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (typed, wanted) in [
        ("rlock ", &["completions", "force-release", "inspect", "list", "run", "ttl"][..]),
        ("rlock run --o", &["--on-lost"]),
        ("rlock run --on-lost ", &["kill", "terminate", "warn"]),
        ("rlock run --signal WIN", &["WINCH"]),
        ("rlock completions ", &["bash", "fish", "zsh"]),
        ("rlock list ", &[]),
        ("rlock run -k job:", &["job:backup", "job:my key"]),
        ("rlock run -nk 'job:m", &["job:my key"]),
        ("rlock run --key=i", &["--key=it's"]),
        ("rlock inspect ", &["it's", "job:backup", "job:my key", r#"q"uo\te"#, "鍵"]),
        ("rlock ttl job:backup q", &[r#"q"uo\te"#]),
        ("rlock force-release -y i", &["it's"]),
        ("rlock run -k a -w 3 -- whoam", &["whoami"]),
        ("rlock run -k a --skip whoam", &["whoami"]),
        ("rlock run -k a -- cat some", &["some file"]),
        ("rlock run -k a ls --almost", &["--almost-all"]),
        ("rlock run -k a -- ls --on-l", &[]),
        ("rlock run --config some", &["some file"]),
    ] {
        assert_eq!(complete(typed, None), wanted, "{typed}");
    }
    let (url, other) = (stage.url(), "local:/no/such");
    assert_eq!(complete(&format!("rlock --url {url} ttl i"), Some(other)), ["it's"]);
    assert_eq!(complete(&format!("rlock ttl --url={url} i"), Some(other)), ["it's"]);
    assert_eq!(complete("rlock ttl i", Some(other)), [""; 0]);
    drop(runs);
}
