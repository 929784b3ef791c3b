//! The binary as users run it, on real stores. Every test has a store and a directory of its own, and waits for
//! facts; none sleeps and hopes. What must be the same on every store is written once and runs on each.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]
#![allow(clippy::print_stdout, reason = "what was measured, and what was left out")]
#![allow(clippy::duplicate_mod, reason = "the same tests run on each store")]

mod rlock;
#[path = "../store/servers.rs"]
mod servers;
mod tmux;

/// On a Redis server.
#[path = "."]
mod redis {
    pub(crate) type Stage = crate::rlock::Stage<crate::rlock::Redis>;

    /// What bounds a run: `--max-runtime`, `--hold-at-least`, `--jitter`.
    mod bounds;
    /// SIGKILL, SIGSTOP and signals to anybody at random instants.
    mod chance;
    /// Codes and signals of the command, rlock's own codes, and `--report`.
    mod exit_codes;
    /// Limits, containers, nesting.
    mod hosts;
    /// SIGKILL and SIGSTOP of rlock, its keeper, its tree and of waiters.
    mod kills;
    /// Renewal and release.
    mod lease;
    /// Out of descriptors, of memory and of processes, at every step.
    mod limits;
    /// What a wait shows on a terminal.
    mod live;
    /// What `inspect`, `list` and `ttl` show.
    mod looking;
    /// The lease is lost: replaced, condemned, frozen, cut off.
    mod lost;
    /// A search of a large server.
    mod many;
    /// `force-release` of a holder that lives.
    mod passing;
    /// Order, and what a wait says.
    mod queue;
    /// What `run` refuses before it asks, and how it says so.
    mod refused;
    /// What only a server can do: other programs' keys, rights, logins, silence.
    mod server;
    /// Signals to rlock, to the command and to both; what is left after a stop signal.
    mod signals;
    /// Streams that are closed, full or not read.
    mod streams;
    /// Descriptors, environment, dispositions, secrets.
    mod surroundings;
    /// Job control, the keyboard's signals and pagers on a real terminal.
    mod terminal;
}

/// On a directory of this host.
#[path = "."]
mod local {
    pub(crate) type Stage = crate::rlock::Stage<crate::rlock::Directory>;

    mod bounds;
    /// What shells complete.
    mod completing;
    /// What is done to the directory: a full disk, limits, removal, another boot.
    mod damage;
    /// What only the local store can do: it hears of deaths.
    mod directory;
    mod exit_codes;
    mod hosts;
    mod kills;
    mod lease;
    mod limits;
    mod live;
    mod looking;
    mod passing;
    mod queue;
    mod refused;
    mod signals;
    mod streams;
    mod surroundings;
    mod terminal;
    /// Whose directory it is, and where.
    mod users;
}
