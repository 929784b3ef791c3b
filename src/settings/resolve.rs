//! From text to meaning: every default and every rule between options.

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use clap::ValueEnum as _;

use super::duration::{self, YEAR};
use super::file::File;
use super::given::{Given, Origin};
use super::{Command, ForceReleaseSettings, Output, ReportTarget, RunSettings, Settings, StoreSettings, Task, Wait};
use crate::claim::ClaimId;
use crate::cli::{self, Cli};
use crate::error::Error;
use crate::lease::OnLost;
use crate::store::{Key, Url};
use crate::text::{short, shown};
use crate::{exit, signal, timing};

const TTL: RangeInclusive<Duration> = timing::LEAST_TTL..=timing::GREATEST_TTL;
const WAIT: RangeInclusive<Duration> = Duration::ZERO..=YEAR;
const HOLD: RangeInclusive<Duration> = Duration::ZERO..=timing::GREATEST_TTL;
const STORE_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(100)..=timing::GREATEST_TTL;
const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// Decides, without looking at anything else.
pub(super) fn resolve(cli: &Cli, file: &File) -> Result<(Settings, Task), Error> {
    let given = Given { file };
    let mut output = Output {
        json: cli.global.json || file.is_on("json"),
        quiet: cli.global.quiet || file.is_on("quiet"),
        verbose: cli.global.verbose || file.is_on("verbose"),
    };
    let task = match &cli.task {
        cli::Task::Run(run) => {
            output.quiet |= run.skip;
            Task::Run(Box::new(run_settings(run, given)?))
        }
        cli::Task::Inspect(inspect) => Task::Inspect(keys(&inspect.keys)?),
        cli::Task::List(list) => Task::List(list.pattern.as_deref().map(|text| utf8(text, "the pattern")).transpose()?),
        cli::Task::Ttl(ttl) => Task::Ttl { keys: keys(&ttl.keys)?, ms: ttl.ms },
        cli::Task::ForceRelease(force) => Task::ForceRelease(force_release(force)?),
        cli::Task::Completions(_) => return Err(Error::Software("completions need no settings".into())),
    };
    Ok((Settings { store: store(cli, given)?, output }, task))
}

fn store(cli: &Cli, given: Given<'_>) -> Result<StoreSettings, Error> {
    let timeout = given.duration("store-timeout", cli.global.store_timeout.as_deref(), &STORE_TIMEOUT)?;
    let password_file = match &cli.global.password_file {
        Some(path) => Some(path.clone()),
        None => given.file.get("password-file").map(|(text, _)| PathBuf::from(text)),
    };
    let (url, from) = match url(cli, given)? {
        Some((url, from)) => (Some(url), from.name()),
        None => (None, String::new()),
    };
    if cli.global.password_file.is_some() && url.as_ref().is_some_and(Url::has_password) {
        return Err(Error::Usage(format!(
            "--password-file would not be used: {from} has a password; take that out of the URL, or drop --password-file"
        )));
    }
    let (unconfigured, url) = (url.is_none(), url.unwrap_or_else(Url::local));
    Ok(StoreSettings {
        // Where there is no directory, nothing is locked on this host either.
        unconfigured: unconfigured && url.is_somewhere(),
        url,
        password_file,
        timeout: timeout.map_or(DEFAULT_STORE_TIMEOUT, |(timeout, _)| timeout),
    })
}

fn url(cli: &Cli, given: Given<'_>) -> Result<Option<(Url, Origin)>, Error> {
    let (text, from) = match (&cli.global.url, given.file.get("url")) {
        (Some(text), _) if cli.global.url_from_environment => {
            (utf8_or(text, Error::Config, "RLOCK_URL")?, Origin::Environment("RLOCK_URL"))
        }
        (Some(text), _) => (utf8(text, "--url")?, Origin::Option("--url".into())),
        (None, Some((text, place))) => (text.to_owned(), Origin::File(place)),
        (None, None) => return Ok(None),
    };
    if text.is_empty() {
        let or = if matches!(from, Origin::Environment(_)) { ", or unset it to use the file" } else { "" };
        return Err(from.wrong(&format!(" is empty; give a URL, as in redis://db1{or}")));
    }
    let url = Url::parse(&text).map_err(|why| from.wrong(&format!(": the URL {why}")))?;
    if url.has_password() && matches!(from, Origin::Option(_)) {
        return Err(Error::Usage(
            "--url with a password would show it to every user of this host; \
             put the URL in RLOCK_URL or the file, or the password in a --password-file"
                .into(),
        ));
    }
    Ok(Some((url, from)))
}

fn run_settings(run: &cli::Run, given: Given<'_>) -> Result<RunSettings, Error> {
    let [key] = &run.keys[..] else {
        return Err(Error::Usage("several -k are not offered yet; give one key".into()));
    };
    let ttl = given.duration("ttl", run.ttl.as_deref(), &TTL)?.map_or(DEFAULT_TTL, |(ttl, _)| ttl);
    let signal = given.text("signal", run.signal.as_deref());
    let signal = signal.map(|(text, from)| {
        let wrong = || from.wrong(&format!(" `{text}` is no signal; give a name or a number, as in TERM or 15"));
        signal::parse(&text).ok_or_else(wrong)
    });
    Ok(RunSettings {
        key: self::key(key)?,
        ttl,
        wait: wait(run, given)?,
        busy_code: busy_code(run, given)?,
        on_lost: on_lost(run, given)?,
        signal: signal.transpose()?.unwrap_or(nix::libc::SIGTERM),
        grace: grace(run, given, ttl)?,
        max_runtime: bound(given, "max-runtime", run.max_runtime.as_deref(), &WAIT)?,
        hold_at_least: bound(given, "hold-at-least", run.hold_at_least.as_deref(), &HOLD)?,
        jitter: bound(given, "jitter", run.jitter.as_deref(), &HOLD)?.unwrap_or_default(),
        replicas: replicas(run, given)?,
        label: match &run.label {
            Some(label) => Some(label.to_string_lossy().into_owned()),
            None => given.file.get("label").map(|(text, _)| text.to_owned()),
        },
        report: report(run, given)?,
        forward: !(run.no_forward || given.file.is_on("no-forward")),
        command: match &run.shell {
            Some(line) => Command::Shell(line.clone()),
            None => Command::Argv(run.command.clone()),
        },
    })
}

fn wait(run: &cli::Run, given: Given<'_>) -> Result<Wait, Error> {
    if run.nonblock || run.skip {
        return Ok(Wait::No);
    }
    let off = given.file.get("nonblock").filter(|(on, _)| *on == "true" && run.wait.is_none());
    match (given.duration("wait", run.wait.as_deref(), &WAIT)?, off) {
        (Some((_, from)), Some(_)) => Err(from.wrong(" and `nonblock` exclude each other; keep one")),
        (Some((Duration::ZERO, _)), None) | (None, Some(_)) => Ok(Wait::No),
        (Some((most, _)), None) => Ok(Wait::For(most)),
        (None, None) => Ok(Wait::Forever),
    }
}

/// Zero is none, as for `timeout`.
fn bound(
    given: Given<'_>,
    name: &str,
    typed: Option<&str>,
    range: &RangeInclusive<Duration>,
) -> Result<Option<Duration>, Error> {
    let given = given.duration(name, typed, range)?;
    Ok(given.map(|(bound, _)| bound).filter(|bound| !bound.is_zero()))
}

fn replicas(run: &cli::Run, given: Given<'_>) -> Result<u32, Error> {
    let Some((text, from)) = given.text("wait-replicas", run.wait_replicas.as_deref()) else { return Ok(0) };
    u32::from_str(&text).map_err(|_| from.wrong(&format!(" `{text}` is no number of replicas; give 0, 1, 2, …")))
}

fn busy_code(run: &cli::Run, given: Given<'_>) -> Result<u8, Error> {
    if run.skip {
        return Ok(exit::OK);
    }
    let Some((text, from)) = given.text("conflict-exit-code", run.conflict_exit_code.as_deref()) else {
        return Ok(exit::BUSY);
    };
    u8::from_str(&text).map_err(|_| from.wrong(&format!(" `{text}` is no exit code; give 0 to 255")))
}

fn on_lost(run: &cli::Run, given: Given<'_>) -> Result<OnLost, Error> {
    let typed = match (run.on_lost, given.file.get("on-lost")) {
        (Some(typed), _) => typed,
        (None, None) => cli::OnLost::Terminate,
        (None, Some((text, place))) => cli::OnLost::from_str(text, false)
            .map_err(|_| Origin::File(place).wrong(&format!(" `{text}` is unknown; give terminate, kill or warn")))?,
    };
    Ok(match typed {
        cli::OnLost::Terminate => OnLost::Terminate,
        cli::OnLost::Kill => OnLost::Kill,
        cli::OnLost::Warn => OnLost::Warn,
    })
}

fn grace(run: &cli::Run, given: Given<'_>, ttl: Duration) -> Result<Duration, Error> {
    let Some((grace, from)) = given.duration("kill-after", run.kill_after.as_deref(), &WAIT)? else {
        return Ok(timing::grace(ttl));
    };
    let most = timing::greatest_grace(ttl);
    if grace > most {
        // A ttl of the command line can make the file's value wrong, and then the command line is to be corrected.
        let from = if run.ttl.is_some() { Origin::Option(from.name()) } else { from };
        return Err(from.wrong(&format!(
            " of {} is more than a third of the ttl of {}; give {} or less, or a longer --ttl",
            short(grace),
            short(ttl),
            short(most)
        )));
    }
    Ok(grace)
}

fn report(run: &cli::Run, given: Given<'_>) -> Result<Option<ReportTarget>, Error> {
    let (text, from) = match (&run.report, given.file.get("report")) {
        (Some(text), _) => (text.as_os_str(), Origin::Option("--report".into())),
        (None, Some((text, place))) => (OsStr::new(text), Origin::File(place)),
        (None, None) => return Ok(None),
    };
    if text.is_empty() {
        return Err(from.wrong(" is empty; give a file or fd:N"));
    }
    let Some(number) = text.to_str().and_then(|text| text.strip_prefix("fd:")) else {
        return Ok(Some(ReportTarget::File(text.into())));
    };
    match number.parse() {
        Ok(0..=2) => {
            Err(from.wrong(&format!(" fd:{number} belongs to the command; open another, as in: --report fd:3 3>>FILE")))
        }
        Ok(fd) if fd > 2 => Ok(Some(ReportTarget::Fd(fd))),
        _ => Err(from.wrong(&format!(" fd:{number} is no descriptor; give fd: and a number from 3"))),
    }
}

fn force_release(force: &cli::ForceRelease) -> Result<ForceReleaseSettings, Error> {
    let claim = force.claim.as_deref().map(|text| {
        let wrong = || {
            Error::Usage(format!(
                "--claim `{text}` is no claim; give its 32 hexadecimal digits, as `rlock inspect` shows them"
            ))
        };
        ClaimId::parse(text).ok_or_else(wrong)
    });
    let wait = force
        .wait
        .as_deref()
        .map(|text| duration::parse(text, &WAIT).map_err(|why| Error::Usage(format!("--wait {why}"))));
    Ok(ForceReleaseSettings {
        key: key(&force.key)?,
        claim: claim.transpose()?,
        yes: force.yes,
        now: force.now,
        wait: wait.transpose()?,
    })
}

fn keys(words: &[OsString]) -> Result<Vec<Key>, Error> {
    words.iter().map(|word| key(word)).collect()
}

pub(super) fn key(word: &OsStr) -> Result<Key, Error> {
    let text = utf8(word, "the key")?;
    Key::parse(&text).map_err(|why| {
        let name = if text.is_empty() { String::new() } else { format!("`{}` ", shown(&text, 40)) };
        Error::Usage(format!("the key {name}{why}"))
    })
}

fn utf8(word: &OsStr, name: &str) -> Result<String, Error> {
    utf8_or(word, Error::Usage, name)
}

fn utf8_or(word: &OsStr, error: fn(String) -> Error, name: &str) -> Result<String, Error> {
    word.to_str().map(str::to_owned).ok_or_else(|| error(format!("{name} is not valid UTF-8; write it in UTF-8")))
}
