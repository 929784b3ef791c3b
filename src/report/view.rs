//! What a look found, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::Who;
use crate::claim::{ClaimId, Entry};
use crate::clock::ms;
use crate::store::{Foreign, Look};
use crate::text::{columns, instant, short_ms, shown, shown_bytes};

const MOST_SHOWN: usize = 120;

/// A key, who holds it and who waits for it. Fields are only ever added.
#[derive(Clone, Debug, Serialize)]
pub struct KeyView {
    /// The version of this form.
    pub v: u8,
    /// What is locked.
    pub key: String,
    /// The store, without secrets.
    pub store: String,
    /// Whether nobody holds it.
    pub free: bool,
    /// The last number given as a token, if one is known.
    pub token: Option<u64>,
    /// Until the last lease runs out; none where the key is free or held without end.
    pub left_ms: Option<u64>,
    /// Those who hold it.
    pub holders: Vec<HolderView>,
    /// Those who wait, the next one first.
    pub queue: Vec<WaiterView>,
    /// What holds it and is not rlock's.
    pub foreign: Option<ForeignView>,
}

/// A claim that holds.
#[derive(Clone, Debug, Serialize)]
pub struct HolderView {
    /// The claim.
    pub claim: ClaimId,
    /// Its fencing token, if it is exclusive.
    pub token: Option<u64>,
    /// How many may hold together with it; 0 is no limit.
    pub limit: u32,
    /// Since when it holds.
    pub since_at: String,
    /// How long it has held.
    pub held_ms: u64,
    /// What is left of its lease.
    pub left_ms: u64,
    /// The lease it asks for.
    pub ttl_ms: u64,
    /// Whether it was told to stop.
    pub condemned: bool,
    /// Whether a process stands behind it.
    pub process: bool,
    /// Who it is.
    #[serde(flatten)]
    pub who: Who,
}

/// A claim that waits.
#[derive(Clone, Debug, Serialize)]
pub struct WaiterView {
    /// 1 for the next.
    pub position: usize,
    /// The claim.
    pub claim: ClaimId,
    /// Since when it waits.
    pub since_at: String,
    /// How long it has waited.
    pub waited_ms: u64,
    /// Who it is.
    #[serde(flatten)]
    pub who: Who,
}

/// What is not rlock's.
#[derive(Clone, Debug, Serialize)]
pub struct ForeignView {
    /// Its type in the store.
    pub kind: String,
    /// What it is, in words.
    pub what: String,
    /// The beginning of its value, escaped.
    pub value: String,
    /// What is left of it; none where it has no end.
    pub left_ms: Option<u64>,
}

impl HolderView {
    /// A holder at `now_ms` of the store's clock.
    pub fn new(entry: &Entry, condemned: bool, now_ms: u64) -> Self {
        Self {
            claim: entry.id,
            token: entry.limit.is_exclusive().then_some(entry.number),
            limit: entry.limit.into(),
            since_at: instant(entry.since_ms),
            held_ms: now_ms.saturating_sub(entry.since_ms),
            left_ms: entry.until_ms.saturating_sub(now_ms),
            ttl_ms: entry.ttl_ms,
            condemned,
            process: entry.process,
            who: Who::from_members(&entry.record),
        }
    }

    /// Of one that no longer holds: `backup@db1 pid 4121 (pg_dump) for 12m`.
    pub fn past(&self) -> String {
        format!("{} for {}", self.who.shown(), short_ms(self.held_ms))
    }

    /// `backup@db1 pid 4121 (pg_dump) for 12m, lease 21s left`.
    pub fn line(&self) -> String {
        let told = if self.condemned { ", told to stop" } else { "" };
        format!("{}, lease {} left{told}", self.past(), short_ms(self.left_ms))
    }
}

impl ForeignView {
    /// What was found, with its value escaped and cut.
    pub fn new(foreign: &Foreign) -> Self {
        Self {
            kind: shown(&foreign.kind, MOST_SHOWN),
            what: shown(&foreign.what, MOST_SHOWN),
            value: shown_bytes(&foreign.value, MOST_SHOWN),
            left_ms: foreign.left.map(ms),
        }
    }

    /// `a string of another program, 21s left`.
    pub fn line(&self) -> String {
        let left = self.left_ms.map_or("without end".into(), |ms| format!("{} left", short_ms(ms)));
        format!("{}, {left}", self.what)
    }
}

impl KeyView {
    /// What `look` found at `key`.
    pub fn new(key: &str, store: &str, look: &Look) -> Self {
        let holders =
            look.holders.iter().map(|entry| HolderView::new(entry, look.condemned.contains(&entry.id), look.now_ms));
        let queue = look.queue.iter().enumerate().map(|(at, entry)| WaiterView {
            position: at + 1,
            claim: entry.id,
            since_at: instant(entry.since_ms),
            waited_ms: look.now_ms.saturating_sub(entry.since_ms),
            who: Who::from_members(&entry.record),
        });
        Self {
            v: 1,
            key: key.to_owned(),
            store: store.to_owned(),
            free: look.is_free(),
            token: (look.number > 0).then_some(look.number),
            left_ms: left(look).map(ms),
            holders: holders.collect(),
            queue: queue.collect(),
            foreign: look.foreign.as_ref().map(ForeignView::new),
        }
    }

    /// A block for people.
    pub fn block(&self) -> String {
        let mut out = format!("{}\n", shown(&self.key, MOST_SHOWN));
        let mut line = |name: &str, text: &str| {
            let _ = writeln!(out, "  {name:<8}{text}");
        };
        if self.free {
            line("free", "");
        }
        for holder in &self.holders {
            let ended = if holder.process { "" } else { ", a run that ended" };
            line("held by", &(holder.who.shown() + ended));
            line("since", &format!("{} ({})", holder.since_at, short_ms(holder.held_ms)));
            let told = if holder.condemned { "; told to stop" } else { "" };
            line("lease", &format!("{} left of {}{told}", short_ms(holder.left_ms), short_ms(holder.ttl_ms)));
            if let Some(token) = holder.token {
                line("token", &token.to_string());
            }
            line("claim", &holder.claim.to_string());
        }
        if let Some(foreign) = &self.foreign {
            line("held by", &foreign.line());
            if !foreign.value.is_empty() {
                line("value", &foreign.value);
            }
        }
        for waiter in &self.queue {
            let name = if waiter.position == 1 { "queue" } else { "" };
            line(name, &format!("{}. {} waiting {}", waiter.position, waiter.who.shown(), short_ms(waiter.waited_ms)));
        }
        out.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// A row for people: key, holder, since, left, waiters.
    pub fn row(&self) -> Vec<String> {
        let (holder, since) = match (&self.holders[..], &self.foreign) {
            ([first, more @ ..], _) => {
                let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
                (first.who.shown() + &more, short_ms(first.held_ms))
            }
            ([], Some(foreign)) => (foreign.what.clone(), "-".into()),
            ([], None) => ("-".into(), "-".into()),
        };
        let left = match (self.left_ms, self.free) {
            (Some(ms), _) => short_ms(ms),
            (None, true) => "-".into(),
            (None, false) => "no end".into(),
        };
        vec![shown(&self.key, MOST_SHOWN), holder, since, left, self.queue.len().to_string()]
    }
}

/// Until the last lease of a key runs out; none where it is free or held without end.
fn left(look: &Look) -> Option<Duration> {
    if let Some(foreign) = &look.foreign {
        return foreign.left;
    }
    let last = look.holders.iter().map(|held| held.until_ms).max()?;
    Some(Duration::from_millis(last.saturating_sub(look.now_ms)))
}

/// Rows in columns, two blanks between them.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let most = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| columns(cell)).max();
    let widths: Vec<usize> = (0..most).map(|at| width(at).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let padded = |(cell, width): (&String, &usize)| cell.clone() + &" ".repeat(width - columns(cell));
        row.iter().zip(&widths).map(padded).collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
