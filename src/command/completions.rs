//! `rlock completions`: what a shell needs to complete rlock's words, the keys that are held, and the words of the
//! wrapped command.

use clap::CommandFactory as _;
use clap_complete::shells::{Bash, Fish, Zsh};

use crate::cli::{Cli, Shell};
use crate::exit::{self, Exit};
use crate::report;

/// For sed: the keys in what `list --json` prints, one a line. Without two backslashes in a row, which fish would take
/// for one. A key that has to be written with `\u` is left out: nobody could type it.
const KEYS: &str = r#"s/^[{]"v":1,"key":"(([^"\]|[\]["\])*)".*/\1/; t key; d; :key; s/[\](["\])/\1/g; p"#;

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
    let made = String::from_utf8_lossy(&out);
    let words = |text: &str| text.replace("@KEYS@", KEYS).replace("@VALUED@", &valued(&command).join(" "));
    match shell {
        Shell::Bash => made.into_owned() + &words(include_str!("completions/words.bash")),
        Shell::Zsh => {
            let keyed = made
                .replace(":KEY:' \\", ":KEY:_rlock_keys' \\")
                .replace(" -- What is locked:' \\", " -- What is locked:_rlock_keys' \\")
                .replace(":SIGNAL:' \\", ":SIGNAL:_signals' \\")
                .replace("    (rlock)\n", "    (rlock)\n        local -A _rlock_opt_args=(\"${(@kv)opt_args}\")\n");
            keyed.replacen("_rlock() {", &(words(include_str!("completions/words.zsh")) + "\n_rlock() {"), 1)
        }
        Shell::Fish => {
            let of_run = |line: &str| {
                let line = line.replace("\"__fish_rlock_using_subcommand run\"", "__rlock_in_options");
                let values = match line {
                    _ if line.contains(" -l key ") => " -a \"(__rlock_keys)\"\n",
                    _ if line.contains(" -l signal ") => " -a \"(string split ' ' (kill -l))\"\n",
                    _ => "\n",
                };
                line + values
            };
            made.lines().map(of_run).collect::<String>() + &words(include_str!("completions/words.fish"))
        }
    }
}

/// The options that take a value, as they are typed.
fn valued(command: &clap::Command) -> Vec<String> {
    let all = std::iter::once(command).chain(command.get_subcommands()).flat_map(clap::Command::get_arguments);
    let mut names = Vec::new();
    for option in all.filter(|arg| !arg.is_positional() && arg.get_action().takes_values()) {
        names
            .extend(option.get_short_and_visible_aliases().unwrap_or_default().iter().map(|short| format!("-{short}")));
        names.extend(option.get_long_and_visible_aliases().unwrap_or_default().iter().map(|long| format!("--{long}")));
    }
    names.sort();
    names.dedup();
    names
}
