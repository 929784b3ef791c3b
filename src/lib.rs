//! rlock runs a command while it holds a lock that other hosts respect.
//!
//! # What is promised
//!
//! 1. The command is dead before its lease can pass to another (with `--on-lost terminate` or `kill`).
//! 2. Nobody releases, renews or steals a lock that is not theirs, except `force-release --now`, which says whose it
//!    was.
//! 3. The outcome is never ambiguous: the command's status passes through, what is rlock's has its own code and line,
//!    and a report tells them apart for certain.
//!
//! # The map
//!
//! Dependencies point down this list, never up and never between lines of one layer; `tests/tidy.rs` holds it.
//!
//! | file | what it does |
//! |---|---|
//! | `main.rs` | the process: its words, its end |
//! | `lib.rs` | this map; from the command line to an exit |
//! | `command.rs` | the subcommands that look: `command/inspect.rs`, `command/list.rs`, `command/ttl.rs`, `command/force_release.rs`, and `command/completions.rs` |
//! | `run.rs` | the main job: `run/event_loop.rs` is the one loop, `run/next.rs` decides what it does, by the words of `run/events.rs`, `run/account.rs` is what it says and reports, `run/wait.rs` obtains the lock, `run/hold.rs` keeps it, `run/clock_jump.rs` sees a step of its store's clock, `run/worker.rs` is the thread both are done on |
//! | `nest.rs` | a run inside a run |
//! | `report.rs` | every line rlock prints: `report/voice.rs` speaks, `report/lines.rs`, `report/run_lines.rs` and `report/view.rs` word it, `report/who.rs` names a holder, `report/outcome.rs` is `--report` |
//! | `settings.rs` | what was typed becomes what is meant: `settings/resolve.rs`, `settings/given.rs`, `settings/duration.rs`, `settings/file.rs` |
//! | `cli.rs` | the command line; its comments are the help and the man pages |
//! | `keeper.rs` | the process between rlock and the command, that ends the tree when rlock cannot; `keeper/serve.rs` is its side |
//! | `child.rs` | the command: found, started, ended; `child/tree.rs` is everything below it |
//! | `signal.rs` | signals: their names, those taken, dying of one |
//! | `store/redis.rs` | one Redis server: `store/redis/url.rs` and `store/redis/dial.rs` reach it, `store/redis/wire.rs` speaks with an end to every request, `store/redis/script.rs` and `store/redis/claim.lua` are the rule there, `store/redis/look.rs`, `store/redis/list.rs` and `store/redis/foreign.rs` look, `store/redis/errors.rs` says what its errors mean |
//! | `store/local.rs` | a directory of this host: `store/local/place.rs` finds it, `store/local/folder.rs` locks a key in it, `store/local/nudge.rs` lets a stopped process go on that keeps it locked, `store/local/record.rs` keeps what is known of the key, `store/local/saved.rs` is what that is, `store/local/pulse.rs` hears from the kernel who is dead |
//! | `lease.rs` | when to renew, signal and kill, as pure decisions |
//! | `store.rs` | the port: what is asked of a store, and the only list of stores; `store/glob.rs` is the patterns of a list |
//! | `claim.rs` | THE RULE: who holds a key, and who is next |
//! | `error.rs` | why rlock itself did not do its job |
//! | `exit.rs` | the table of exit codes |
//! | `clock.rs` | time that goes on in suspend |
//! | `timing.rs` | every constant, with its arithmetic |
//! | `text.rs` | escaping, cutting, durations for people |
//! | `sys.rs` | the only `unsafe` |

pub mod child;
pub mod claim;
pub mod cli;
pub mod clock;
pub mod command;
pub mod error;
pub mod exit;
pub mod keeper;
pub mod lease;
pub mod nest;
pub mod report;
pub mod run;
pub mod settings;
pub mod signal;
pub mod store;
pub mod sys;
pub mod text;
pub mod timing;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use cli::{Cli, Stop};
use error::Error;
use exit::Exit;
use report::Voice;
use settings::{Output, Settings, Task};

/// How long the last words may take, should nobody read them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The last line of an rlock that has no memory left; its keeper ends what it ran.
const OUT_OF_MEMORY: &str = "rlock: out of memory: a command that ran is ended, a lock that was held lapses with its lease (see ulimit -v, -d)\n";

/// Does what the command line says, and how it ended.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Exit {
    sys::keep_reserve(OUT_OF_MEMORY, exit::OS.into());
    tell_panics();
    let done = catch_unwind(AssertUnwindSafe(|| match cli::parse(words) {
        Ok(cli) => dispatch(&cli),
        Err(Stop::Shown(text)) => report::print(&text).map(|()| Exit::Code(exit::OK)).map_err(Into::into),
        Err(Stop::Usage(line)) => Err(Error::Usage(line).into()),
    }));
    // The hook has told of a panic.
    done.map_or(Exit::Code(exit::SOFTWARE), |done| done.unwrap_or_else(|error| told(&error)))
}

fn dispatch(cli: &Cli) -> anyhow::Result<Exit> {
    if let cli::Task::Completions(completions) = &cli.task {
        return command::completions::completions(completions.shell);
    }
    let (settings, task) = Settings::read(cli)?;
    match task {
        Task::Run(run) => run::run(&settings, &run),
        Task::Inspect(keys) => command::inspect::inspect(&settings, &keys),
        Task::List(pattern) => command::list::list(&settings, pattern.as_deref()),
        Task::Ttl { keys, ms } => command::ttl::ttl(&settings, &keys, ms),
        Task::ForceRelease(force) => command::force_release::force_release(&settings, &force),
    }
}

/// Says why it failed, and gives the exit that belongs to it.
fn told(error: &anyhow::Error) -> Exit {
    if error.is::<command::Interrupted>() {
        return Exit::Signal(nix::libc::SIGINT);
    }
    say(&format!("{error:#}"));
    Exit::Code(error.downcast_ref().map_or(exit::SOFTWARE, Error::code))
}

/// From now on a panic is one line like any other.
pub fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let what = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic");
        say(&format!("internal error at {place}: {what}; please report it"));
    }));
}

/// A last line, that no stuck stderr holds up.
fn say(line: &str) {
    let voice = Voice::threaded(Output::default());
    voice.say(line);
    voice.finish(LAST_WORDS);
}
