//! `rlock completions`: what a shell needs to complete rlock's words.

use clap::CommandFactory as _;
use clap_complete::shells::{Bash, Fish, Zsh};

use crate::cli::{Cli, Shell};
use crate::exit::{self, Exit};
use crate::report;

/// Prints the completions of `shell`.
pub fn completions(shell: Shell) -> anyhow::Result<Exit> {
    report::print(&script(shell))?;
    Ok(Exit::Code(exit::OK))
}

/// The completions of `shell`.
pub fn script(shell: Shell) -> String {
    let (mut command, mut out) = (Cli::command(), Vec::new());
    match shell {
        Shell::Bash => clap_complete::generate(Bash, &mut command, "rlock", &mut out),
        Shell::Zsh => clap_complete::generate(Zsh, &mut command, "rlock", &mut out),
        Shell::Fish => clap_complete::generate(Fish, &mut command, "rlock", &mut out),
    }
    String::from_utf8_lossy(&out).into_owned()
}
