//! The one file of defaults: TOML under the long options' names. Unknown keys are errors with file and line.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::error::Error;

/// What `/dev/null` is on Linux: the way to have no file.
const NULL_DEVICE: u64 = nix::sys::stat::makedev(1, 3);

/// Where the file is looked for.
pub const DEFAULT_PATH: &str = "/etc/rlock/config.toml";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// A string or a number of seconds.
    Duration,
    Number,
    Switch,
    /// A string or a list of one.
    Url,
}

/// The keys of the file: every option that can have a default, with an example of a value.
const KEYS: &[(&str, Kind, &str)] = &[
    ("conflict-exit-code", Kind::Number, "75"),
    ("hold-at-least", Kind::Duration, "\"50s\""),
    ("jitter", Kind::Duration, "\"10s\""),
    ("json", Kind::Switch, "true"),
    ("kill-after", Kind::Duration, "\"5s\""),
    ("label", Kind::Text, "\"nightly\""),
    ("max-runtime", Kind::Duration, "\"1h\""),
    ("no-forward", Kind::Switch, "true"),
    ("nonblock", Kind::Switch, "true"),
    ("on-lost", Kind::Text, "\"kill\""),
    ("password-file", Kind::Text, "\"/etc/rlock/password\""),
    ("quiet", Kind::Switch, "true"),
    ("report", Kind::Text, "\"/var/log/rlock\""),
    ("signal", Kind::Text, "\"TERM\""),
    ("store-timeout", Kind::Duration, "\"30s\""),
    ("ttl", Kind::Duration, "\"30s\""),
    ("url", Kind::Url, "\"redis://db1\""),
    ("verbose", Kind::Switch, "true"),
    ("wait", Kind::Duration, "\"10m\""),
    ("wait-replicas", Kind::Number, "1"),
];

/// The file's values as text, each with its line.
#[derive(Debug, Default)]
pub(super) struct File {
    path: PathBuf,
    values: BTreeMap<String, (String, usize)>,
}

impl File {
    /// Reads the file. A default that is missing is empty; a `chosen` one that is missing is an error.
    pub(super) fn read(chosen: Option<&Path>) -> Result<Self, Error> {
        let path = chosen.unwrap_or(Path::new(DEFAULT_PATH));
        match read(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if chosen.is_none() && is_missing(&error) => Ok(Self::default()),
            Err(error) => Err(Error::Config(format!(
                "cannot read {}: {error}; {}",
                path.display(),
                if chosen.is_some() {
                    "correct --config or RLOCK_CONFIG"
                } else {
                    "let this user read it, or remove it"
                }
            ))),
        }
    }

    /// The values in `text`, the content of `path`.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let at = |line: usize, why: &str| Error::Config(format!("{}:{line}: {why}", path.display()));
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let why = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            let remedy = remedy(text.lines().nth(line - 1).unwrap_or_default(), &why);
            at(line, &(why + &remedy))
        })?;
        let mut values = BTreeMap::new();
        for (name, value) in table.get_ref() {
            let line = line_of(text, name.span().start);
            let name = name.get_ref().as_ref();
            let Some((_, kind, example)) = KEYS.iter().find(|(known, ..)| *known == name) else {
                return Err(at(line, &unknown(name)));
            };
            let wrong = |why| at(line, &format!("`{name}` {why}; write for example: {name} = {example}"));
            let value = text_of(*kind, value.get_ref()).map_err(wrong)?;
            values.insert(name.to_owned(), (value, line));
        }
        Ok(Self { path: path.to_owned(), values })
    }

    /// The text of a value, and where it stands.
    pub(super) fn get(&self, name: &str) -> Option<(&str, String)> {
        debug_assert!(KEYS.iter().any(|(known, ..)| *known == name), "{name} is not a key of the file");
        let (text, line) = self.values.get(name)?;
        Some((text, format!("{}:{line}: `{name}`", self.path.display())))
    }

    /// Whether a switch is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|(text, _)| text == "true")
    }
}

/// The file's text. Nothing is read that could have no end or no writer.
fn read(path: &Path) -> io::Result<String> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let about = file.metadata()?;
    let is_null = about.file_type().is_char_device() && about.rdev() == NULL_DEVICE;
    if !about.is_file() && !is_null {
        let kind = if about.is_dir() { "it is a directory" } else { "it is not a regular file" };
        return Err(io::Error::other(kind));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

/// What to write instead of a line that is no TOML, where it begins with a known key.
fn remedy(line: &str, why: &str) -> String {
    let name = line.split('=').next().unwrap_or_default().trim();
    match KEYS.iter().find(|(known, ..)| *known == name) {
        Some((name, _, example)) => {
            let once = if why.contains("duplicate") { " it once" } else { "" };
            format!("; at `{name}`: write{once}, for example: {name} = {example}")
        }
        None => "; a line is a key and a value, for example: url = \"redis://db1\"".into(),
    }
}

fn unknown(name: &str) -> String {
    let hyphens = name.replace('_', "-");
    if KEYS.iter().any(|(known, ..)| *known == hyphens) {
        return format!("unknown key `{name}`; write `{hyphens}`");
    }
    let known: Vec<_> = KEYS.iter().map(|(known, ..)| *known).collect();
    format!("unknown key `{name}`; known are {}", known.join(", "))
}

fn text_of(kind: Kind, value: &DeValue<'_>) -> Result<String, String> {
    let wants = match (kind, value) {
        (Kind::Text | Kind::Duration | Kind::Url, DeValue::String(text)) => return Ok(text.to_string()),
        (Kind::Duration | Kind::Number, DeValue::Integer(number)) if number.radix() == 10 => {
            return Ok(number.as_str().to_owned());
        }
        (Kind::Duration, DeValue::Float(number)) => return Ok(number.as_str().to_owned()),
        (Kind::Switch, DeValue::Boolean(on)) => return Ok(on.to_string()),
        (Kind::Url, DeValue::Array(urls)) => {
            return match urls.iter().map(toml::Spanned::get_ref).collect::<Vec<_>>()[..] {
                [DeValue::String(url)] => Ok(url.to_string()),
                _ => Err("must be one URL; several, a quorum, are not offered yet".into()),
            };
        }
        (Kind::Text, _) => "a string in quotes",
        (Kind::Duration, _) => "a duration, in quotes, or a number of seconds",
        (Kind::Number, _) => "a whole number",
        (Kind::Switch, _) => "true or false",
        (Kind::Url, _) => "a URL in quotes",
    };
    Err(format!("must be {wants}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in prop_oneof![
            ".{0,60}",
            "((ttl|url|json|wait|x) ?= ?(true|[0-9]{1,4}|'[a-z]{0,3}'|\\[('a',?){0,2}\\]|\\{|.{0,4})(#.{0,3})?\n){0,5}",
            "(\\[[a-z.]{0,5}\\]\n|\"\"\"|'{3}|[a-z]=\\{[a-z]=1\\}|\n){0,8}",
        ]) {
            match File::parse(Path::new("/f.toml"), &text) {
                Ok(file) => prop_assert!(file.values.keys().all(|name| KEYS.iter().any(|(known, ..)| known == name))),
                Err(error) => {
                    let said = error.to_string();
                    let line = said.strip_prefix("/f.toml:").and_then(|rest| rest.split(':').next()?.parse().ok());
                    let lines = text.split('\n').count();
                    prop_assert!(line.is_some_and(|line: usize| (1..=lines).contains(&line)), "{}", said);
                }
            }
        }
    }

    fn parse(text: &str) -> Result<File, String> {
        File::parse(Path::new("/f.toml"), text).map_err(|error| {
            assert_eq!(error.code(), crate::exit::CONFIG);
            error.to_string()
        })
    }

    #[test]
    fn values_come_as_text_with_their_line() {
        let file =
            parse("# a comment\nurl = [\"redis://a\"]\nttl = 30\nwait = 0.5\nquiet = true\nlabel = 'x'\n").unwrap();
        assert_eq!(file.get("url"), Some(("redis://a", "/f.toml:2: `url`".into())));
        assert_eq!(file.get("ttl").unwrap().0, "30");
        assert_eq!(file.get("wait").unwrap().0, "0.5");
        assert!(file.is_on("quiet") && !file.is_on("verbose"));
        assert_eq!(file.get("signal"), None);
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        for (text, error) in [
            ("url = 'x'\n\ntll = 3\n", "/f.toml:3: unknown key `tll`; known are conflict-exit-code, hold-at-least,"),
            ("store_timeout = 3\n", "/f.toml:1: unknown key `store_timeout`; write `store-timeout`"),
            ("ttl = true\n", "/f.toml:1: `ttl` must be a duration"),
            ("ttl = 0x10\n", "/f.toml:1: `ttl` must be a duration"),
            ("\nquiet = 1\n", "/f.toml:2: `quiet` must be true or false"),
            ("\nquiet = 'yes'\n", "/f.toml:2: `quiet` must be true or false; write for example: quiet = true"),
            ("signal = 15\n", "/f.toml:1: `signal` must be a string"),
            ("conflict-exit-code = '7'\n", "/f.toml:1: `conflict-exit-code` must be a whole number"),
            ("url = ['a', 'b', 'c']\n", "/f.toml:1: `url` must be one URL"),
            ("url = []\n", "/f.toml:1: `url` must be one URL"),
            ("ttl = 3\nttl = 4\n", "/f.toml:2: duplicate key"),
            ("ttl = \n", "/f.toml:1: "),
            ("[run]\nttl = 3\n", "/f.toml:1: unknown key `run`"),
            ("key = 'a'\n", "/f.toml:1: unknown key `key`"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.starts_with(error) && !said.contains('\n'), "{text:?}: {said}");
        }
    }

    #[test]
    fn what_is_no_toml_is_shown_how_to_write_it() {
        for (text, end) in [
            ("url = redis://h\n", "at `url`: write, for example: url = \"redis://db1\""),
            ("ttl = 3\nttl = 4\n", "at `ttl`: write it once, for example: ttl = \"30s\""),
            ("<url>\n", "; a line is a key and a value, for example: url = \"redis://db1\""),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.ends_with(end) && !said.contains('\n'), "{text:?}: {said}");
        }
        let examples: Vec<String> = KEYS.iter().map(|(name, _, example)| format!("{name} = {example}")).collect();
        assert_eq!(parse(&examples.join("\n")).unwrap().values.len(), KEYS.len());
    }

    #[test]
    fn every_key_is_a_long_option() {
        let command = crate::cli::Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for (name, ..) in KEYS {
            let is_named = |arg: &clap::Arg| arg.get_long() == Some(*name);
            assert!(command.get_arguments().any(is_named) || run.get_arguments().any(is_named), "{name}");
        }
    }

    #[test]
    fn only_a_chosen_file_must_be_there() {
        let missing = Path::new("/nonexistent/rlock.toml");
        assert!(File::read(Some(missing)).unwrap_err().to_string().contains("cannot read /nonexistent/rlock.toml"));
    }
}
