//! `rlock force-release`: takes a key away from its holder.
//!
//! What is shown and confirmed is a claim, by its id; whoever came to hold the key since is left alone. The holder is
//! told to stop its command, and only when that is dead, or its lease has run out, does the key pass.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::time::Duration;

use serde::Serialize;

use super::{Desk, Interrupted, json};
use crate::claim::{Condemnation, Entry};
use crate::clock::Boot;
use crate::error::Error;
use crate::exit::{self, Exit};
use crate::report::{self, ForeignView, HolderView, Who, inspect_hint};
use crate::settings::{ForceReleaseSettings, Settings};
use crate::store::{Foreign, Look, Trouble};
use crate::text::{escape, quoted, short, shown};

/// What is waited beyond the lease's end.
const BEYOND: Duration = Duration::from_secs(2);

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What is to be taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// Nothing holds the key.
    Nothing,
    /// Another claim than the one that was named.
    Another,
    /// These hold it.
    Holders(Vec<Entry>),
    /// The one that was named waits.
    Waiter(Entry),
    /// What is not rlock's holds it.
    Foreign(Foreign),
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Passed,
    PassedAtOnce,
    NotHeld,
    WaiterRemoved,
    ForeignRemoved,
    LeftAlone,
    NotPassed,
}

impl Outcome {
    fn code(self) -> u8 {
        match self {
            Self::LeftAlone => exit::NO,
            Self::NotPassed => exit::BUSY,
            Self::Passed | Self::PassedAtOnce | Self::NotHeld | Self::WaiterRemoved | Self::ForeignRemoved => exit::OK,
        }
    }
}

#[derive(Serialize)]
struct ReleaseView<'a> {
    v: u8,
    key: &'a str,
    store: &'a str,
    outcome: Outcome,
    code: u8,
    why: &'a str,
    holders: &'a [HolderView],
    foreign: Option<&'a ForeignView>,
}

/// Takes the key away; 0 when it has passed or was not held, 1 when it was left alone, 75 when it has not passed.
pub fn force_release(settings: &Settings, force: &ForceReleaseSettings) -> anyhow::Result<Exit> {
    let mut desk = Desk::open(settings)?;
    let look = desk.look(&force.key)?;
    let target = target(&look, force);
    let view = |held: &Entry| HolderView::new(held, look.condemned.contains(&held.id), look.now_ms);
    let holders: Vec<HolderView> = look.holders.iter().map(view).collect();
    let foreign = look.foreign.as_ref().map(ForeignView::new);
    let key = key_shown(force);
    let (is, was) = match (&holders[..], &foreign) {
        ([first, more @ ..], _) => {
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            (first.line() + &more, first.past() + &more)
        }
        ([], Some(foreign)) => (foreign.line(), foreign.what.clone()),
        ([], None) => (String::new(), String::new()),
    };
    let (outcome, why) = match target {
        Target::Nothing => (Outcome::NotHeld, format!("`{key}` was not held")),
        Target::Another => (Outcome::LeftAlone, format!("`{key}` is held by {is}, not by that claim; left alone")),
        Target::Foreign(found) => remove_foreign(&mut desk, force, &found, &is, &was)?,
        Target::Waiter(waiter) => {
            confirm(force, &format!("claim {} waits for `{key}`", waiter.id), "Remove it from the queue?")?
                .map_or_else(|| remove(&mut desk, force, &waiter), Ok)?
        }
        Target::Holders(targets) => {
            let ask = if force.now {
                "Pass the key on at once, while the command may still run?"
            } else {
                "Stop the command and free the key?"
            };
            match confirm(force, &format!("`{key}` is held by {is}"), ask)? {
                Some(declined) => declined,
                None if force.now => pass_at_once(&mut desk, force, &targets, &was)?,
                None => stop_and_wait(&mut desk, force, &targets, &was)?,
            }
        }
    };
    if outcome == Outcome::NotHeld {
        desk.say_where();
    }
    if settings.output.json {
        report::print(&json(&ReleaseView {
            v: 1,
            key: force.key.as_str(),
            store: &desk.name(),
            outcome,
            code: outcome.code(),
            why: &why,
            holders: &holders,
            foreign: foreign.as_ref(),
        })?)?;
    } else {
        desk.voice.say(&why);
    }
    Ok(Exit::Code(outcome.code()))
}

fn target(look: &Look, force: &ForceReleaseSettings) -> Target {
    match (force.claim, &look.foreign) {
        (None, Some(foreign)) => Target::Foreign(foreign.clone()),
        (None, None) if look.holders.is_empty() => Target::Nothing,
        (None, None) => Target::Holders(look.holders.clone()),
        (Some(id), _) => {
            let of = |entries: &[Entry]| entries.iter().find(|entry| entry.id == id).cloned();
            match (of(&look.holders), of(&look.queue)) {
                (Some(held), _) => Target::Holders(vec![held]),
                (None, Some(waiter)) => Target::Waiter(waiter),
                (None, None) if look.is_free() => Target::Nothing,
                (None, None) => Target::Another,
            }
        }
    }
}

/// None for yes; else what came of it.
fn confirm(force: &ForceReleaseSettings, shown: &str, question: &str) -> Result<Option<(Outcome, String)>, Error> {
    if force.yes {
        return Ok(None);
    }
    let Some(answer) = answer(&format!("rlock: {}\n{question} [y/N] ", escape(shown))) else {
        return Err(Error::Usage(format!("{shown}; nobody is there to confirm: give --yes")));
    };
    let is_yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    Ok((!is_yes).then(|| (Outcome::LeftAlone, format!("`{}` is left alone", key_shown(force)))))
}

/// The answer of whoever sits at the terminal; none where there is no terminal.
fn answer(question: &str) -> Option<String> {
    let mut line = String::new();
    if let Ok(mut terminal) = OpenOptions::new().read(true).write(true).open("/dev/tty") {
        terminal.write_all(question.as_bytes()).ok()?;
        BufReader::new(terminal).read_line(&mut line).ok()?;
    } else if std::io::stdin().is_terminal() {
        std::io::stderr().write_all(question.as_bytes()).ok()?;
        std::io::stdin().read_line(&mut line).ok()?;
    } else {
        return None;
    }
    Some(line)
}

fn key_shown(force: &ForceReleaseSettings) -> String {
    shown(force.key.as_str(), 120)
}

/// How to reach the store that is called so. Without that the same key of another server or database would go.
fn redis_cli(name: &str) -> String {
    let Some(socket) = name.strip_prefix("unix://") else { return format!("redis-cli -u {}", quoted(name)) };
    let (path, number) = socket.split_once("?db=").unwrap_or((socket, "0"));
    format!("redis-cli -s {} -n {number}", quoted(path))
}

fn remove_foreign(
    desk: &mut Desk,
    force: &ForceReleaseSettings,
    found: &Foreign,
    is: &str,
    was: &str,
) -> anyhow::Result<(Outcome, String)> {
    let key = key_shown(force);
    if !force.now {
        let hint =
            if found.seen.is_empty() { String::new() } else { "; --now removes it, whatever it protects".into() };
        return Ok((Outcome::LeftAlone, format!("`{key}` is held by {is}; left alone{hint}")));
    }
    if found.seen.is_empty() {
        let command = format!("{} DEL {}", redis_cli(&desk.name()), quoted(force.key.as_str()));
        return Ok((
            Outcome::LeftAlone,
            format!("`{key}` is held by {is}, which rlock does not remove; left alone (to remove it: {command})"),
        ));
    }
    if let Some(declined) = confirm(force, &format!("`{key}` is held by {is}"), "Remove it, whatever it protects?")? {
        return Ok(declined);
    }
    // A try without an answer may have removed it, and then the next one finds nothing to remove.
    let mut is_unsure = false;
    let removed = desk.ask(|store, by| {
        let answer = store.remove_foreign(&force.key, found, by);
        is_unsure |= matches!(answer, Err(Trouble::Unknown(_)));
        answer
    })?;
    if removed || is_unsure && desk.look(&force.key)?.foreign.is_none() {
        Ok((Outcome::ForeignRemoved, format!("`{key}` was held by {was}; removed")))
    } else {
        Ok((
            Outcome::LeftAlone,
            format!("`{key}` has changed since it was shown; left alone ({})", inspect_hint(force.key.as_str())),
        ))
    }
}

fn remove(desk: &mut Desk, force: &ForceReleaseSettings, waiter: &Entry) -> anyhow::Result<(Outcome, String)> {
    let ttl = Duration::from_millis(waiter.ttl_ms);
    desk.ask(|store, by| store.drop_claim(&force.key, waiter.id, ttl, by))?;
    Ok((Outcome::WaiterRemoved, format!("claim {} waited for `{}`; removed", waiter.id, key_shown(force))))
}

fn pass_at_once(
    desk: &mut Desk,
    force: &ForceReleaseSettings,
    targets: &[Entry],
    was: &str,
) -> anyhow::Result<(Outcome, String)> {
    for held in targets {
        let ttl = Duration::from_millis(held.ttl_ms);
        // A mark calls its holder at once; of the drop it would hear only with its next renewal.
        desk.ask(|store, by| store.condemn(&force.key, held.id, ttl, by))?;
        desk.ask(|store, by| store.drop_claim(&force.key, held.id, ttl, by))?;
    }
    let key = key_shown(force);
    Ok((
        Outcome::PassedAtOnce,
        format!("`{key}` was held by {was}; passed on at once: two may run side by side until that command is stopped"),
    ))
}

fn stop_and_wait(
    desk: &mut Desk,
    force: &ForceReleaseSettings,
    targets: &[Entry],
    was: &str,
) -> anyhow::Result<(Outcome, String)> {
    if !desk.store.can().condemn {
        let why = format!("{} cannot stop a holder; wait for the lease to end, or give --now", desk.name());
        return Err(Error::Config(why).into());
    }
    // From here on there is something to say when a signal comes.
    let cancel = desk.cancel.clone();
    ctrlc::set_handler(move || cancel.fire()).map_err(|error| Error::Os(format!("cannot take SIGINT: {error}")))?;
    let key = key_shown(force);
    let mut told = false;
    let passed = wait(desk, force, targets, &mut told);
    if passed.as_ref().is_err_and(anyhow::Error::is::<Interrupted>) {
        let line = if told {
            format!("no longer waited for; the holder of `{key}` was told to stop all the same")
        } else {
            let hint = inspect_hint(force.key.as_str());
            format!("no longer waited for; whether the holder of `{key}` was told to stop is not known ({hint})")
        };
        desk.voice.say(&line);
    }
    Ok(if let Some(look) = passed? {
        (Outcome::Passed, format!("`{key}` was held by {was}; {}", became(&look)))
    } else {
        let hint = "its command has not ended; wait for its lease to end, or give --now and two may run side by side";
        (Outcome::NotPassed, format!("`{key}` is still held by {was}; {hint}"))
    })
}

/// What became of a key that its holder let go.
fn became(look: &Look) -> String {
    match (&look.holders[..], &look.foreign) {
        ([next, ..], _) => format!("it has passed to {}", Who::from_members(&next.record).shown()),
        ([], Some(foreign)) => format!("it is now {}", shown(&foreign.what, 120)),
        ([], None) => "it is free".into(),
    }
}

/// Condemns the targets and waits until none of them holds: the look that shows it, none when the time is over first. `told` becomes true once
/// a holder's condemnation is answered.
fn wait(
    desk: &mut Desk,
    force: &ForceReleaseSettings,
    targets: &[Entry],
    told: &mut bool,
) -> anyhow::Result<Option<Look>> {
    let start = Boot::now();
    let mut end = start + force.wait.unwrap_or(BEYOND);
    let mut unmarked: Vec<Entry> = targets.to_vec();
    let mut pause = FIRST_PAUSE;
    loop {
        for held in unmarked.drain(..) {
            let ttl = Duration::from_millis(held.ttl_ms);
            let sent = Boot::now();
            let answer = desk.ask(|store, by| store.condemn(&force.key, held.id, ttl, by))?;
            *told = true;
            if let (Condemnation::Marked { left_ms }, None) = (answer, force.wait) {
                end = end.max(sent + Duration::from_millis(left_ms) + BEYOND);
                desk.voice.say_verbose(&format!(
                    "told to stop; its lease has {} left",
                    short(Duration::from_millis(left_ms))
                ));
            }
        }
        let most = desk.timeout.min(end.left().max(Duration::from_secs(1)));
        let look = desk.ask_within(most, |store, by| store.look(&force.key, by))?;
        let still: Vec<&Entry> =
            look.holders.iter().filter(|held| targets.iter().any(|target| target.id == held.id)).collect();
        if still.is_empty() {
            return Ok(Some(look));
        }
        if end.left().is_zero() {
            return Ok(None);
        }
        // The store may have lost a mark, with its data or to a failover.
        unmarked = still.into_iter().filter(|held| !look.condemned.contains(&held.id)).cloned().collect();
        desk.pause(pause.min(end.left()))?;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{ClaimId, Limit};
    use crate::store::Key;

    fn entry(id: u128) -> Entry {
        let (limit, record) = (Limit::EXCLUSIVE, String::new());
        Entry {
            id: ClaimId::from_bits(id),
            limit,
            process: true,
            number: 1,
            since_ms: 0,
            until_ms: 9,
            ttl_ms: 9,
            record,
        }
    }

    fn found(claim: Option<u128>, look: &Look) -> Target {
        let key = Key::parse("k").unwrap();
        let claim = claim.map(ClaimId::from_bits);
        target(look, &ForceReleaseSettings { key, claim, yes: true, now: false, wait: None })
    }

    #[test]
    fn only_what_was_named_is_a_target() {
        let foreign = Foreign { kind: "hash".into(), what: "a hash".into(), value: vec![], left: None, seen: vec![] };
        let free = Look::default();
        let held = Look { holders: vec![entry(1)], queue: vec![entry(2)], ..Look::default() };
        let foreign_held = Look { foreign: Some(foreign.clone()), queue: vec![entry(2)], ..Look::default() };
        assert_eq!(found(None, &free), Target::Nothing);
        assert_eq!(found(Some(1), &free), Target::Nothing);
        assert_eq!(found(None, &held), Target::Holders(vec![entry(1)]));
        assert_eq!(found(Some(1), &held), Target::Holders(vec![entry(1)]));
        assert_eq!(found(Some(2), &held), Target::Waiter(entry(2)));
        assert_eq!(found(Some(3), &held), Target::Another);
        assert_eq!(found(None, &foreign_held), Target::Foreign(foreign));
        assert_eq!(found(Some(1), &foreign_held), Target::Another);
        assert_eq!(found(Some(2), &foreign_held), Target::Waiter(entry(2)));
    }
}
