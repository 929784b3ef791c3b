//! What users type. The doc comments here are the help and the man pages. Uses nothing else of the crate: values are
//! taken as text, and `settings.rs` gives them their meaning.

#![allow(
    clippy::doc_markdown,
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    reason = "these texts are read as help, where a backquote is noise"
)]
#![allow(clippy::struct_excessive_bools, reason = "a switch of the command line is a bool")]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum, ValueHint};

/// Run a command while holding a lock that other hosts respect.
///
/// rlock takes a lock on a store (a Redis server, or a directory of this host), runs a command while it holds it, and
/// gives it back. The lock is a lease that rlock keeps renewing; should that ever fail, the command is dead before the
/// lock can pass to anybody else. What rlock itself has to say goes to stderr, one line an event, and has an exit code
/// of its own.
#[derive(Debug, Parser)]
#[command(name = "rlock", version, disable_help_subcommand = true, after_long_help = AFTER_HELP, next_line_help = false)]
pub struct Cli {
    /// The options that stand before or after the subcommand.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
}

/// The options of every subcommand.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// The store: redis://[USER@]HOST[:PORT][/DB], unix:///PATH[?db=N], local: or local:/PATH [default: local:]
    ///
    /// local: is a directory of this host, one for each user: /run/rlock for root, .local/state/rlock in the home of
    /// others. It is taken where nothing names a store, and a line says so; RLOCK_URL=local: silences that line.
    /// A password is taken from RLOCK_URL or the file (redis://USER:PASSWORD@HOST) or from --password-file, and
    /// refused here, where every user of the host could read it.
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Other, env = "RLOCK_URL", hide_env_values = true)]
    pub url: Option<OsString>,
    /// Whether the URL came from the environment.
    #[arg(skip)]
    pub url_from_environment: bool,
    /// The file of defaults [default: /etc/rlock/config.toml]
    ///
    /// TOML with the long options' names as keys, for example `url = "redis://db1"`. The order is: option,
    /// environment, file, default. There is no file per user, so that a run by hand meets the same store as cron.
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, env = "RLOCK_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// How long the store may be silent before rlock gives up with 69 [default: 30s]
    #[arg(long, global = true, value_name = "DUR", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    pub store_timeout: Option<String>,
    /// Read the store's password from this file, again at every connect
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub password_file: Option<PathBuf>,
    /// Print one JSON object a line instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    /// Do not say that the lock is busy or waited for
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say also what passes by itself: renewals that failed, locks that were restored
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

impl Global {
    fn note_source(&mut self, matches: &ArgMatches) {
        self.url_from_environment = matches.value_source("url") == Some(ValueSource::EnvVariable);
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Run a command while holding the lock.
    ///
    /// Waits for the lock unless -n is given, runs the command, and gives the lock back. The command keeps stdin, stdout,
    /// stderr, its terminal and its exit code. It finds RLOCK_KEY, RLOCK_TOKEN (a number that only grows for a key, for a
    /// resource that can refuse an older one) and RLOCK_CLAIM in its environment.
    Run(Box<Run>),
    /// Show who holds a key and who waits for it.
    ///
    /// Ends with 1 when one of the keys is free. A lock that is not rlock's is shown for what it is.
    Inspect(Inspect),
    /// List the keys that an rlock holds or waits for.
    ///
    /// A key that another program holds is listed only where an rlock waits for it; `inspect` shows it.
    List(List),
    /// Print how long the lease of a key still runs.
    ///
    /// A holder that lives renews its lease, so this is not when the key will be free. Ends with 1 when one of the keys
    /// is free.
    Ttl(Ttl),
    /// Take a key away from its holder.
    ///
    /// Shows the holder and asks. Then the holder's rlock is told to stop its command; the key passes when the command is
    /// dead, or when the lease of a holder that does not answer runs out. Waits until the key has passed.
    ForceRelease(ForceRelease),
    /// Print the completions of a shell.
    Completions(Completions),
}

/// What `run` takes.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_RUN, override_usage = "rlock run [OPTIONS] -k <KEY> [--] <COMMAND>...\n       rlock run [OPTIONS] -k <KEY> -c <STRING>")]
pub struct Run {
    /// What to lock: 1 to 512 bytes of text
    #[arg(short, long = "key", value_name = "KEY", required = true, value_hint = ValueHint::Other)]
    pub keys: Vec<OsString>,
    /// How long the lease runs unless renewed, 2s to 24h [default: 30s]
    ///
    /// rlock renews it every third of this. It is how long others wait when this host dies, and how long the store
    /// may be away before the command is stopped. 5s and more is advised.
    #[arg(long, value_name = "DUR", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    pub ttl: Option<String>,
    /// Do not wait: end with 75 when the lock is held
    #[arg(short, long, visible_alias = "nb", conflicts_with = "wait")]
    pub nonblock: bool,
    /// Wait at most this long for the lock, then end with 75 [default: for ever]
    #[arg(short, long, value_name = "DUR", value_hint = ValueHint::Other, allow_negative_numbers = true, visible_alias = "timeout")]
    pub wait: Option<String>,
    /// Take the lock exclusively, which is the default
    #[arg(short = 'x', long, short_alias = 'e')]
    pub exclusive: bool,
    /// The exit code when the lock is busy [default: 75]
    #[arg(short = 'E', long, value_name = "N", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    pub conflict_exit_code: Option<String>,
    /// Do nothing, silently and with exit code 0, when the lock is held: -n -q -E 0, the form for cron
    #[arg(long, conflicts_with_all = ["wait", "conflict_exit_code"])]
    pub skip: bool,
    /// What to do when the lease is about to be lost [default: terminate]
    #[arg(long, value_name = "WHAT")]
    pub on_lost: Option<OnLost>,
    /// The first signal of --on-lost terminate [default: TERM]
    #[arg(long, value_name = "SIGNAL", value_hint = ValueHint::Other)]
    pub signal: Option<String>,
    /// The time between that signal and KILL, at most a third of the ttl [default: a sixth of the ttl, at most 5s]
    #[arg(long, value_name = "DUR", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    pub kill_after: Option<String>,
    /// Stop the command when it has run this long, then end with 124 [default: never]
    ///
    /// Its whole tree gets the signal of --signal and, after --kill-after, KILL; then the lock is given back.
    #[arg(long, value_name = "DUR", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    pub max_runtime: Option<String>,
    /// Keep the lock until this long after the command's start, also when it ends sooner [default: 0]
    ///
    /// rlock ends with the command; the lease then runs out by itself. For a job that several hosts start at about the
    /// same time, and that is to run once.
    #[arg(long, value_name = "DUR", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    pub hold_at_least: Option<String>,
    /// Wait a random time, at most this long, before asking for the lock [default: 0]
    #[arg(long, value_name = "DUR", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    pub jitter: Option<String>,
    /// Hold the lock only while this many of the server's replicas have it too, else end with 69 [default: 0]
    ///
    /// Redis only. A renewal that too few replicas have in time does not count, and the command is stopped before the
    /// lease ends. It narrows what a failover can lose, and cannot rule it out.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub wait_replicas: Option<String>,
    /// A word for people, shown beside the holder
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    pub label: Option<OsString>,
    /// Append the outcome as one line of JSON to a file, or write it to an open descriptor
    #[arg(long, value_name = "FILE|fd:N", value_hint = ValueHint::FilePath)]
    pub report: Option<OsString>,
    /// Do not forward signals to the command
    ///
    /// For a sender that signals the whole process group, so that the command gets each signal once.
    #[arg(long)]
    pub no_forward: bool,
    /// Run this with /bin/sh
    #[arg(short = 'c', value_name = "STRING", conflicts_with = "command", value_hint = ValueHint::CommandString)]
    pub shell: Option<OsString>,
    /// The command and its arguments, passed on as they are
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "shell", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// `run` without its siblings. Nearly every start is one, and to build the whole definition takes longer than to take
/// the lock.
#[derive(Debug, Parser)]
struct RunAlone {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    run: Run,
}

/// What to do when the lease is about to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// The signal, then KILL: the command is dead before the lock can pass
    Terminate,
    /// KILL at once
    Kill,
    /// Say so and let the command go on without the lock
    Warn,
}

/// What `inspect` takes.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  rlock inspect job:backup\n  rlock inspect --json job:backup | jq -r .holders[].host"
)]
pub struct Inspect {
    /// What is locked
    #[arg(value_name = "KEY", required = true, value_hint = ValueHint::Other)]
    pub keys: Vec<OsString>,
}

/// What `list` takes.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  rlock list\n  rlock list 'job:*'")]
pub struct List {
    /// Only the keys that this glob matches: * ? [a-z]
    #[arg(value_name = "PATTERN", value_hint = ValueHint::Other)]
    pub pattern: Option<OsString>,
}

/// What `ttl` takes.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  rlock ttl job:backup\n  rlock ttl --ms job:backup")]
pub struct Ttl {
    /// What is locked
    #[arg(value_name = "KEY", required = true, value_hint = ValueHint::Other)]
    pub keys: Vec<OsString>,
    /// In milliseconds: -1 for a lock without end, -2 for a free key
    #[arg(long)]
    pub ms: bool,
}

/// What `force-release` takes.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_FORCE_RELEASE)]
pub struct ForceRelease {
    /// What is locked
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub key: OsString,
    /// Only if this claim holds the key or waits for it, as `inspect` shows it
    #[arg(long, value_name = "CLAIM", value_hint = ValueHint::Other)]
    pub claim: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Pass the key on at once, while the holder's command may still run: two may run side by side
    #[arg(long)]
    pub now: bool,
    /// How long to wait for the key to pass [default: until the lease ends and 2s]
    #[arg(short, long, value_name = "DUR", value_hint = ValueHint::Other, allow_negative_numbers = true, conflicts_with = "now")]
    pub wait: Option<String>,
}

/// What `completions` takes.
#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// The shells that have completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

const AFTER_HELP: &str = "\
Durations are a number of seconds (30, 0.5) or have units (30s, 1m30s, 2h).

Examples:
  rlock run --key job:backup --ttl 30s -- pg_dump -Fc app -f app.dump
  rlock inspect job:backup
  rlock list 'job:*'
  rlock force-release job:backup

`rlock run --help` lists the exit codes.";

const AFTER_RUN: &str = "\
Exit codes:
  the command's own; rlock dies of the signal that the command died of
  64   usage, or a question that nobody is there to answer
  69   the store is unreachable or failing
  70   a fault of rlock's own
  71   the operating system refused something that rlock needs
  73   the report cannot be opened
  75   busy: not obtained at once or within --wait (-E changes it)
  77   refused by the store: login or permission
  78   bad configuration, or a store that cannot do what was asked
  79   the lease was lost; the command was stopped
  124  the command ran as long as --max-runtime allows, and was stopped
  126  the command cannot be run
  127  the command was not found

Examples:
  rlock run -k job:backup -- pg_dump -Fc app -f app.dump
  rlock run -k deploy -w 10m -- ./deploy.sh
  rlock run -k job:report --skip -c 'make report > report.txt'";

const AFTER_FORCE_RELEASE: &str = "\
Exit codes:
  0    the key has passed, or was not held
  1    left alone: held by another claim, not confirmed, or not rlock's and without --now
  64   nobody is there to answer: give --yes
  75   the key has not passed within -w

Examples:
  rlock force-release job:backup
  rlock force-release --yes --claim 0123456789abcdef0123456789abcdef job:backup";

/// What is printed instead of running.
#[derive(Debug)]
pub enum Stop {
    /// Help or version was asked for: to stdout, and all is well.
    Shown(String),
    /// The command line is wrong; one line.
    Usage(String),
}

/// Reads a command line, and the environment for the options that have a variable.
pub fn parse<I>(words: I) -> Result<Cli, Stop>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let mut words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    if let Some(cli) = parse_run(&words) {
        return Ok(cli);
    }
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.truncate(2);
        words.push("--help".into());
    }
    let mut command = Cli::command();
    let named = words.iter().skip(1).find_map(|word| command.find_subcommand(word).map(clap::Command::get_name));
    let help = named.map_or("rlock --help".into(), |name| format!("rlock {name} --help"));
    let is_key =
        |word: &OsString| word.to_str().is_some_and(|word| word.starts_with("-k") || word.starts_with("--key"));
    if words.get(1).is_some_and(is_key) {
        let wrong = if named.is_some() { "must stand" } else { "is missing" };
        let line = format!("the subcommand {wrong} before -k, as in: rlock run -k KEY -- COMMAND; try: {help}");
        return Err(Stop::Usage(line));
    }
    let near = nearest(&command, &words);
    let help = near.map_or(help, |name| format!("rlock {name} (a similar subcommand), or rlock --help"));
    let matches = command.try_get_matches_from_mut(&words).map_err(|error| stop(&error, &help))?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| stop(&error, &help))?;
    cli.global.note_source(matches.subcommand().map_or(&matches, |(_, sub)| sub));
    Ok(cli)
}

/// A command line that begins with `run` and is right. Everything else is the whole parser's: the errors, and help.
fn parse_run(words: &[OsString]) -> Option<Cli> {
    let words = words.get(1..).filter(|words| words.first().is_some_and(|word| word == "run"))?;
    let matches = RunAlone::command().try_get_matches_from(words).ok()?;
    let RunAlone { mut global, run } = RunAlone::from_arg_matches(&matches).ok()?;
    global.note_source(&matches);
    Some(Cli { global, task: Task::Run(Box::new(run)) })
}

/// The subcommand that the first word is one slip away from, where the parser sees none: its measure is too strict for
/// short words.
fn nearest(command: &clap::Command, words: &[OsString]) -> Option<String> {
    let typed = words.get(1)?.to_str()?;
    let names = command.get_subcommands().map(clap::Command::get_name);
    names.filter(|name| name.len() <= 4).find(|name| is_slip(typed, name)).map(str::to_owned)
}

/// Whether one character too many, missing, wrong, or two in the wrong order make `typed` of `meant`.
fn is_slip(typed: &str, meant: &str) -> bool {
    let (typed, meant): (Vec<char>, Vec<char>) = (typed.chars().collect(), meant.chars().collect());
    let same = typed.iter().zip(&meant).take_while(|(a, b)| a == b).count();
    let (typed, meant) = (&typed[same..], &meant[same..]);
    let same = typed.iter().rev().zip(meant.iter().rev()).take_while(|(a, b)| a == b).count();
    match (&typed[..typed.len() - same], &meant[..meant.len() - same]) {
        ([], []) => false,
        ([a, b], [c, d]) => a == d && b == c,
        (typed, meant) => typed.len() <= 1 && meant.len() <= 1,
    }
}

/// The parser's words as one line that ends in what to try.
fn stop(error: &clap::Error, help: &str) -> Stop {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Stop::Shown(text),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            return Stop::Usage(format!("nothing to do; try: {help}"));
        }
        _ => {}
    }
    // The tip to put a word after `--` would make an option a part of the command.
    let end =
        ["\nUsage:", "\nFor more information", "\n  tip: to pass"].iter().filter_map(|mark| text.find(mark)).min();
    let said = text[..end.unwrap_or(text.len())].trim_start_matches("error: ").replace("\n  tip: ", "; ");
    let line = said.split_whitespace().collect::<Vec<_>>().join(" ").replace(" ; ", "; ");
    // The parser blames the option for a variable that is empty.
    if line.contains("'--config <FILE>'") && std::env::var_os("RLOCK_CONFIG").is_some_and(|path| path.is_empty()) {
        return Stop::Usage("RLOCK_CONFIG is empty; give a file, or unset it to use /etc/rlock/config.toml".into());
    }
    Stop::Usage(format!("{line}; try: {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(words: &[&str]) -> String {
        match parse(words) {
            Err(Stop::Usage(line)) => line,
            other => panic!("{other:?}"),
        }
    }

    fn run(words: &[&str]) -> Run {
        match parse([&["rlock", "run", "-k", "k"], words].concat()).map(|cli| cli.task) {
            Ok(Task::Run(run)) => *run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn parsing_stops_at_the_first_word_of_the_command() {
        assert_eq!(run(&["cmd", "-n", "--json", "--", "-q"]).command, ["cmd", "-n", "--json", "--", "-q"]);
        assert_eq!(run(&["--", "-n"]).command, ["-n"]);
        assert_eq!(run(&["--", "cmd", "--", "x"]).command, ["cmd", "--", "x"]);
        assert_eq!(run(&["--", "--", "x"]).command, ["--", "x"]);
        assert_eq!(run(&["cmd", ""]).command, ["cmd", ""]);
        assert!(!run(&["cmd", "-n"]).nonblock);
        assert_eq!(run(&["-c", "a; b"]).shell.unwrap(), "a; b");
    }

    #[test]
    fn run_alone_takes_what_the_whole_parser_takes() {
        let options = |command: &clap::Command| {
            let mut names: Vec<_> = command.get_arguments().map(|arg| arg.get_id().to_string()).collect();
            names.sort();
            names
        };
        let mut whole = Cli::command();
        whole.build();
        let mut alone = RunAlone::command();
        alone.build();
        assert_eq!(options(&alone), options(whole.find_subcommand("run").unwrap()));
        for words in [&["-k", "k", "-q", "--ttl", "3", "--", "x"][..], &["--url", "u", "--json", "-kk", "-c", "x"]] {
            let words: Vec<OsString> = ["rlock", "run"].iter().chain(words).map(OsString::from).collect();
            let matches = Cli::command().try_get_matches_from(&words).unwrap();
            let whole = Cli::from_arg_matches(&matches).unwrap();
            assert_eq!(format!("{:?}", parse_run(&words).unwrap()), format!("{whole:?}"));
        }
    }

    #[test]
    fn flocks_spellings_work() {
        assert!(run(&["--nb", "x"]).nonblock && run(&["--nonblock", "x"]).nonblock && run(&["-n", "x"]).nonblock);
        assert_eq!(run(&["--timeout", "3", "x"]).wait.unwrap(), "3");
        assert_eq!(run(&["-w3", "x"]).wait.unwrap(), "3");
        assert!(run(&["-e", "x"]).exclusive && run(&["-x", "x"]).exclusive);
        assert_eq!(run(&["-E", "0", "x"]).conflict_exit_code.unwrap(), "0");
    }

    #[test]
    fn global_options_stand_before_or_after_the_subcommand() {
        for words in
            [["rlock", "--json", "--url", "u", "inspect", "k"], ["rlock", "inspect", "k", "--json", "--url", "u"]]
        {
            let cli = parse(words).unwrap();
            assert!(cli.global.json && cli.global.url.unwrap() == "u" && !cli.global.url_from_environment);
        }
    }

    #[test]
    fn usage_errors_are_one_line_that_ends_in_what_to_try() {
        for (words, begin, end) in [
            (&["rlock"][..], "nothing to do", "try: rlock --help"),
            (&["rlock", "frobnicate"], "unrecognized subcommand 'frobnicate'", "try: rlock --help"),
            (
                &["rlock", "run", "--", "x"],
                "the following required arguments were not provided: --key <KEY>",
                "try: rlock run --help",
            ),
            (
                &["rlock", "run", "-k", "k"],
                "the following required arguments were not provided",
                "try: rlock run --help",
            ),
            (
                &["rlock", "run", "-k", "k", "--tll", "3", "x"],
                "unexpected argument '--tll' found; a similar argument exists: '--ttl'",
                "try: rlock run --help",
            ),
            (
                &["rlock", "run", "-k", "k", "-c", "x", "y"],
                "the argument '-c <STRING>' cannot be used with",
                "try: rlock run --help",
            ),
            (
                &["rlock", "run", "-k", "k", "-n", "-w", "3", "y"],
                "the argument '--nonblock' cannot be used with",
                "try: rlock run --help",
            ),
            (
                &["rlock", "run", "-k", "k", "--on-lost", "cry", "y"],
                "invalid value 'cry' for '--on-lost <WHAT>'",
                "try: rlock run --help",
            ),
            (
                &["rlock", "-k", "a", "--", "true"],
                "the subcommand is missing before -k, as in: rlock run -k KEY",
                "try: rlock --help",
            ),
            (
                &["rlock", "-k", "a", "run", "--", "true"],
                "the subcommand must stand before -k, as in: rlock run -k KEY",
                "try: rlock run --help",
            ),
            (
                &["rlock", "rnu"],
                "unrecognized subcommand 'rnu'",
                "try: rlock run (a similar subcommand), or rlock --help",
            ),
            (&["rlock", "help", "frobnicate"], "unrecognized subcommand", "try: rlock --help"),
            (&["rlock", "completions", "tcsh"], "invalid value 'tcsh'", "try: rlock completions --help"),
            (&["rlock", "force-release"], "the following required", "try: rlock force-release --help"),
        ] {
            let line = usage(words);
            assert!(line.starts_with(begin) && line.ends_with(end) && !line.contains('\n'), "{words:?}: {line}");
        }
    }

    #[test]
    fn help_and_version_are_shown() {
        let shown = |words: &[&str]| match parse(words) {
            Err(Stop::Shown(text)) => text,
            other => panic!("{words:?}: {other:?}"),
        };
        for words in [&["rlock", "--help"][..], &["rlock", "run", "-h"], &["rlock", "--version"]] {
            assert!(!shown(words).is_empty(), "{words:?}");
        }
        assert_eq!(shown(&["rlock", "help"]), shown(&["rlock", "--help"]));
        assert_eq!(shown(&["rlock", "help", "run"]), shown(&["rlock", "run", "--help"]));
    }

    #[test]
    fn one_slip_is_forgiven() {
        for typed in ["rnu", "urn", "ru", "runn", "rum", "rin"] {
            assert!(is_slip(typed, "run"), "{typed}");
        }
        for typed in ["run", "rm", "nur", "ruler", ""] {
            assert!(!is_slip(typed, "run"), "{typed}");
        }
    }

    #[test]
    fn no_help_text_shows_the_environment() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("[env: RLOCK_URL]"), "{help}");
    }
}
