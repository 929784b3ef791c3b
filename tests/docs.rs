//! What is checked in and can be made from the program is what the program makes: completions, man pages, the
//! README's blocks. `RLOCK_BLESS=1 cargo test --test docs` rewrites them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory as _;
use clap_mangen::Man;
use rlock::cli::{Cli, Shell};
use rlock::command::completions::script;
use rlock::exit;

const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "completions/rlock.bash", "bash"),
    (Shell::Zsh, "completions/_rlock", "zsh"),
    (Shell::Fish, "completions/rlock.fish", "fish"),
];

const ENVIRONMENT: [(&str, &str); 9] = [
    ("RLOCK_URL", "The store, where --url does not name it. May have a password."),
    ("RLOCK_CONFIG", "The file of defaults, where --config does not name it."),
    ("RLOCK_KEY", "Set for the command: what is locked."),
    (
        "RLOCK_TOKEN",
        "Set for the command: a number that grows with every grant of the key. A resource that refuses a \
      smaller one than it has seen is safe from a holder that was late.",
    ),
    ("RLOCK_CLAIM", "Set for the command: the claims that are held, the outermost first, each as id@key."),
    ("TERM", "With dumb, or unset, what changes on a terminal is told in single lines, without colour."),
    ("NO_COLOR", "When it is set and not empty, nothing has a colour."),
    ("COLUMNS", "The width of the help, where it does not go to a terminal."),
    ("PATH", "Where the command is looked for."),
];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The file is `text`, or becomes it.
#[track_caller]
fn is_current(path: &str, text: &str) {
    if std::env::var_os("RLOCK_BLESS").is_some() {
        std::fs::write(root(path), text).unwrap();
    }
    let found = std::fs::read_to_string(root(path)).unwrap_or_default();
    let differs = found.lines().zip(text.lines()).position(|(a, b)| a != b);
    assert!(
        found == text,
        "{path} is not current from line {}; RLOCK_BLESS=1 cargo test --test docs rewrites it",
        differs.map_or(found.lines().count().min(text.lines().count()), |at| at) + 1
    );
}

#[test]
fn the_completions_are_current_and_their_shells_take_them() {
    for (shell, path, program) in COMPLETIONS {
        is_current(path, &script(shell));
        let checked = Command::new(program).arg("-n").arg(root(path)).output();
        let checked = checked.unwrap_or_else(|_| panic!("{program} must be installed; tests/run.sh does that"));
        assert!(checked.status.success() && checked.stderr.is_empty(), "{path}: {checked:?}");
    }
}

#[test]
fn the_man_pages_are_current() {
    let mut command = Cli::command();
    command.build();
    let mut pages = vec![("rlock".to_owned(), page(&command))];
    for sub in command.get_subcommands() {
        pages.push((format!("rlock-{}", sub.get_name()), page(sub)));
    }
    for (name, text) in &pages {
        is_current(&format!("man/{name}.1"), text);
        let checked = Command::new("man").args(["--warnings", "-l"]).arg(root(&format!("man/{name}.1"))).output();
        let checked = checked.expect("man must be installed; tests/run.sh does that");
        assert!(checked.status.success() && checked.stderr.is_empty(), "{name}: {checked:?}");
    }
    let mut there: Vec<String> = std::fs::read_dir(root("man"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut made: Vec<String> = pages.iter().map(|(name, _)| format!("{name}.1")).collect();
    there.sort();
    made.sort();
    assert_eq!(there, made, "man/ holds the pages of the subcommands and no others");
}

/// The page of a command, in the order of flock(1).
fn page(command: &clap::Command) -> String {
    let mut out = Vec::new();
    let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(command.clone().after_long_help("")).date("").source("rlock").manual("rlock");
    man.render_title(&mut out).unwrap();
    man.render_name_section(&mut out).unwrap();
    man.render_synopsis_section(&mut out).unwrap();
    man.render_description_section(&mut out).unwrap();
    if command.get_subcommands().next().is_some() {
        man.render_subcommands_section(&mut out).unwrap();
    }
    man.render_options_section(&mut out).unwrap();
    let mut page = String::from_utf8(out).unwrap();
    match part(&after, "Exit codes:") {
        Some(codes) => verbatim(&mut page, "EXIT STATUS", codes),
        None => table(&mut page, "EXIT STATUS", &codes(command.get_name())),
    }
    table(&mut page, "ENVIRONMENT", &ENVIRONMENT.map(|(name, text)| (name.to_owned(), text)));
    table(
        &mut page,
        "FILES",
        &[(
            rlock::settings::DEFAULT_PATH.to_owned(),
            "Defaults, as TOML under the long options' names: url = \"redis://db1\". Unknown keys are errors.",
        )],
    );
    if let Some(examples) = part(&after, "Examples:") {
        verbatim(&mut page, "EXAMPLES", examples);
    }
    let others = if command.get_name() == "rlock" {
        ".BR rlock\\-run (1),\n.BR rlock\\-inspect (1),\n.BR rlock\\-list (1),\n.BR rlock\\-ttl (1),\n\
         .BR rlock\\-force\\-release (1),\n.BR flock (1)"
    } else {
        ".BR rlock (1)"
    };
    let _ = writeln!(page, ".SH \"SEE ALSO\"\n{others}");
    page
}

/// The codes of a subcommand that does not tell its own.
fn codes(name: &str) -> Vec<(String, &'static str)> {
    let is_its = |code: u8| match name {
        "rlock" => true,
        "inspect" | "ttl" => matches!(code, 0 | 1 | 64 | 69..=71 | 77 | 78),
        "list" => matches!(code, 0 | 64 | 69..=71 | 77 | 78),
        _ => matches!(code, 0 | 64 | 71),
    };
    exit::TABLE.iter().filter(|(code, _)| is_its(*code)).map(|(code, text)| (code.to_string(), *text)).collect()
}

/// The lines below a heading, to the next empty line.
fn part<'a>(text: &'a str, heading: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("{heading}\n"))?;
    Some(rest.split("\n\n").next().unwrap_or(rest))
}

fn roff(text: &str) -> String {
    let plain = text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    if plain.starts_with(['.', '\'']) { format!("\\&{plain}") } else { plain }
}

fn verbatim(page: &mut String, heading: &str, text: &str) {
    let _ = writeln!(page, ".SH \"{heading}\"\n.nf");
    for line in text.lines() {
        let _ = writeln!(page, "{}", roff(line.strip_prefix("  ").unwrap_or(line)));
    }
    let _ = writeln!(page, ".fi");
}

fn table(page: &mut String, heading: &str, rows: &[(String, &str)]) {
    let _ = writeln!(page, ".SH \"{heading}\"");
    for (name, text) in rows {
        let _ = writeln!(page, ".TP\n.B {}\n{}", roff(name), roff(text));
    }
}

#[test]
fn the_readme_has_the_help_and_the_exit_codes() {
    let readme = std::fs::read_to_string(root("README.md")).unwrap();
    let mut command = Cli::command().term_width(100);
    command.build();
    let help = command.find_subcommand_mut("run").unwrap().clone().term_width(100).render_help().to_string();
    let text = replaced(&readme, "help", &format!("```text\n{}\n```", help.trim_end()));
    let mut rows = "| code | meaning |\n|---|---|\n| as is | the command ran: its own code |\n\
                    | signal | the command died of a signal: rlock dies of the same (128 + n where it cannot); a signal \
                    while waiting: of that |\n"
        .to_owned();
    for (code, text) in exit::TABLE {
        let _ = writeln!(rows, "| {code} | {text} |");
    }
    is_current("README.md", &replaced(&text, "exit codes", rows.trim_end()));
}

/// `text` with what stands between the two marks of `name` replaced.
fn replaced(text: &str, name: &str, by: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("\n<!-- end of {name} -->"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("the README lacks {begin:?}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("the README lacks {end:?}"));
    format!("{before}{begin}{by}{end}{after}")
}

#[test]
fn the_help_of_run_tells_every_exit_code_as_the_table_does() {
    let command = Cli::command();
    let after = command.find_subcommand("run").unwrap().get_after_long_help().unwrap().to_string();
    for (code, text) in exit::TABLE.iter().filter(|(code, _)| *code > 1) {
        let text = text.split(';').next().unwrap();
        let line = format!("\n  {code:<5}{}", text.replace('`', ""));
        assert!(after.contains(&line), "{line:?} is not in the help of run:\n{after}");
    }
}

#[test]
fn every_option_has_a_help_text_without_a_full_stop() {
    let mut command = Cli::command();
    command.build();
    for sub in std::iter::once(&command).chain(command.get_subcommands()) {
        for arg in sub.get_arguments() {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty() && !help.ends_with('.'), "{} {}: {help:?}", sub.get_name(), arg.get_id());
        }
    }
}
