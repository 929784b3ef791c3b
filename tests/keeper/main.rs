//! The keeper, signals and the tree of a command, with real processes.
//!
//! `parent.rs` is the process under test: this program started again as something like rlock, on one thread, doing
//! what `rig.rs` tells it over a socket. `command.rs` holds what the command gets and how its end comes through,
//! `death.rs` who dies when something is killed or stopped, `trees.rs` whole trees and what cannot be killed, `panics.rs` a whole run whose
//! store's thread panics.

#![allow(clippy::unwrap_used, reason = "tests without the usual harness are not known as tests")]

mod command;
mod death;
mod panics;
mod parent;
mod rig;
mod trees;

use std::env;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().collect();
    if words.get(1).is_some_and(|word| word == parent::ROLE) {
        return parent::main(&words[2..]);
    }
    if words.get(1).is_some_and(|word| word == panics::ROLE) {
        return panics::main(&words[2..]);
    }
    let trials = [command::TESTS, death::TESTS, panics::TESTS, trees::TESTS].concat();
    let trials = trials.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    let mut arguments = Arguments::from_args();
    // Some of them measure how fast a tree dies.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
