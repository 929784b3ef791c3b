//! What the history of a world says of rlock, seen beside what befell it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use rlock::clock::Boot;
use rlock::timing;

use crate::history::{self, Life, Overlap};
use crate::plan::{Blow, Jobs, Upheaval, Wait, What, Whom};
use crate::world::{Applied, Over, Past, Why};

const MS: fn(u64) -> Duration = Duration::from_millis;
/// What a fault may still be felt after it is over: a connection that is made anew, an answer that is late.
const AFTER: Duration = Duration::from_millis(1_500);
/// How long before a place is seen to be lost the cause may be: a try that a fault has swallowed has its time, and the
/// next one a second.
const FELT: Duration = rlock::timing::LONGEST_WAITERS_TRY.saturating_add(Duration::from_secs(1));

/// What is counted and what is wrong.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    worlds: usize,
    runs: usize,
    grants: usize,
    faults: BTreeMap<String, usize>,
    codes: BTreeMap<String, usize>,
    lost: usize,
    /// Lost although no fault explains it, but for a machine that was busy.
    lost_when_busy: usize,
    needless: Vec<String>,
    /// After FLUSHALL, in which the store loses what it acknowledged.
    not_promised: usize,
    pub(crate) overlaps: Vec<String>,
    pub(crate) regressions: Vec<String>,
    pub(crate) wrong: Vec<String>,
    pub(crate) left_out: BTreeSet<String>,
}

impl Figures {
    pub(crate) fn add(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.runs += other.runs;
        self.grants += other.grants;
        for (sum, part) in [(&mut self.faults, other.faults), (&mut self.codes, other.codes)] {
            for (name, count) in part {
                *sum.entry(name).or_default() += count;
            }
        }
        self.lost += other.lost;
        self.lost_when_busy += other.lost_when_busy;
        self.needless.extend(other.needless);
        self.not_promised += other.not_promised;
        self.overlaps.extend(other.overlaps);
        self.regressions.extend(other.regressions);
        self.wrong.extend(other.wrong);
        self.left_out.extend(other.left_out);
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.overlaps.is_empty() && self.regressions.is_empty() && self.wrong.is_empty()
    }

    pub(crate) fn grants(&self) -> usize {
        self.grants
    }

    pub(crate) fn lost(&self) -> usize {
        self.lost
    }

    /// A machine that is shared loses some; more than these would be rlock's.
    pub(crate) fn loses_too_many(&self) -> bool {
        self.needless.len() > 2 + self.grants / 500
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &BTreeMap<String, usize>| {
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        writeln!(f, "{} worlds, {} runs, {} grants", self.worlds, self.runs, self.grants)?;
        writeln!(f, "{} faults: {}", self.faults.values().sum::<usize>(), list(&self.faults))?;
        writeln!(f, "ended with: {}", list(&self.codes))?;
        let (busy, needless) = (self.lost_when_busy, self.needless.len());
        writeln!(f, "{} leases lost, {busy} of them on a busy machine, {needless} needlessly", self.lost)?;
        let (overlaps, regressions) = (self.overlaps.len(), self.regressions.len());
        writeln!(
            f,
            "{overlaps} overlaps ({} after FLUSHALL not counted), {regressions} token regressions",
            self.not_promised
        )?;
        write!(f, "{} other things wrong", self.wrong.len())?;
        if !self.left_out.is_empty() {
            write!(f, "\nleft out: {}", self.left_out.iter().cloned().collect::<Vec<_>>().join(", "))?;
        }
        for (what, lines) in [
            ("needless", &self.needless),
            ("OVERLAP", &self.overlaps),
            ("TOKEN", &self.regressions),
            ("WRONG", &self.wrong),
        ] {
            for line in lines {
                write!(f, "\n{what}: {line}")?;
            }
        }
        Ok(())
    }
}

/// A world and who ran in it.
struct Case<'a> {
    past: &'a Past,
    lives: Vec<Life>,
    by_run: HashMap<usize, &'a Over>,
}

/// Judges a world.
pub(crate) fn judge(past: &Past) -> Figures {
    let lives = history::read(&past.history);
    let by_run = past.runs.iter().map(|over| (over.number, over)).collect();
    let case = Case { past, lives, by_run };
    let mut figures = Figures {
        worlds: 1,
        runs: past.runs.len(),
        grants: case.lives.len(),
        wrong: past.wrong.clone(),
        left_out: past.left_out.clone(),
        ..Figures::default()
    };
    for fault in &past.faults {
        let kind = match &fault.what {
            Why::Planned(what) | Why::Run(_, what) => what.kind(),
            Why::Busy => "(machine busy)".into(),
        };
        *figures.faults.entry(kind).or_default() += 1;
    }
    case.exclusion(&mut figures);
    for over in &past.runs {
        case.outcome(over, &mut figures);
    }
    figures.wrong.extend(case.order());
    figures.wrong.extend(case.ghosts());
    let name = format!("seed {} world {} {:?}: ", past.plan.seed, past.plan.world, past.plan.ground);
    let lists = [&mut figures.needless, &mut figures.overlaps, &mut figures.regressions, &mut figures.wrong];
    lists.into_iter().flatten().for_each(|line| line.insert_str(0, &name));
    figures
}

impl Case<'_> {
    fn applies(fault: &Applied, over: &Over) -> bool {
        match &fault.what {
            Why::Planned(What::Line { host, .. }) => *host == over.plan.host,
            Why::Planned(_) | Why::Busy => true,
            Why::Run(number, _) => *number == over.number,
        }
    }

    /// What befell a run in this time.
    fn befell<'b>(&'b self, over: &'b Over, from: Boot, to: Boot) -> impl Iterator<Item = &'b Applied> {
        let faults = self.past.faults.iter();
        faults.filter(move |fault| Self::applies(fault, over) && fault.from <= to && fault.to + AFTER >= from)
    }

    fn exclusion(&self, figures: &mut Figures) {
        let is_flush = |what: &Why| matches!(what, Why::Planned(What::Server(Upheaval::FlushAll)));
        let flushes: Vec<&Applied> = self.past.faults.iter().filter(|fault| is_flush(&fault.what)).collect();
        // What the store lost another may take; within its ttl the first must have noticed, and be dead.
        let is_promised = |first: usize, from: Boot, to: Boot| {
            let ttl = self.by_run.get(&first).map_or(Duration::ZERO, |over| over.plan.ttl);
            !flushes.iter().any(|flush| from >= flush.from && to <= flush.to + ttl)
        };
        for overlap in history::overlaps(&self.lives) {
            let Overlap { runs, key, from, to, judged } = overlap;
            if !is_promised(runs.0, from, to) {
                figures.not_promised += 1;
                continue;
            }
            let took = to.since(from);
            let by = judged.map_or(String::new(), |by| format!(", inside was {by}"));
            figures.overlaps.push(format!("runs {runs:?} on key {key} for {took:?} at {from:?}{by}"));
        }
        for runs in history::regressions(&self.lives) {
            // Who was granted the key before the store lost it may start after another who was granted it then.
            let started = self.lives.iter().find(|life| life.run == runs.1).map(|life| life.from);
            if started.is_some_and(|started| !is_promised(runs.1, started, started)) {
                figures.not_promised += 1;
                continue;
            }
            figures.regressions.push(format!("runs {runs:?}"));
        }
    }

    fn life(&self, over: &Over) -> Option<&Life> {
        self.lives.iter().find(|life| life.run == over.number)
    }

    /// How a run ended, against what befell it and what its command wrote.
    fn outcome(&self, over: &Over, figures: &mut Figures) {
        let (status, life) = (over.done.status, self.life(over));
        let code = status.code().map_or_else(|| status.to_string(), |code| code.to_string());
        *figures.codes.entry(code).or_default() += 1;
        let mut wrong = |what: &str| {
            let faults: Vec<_> = self.befell(over, over.from, over.to).collect();
            figures.wrong.push(format!("{what}: {over:?}, {life:?}, {faults:?}"));
        };
        if over.done.stderr.contains("internal error") {
            wrong("internal error");
        }
        let Some(report) = &over.report else {
            if status.code().is_some() {
                wrong("no report");
            }
            return;
        };
        let outcome = report["outcome"].as_str().unwrap_or_default();
        match (outcome, life) {
            ("busy" | "unavailable" | "refused" | "interrupted" | "config" | "cannot_run", Some(_)) => {
                wrong("its command ran all the same");
            }
            ("ran", _) if report["code"] == 0 && !life.is_some_and(|life| life.has_ended) => {
                wrong("its command did not come to its end");
            }
            _ => {}
        }
        if status.code().is_some_and(|code| report["code"] != code) {
            wrong("the report has another code");
        }
        if !self.may_end_so(over, outcome) {
            wrong("no fault explains how it ended");
        }
        if outcome == "lost" {
            self.loss(over, figures);
        }
    }

    fn may_end_so(&self, over: &Over, outcome: &str) -> bool {
        let faults: Vec<&Applied> = self.befell(over, over.from, over.to).collect();
        let own = |whom: Option<Whom>, how: Option<Blow>| {
            faults.iter().any(|fault| match fault.what {
                Why::Run(_, What::Process { whom: struck, how: blow, .. }) => {
                    whom.is_none_or(|whom| whom == struck) && how.is_none_or(|how| how == blow)
                }
                _ => false,
            })
        };
        match over.done.status.code() {
            // It is counted as lost.
            Some(79) => outcome == "lost",
            Some(0) => true,
            Some(75) => over.plan.wait != Wait::Forever,
            Some(124) => over.plan.bound.is_some(),
            Some(69) => !faults.is_empty(),
            Some(77) => {
                let is_one = |what: &Why| matches!(what, Why::Planned(What::Server(Upheaval::RightsTaken)));
                faults.iter().any(|fault| is_one(&fault.what))
            }
            Some(70) => own(Some(Whom::Keeper), Some(Blow::Kill)),
            Some(71) => own(None, None),
            Some(_) => false,
            None => self.past.plan.jobs != Jobs::Any || own(None, Some(Blow::Kill)) || own(None, Some(Blow::Term)),
        }
    }

    /// Whether what befell the run explains that it could not renew.
    fn loss(&self, over: &Over, figures: &mut Figures) {
        figures.lost += 1;
        let ttl = over.plan.ttl;
        let one_try = timing::try_limit(ttl, None, true);
        let unused = timing::grace(ttl) + timing::slack(ttl) + timing::margin(ttl) + one_try * 2;
        let tolerance = (ttl * 2 / 3).saturating_sub(unused);
        // A command that was stopped wrote nothing for a while, and after a loss a release may be tried for a while.
        let last = self.life(over).map_or(over.to, |life| life.to);
        let (from, to) = (last.before(ttl + timing::grace(ttl)), over.to);
        let faults: Vec<&Applied> = self.befell(over, from, to).collect();
        let is_flush = |what: &Why| matches!(what, Why::Planned(What::Server(Upheaval::FlushAll)));
        if faults.iter().any(|fault| is_flush(&fault.what)) {
            return;
        }
        let without = |is_busy_too: bool| {
            let spans = faults.iter().filter(|fault| match &fault.what {
                Why::Planned(what) | Why::Run(_, what) => what.keeps_from_renewing(),
                Why::Busy => is_busy_too,
            });
            // After each the next try must begin and be answered.
            let spans = spans.map(|fault| (fault.from.max(from), (fault.to + one_try * 2).min(to)));
            length(spans.filter(|(from, to)| from < to).collect())
        };
        if without(false) >= tolerance {
            return;
        }
        if without(true) >= tolerance {
            figures.lost_when_busy += 1;
            return;
        }
        let why = over.report.as_ref().map(|report| report["why"].to_string());
        let cut = without(false);
        figures.needless.push(format!(
            "run {} ttl {ttl:?}, cut off for {cut:?} of its last ttl, {tolerance:?} tolerated, {why:?}, {faults:?}",
            over.number
        ));
    }

    /// Who was seen behind another started behind it, where nothing befell that one.
    fn order(&self) -> Vec<String> {
        let place: HashMap<&str, &Life> = self.lives.iter().map(|life| (life.claim.as_str(), life)).collect();
        let mut found = BTreeMap::new();
        for sample in &self.past.samples {
            let queued: Vec<&Life> =
                sample.queue.iter().filter_map(|claim| place.get(claim.as_str()).copied()).collect();
            for (at, first) in queued.iter().enumerate() {
                for second in queued[at + 1..].iter().filter(|second| second.from < first.from) {
                    let Some(over) = self.by_run.get(&first.run) else { continue };
                    if self.befell(over, sample.from.before(FELT), second.from).next().is_none() {
                        let line =
                            format!("run {} was before run {} in {sample:?}, started after it", first.run, second.run);
                        found.insert((first.run, second.run), line);
                    }
                }
            }
        }
        found.into_values().collect()
    }

    /// Whether a claim that was enqueued must stay there until it is forgotten: a new connection logs in before it can
    /// say anything, and there was no answer to that.
    fn could_not_leave(&self, over: &Over, claim: &str) -> bool {
        let mut before = self.past.samples.iter().filter(|sample| sample.to < over.to);
        let was_there = before.any(|sample| sample.queue.iter().any(|queued| queued == claim));
        was_there && self.befell(over, over.to.before(MS(3_000)), over.to).next().is_some()
    }

    /// Nobody holds a key whose run is over, unless a message that ends it may have been lost.
    fn ghosts(&self) -> Vec<String> {
        let mut found = BTreeMap::new();
        let claim = |over: &Over| Some(over.report.as_ref()?["claim"].as_str()?.to_owned());
        let owners: HashMap<String, &Over> =
            self.past.runs.iter().filter_map(|over| Some((claim(over)?, over))).collect();
        for sample in &self.past.samples {
            let claims = sample.holders.iter().chain(&sample.queue);
            for (claim, over) in claims.filter_map(|claim| Some((claim, owners.get(claim)?))) {
                let report = over.report.as_ref().unwrap();
                let is_ours = over.plan.keeps.is_none() && report["outcome"] != "lost";
                if !is_ours || sample.from < over.to + AFTER {
                    continue;
                }
                let mut faults = self.befell(over, over.from, sample.to);
                let explained = faults.any(|fault| {
                    let loses = match &fault.what {
                        Why::Planned(what) | Why::Run(_, what) => what.loses(),
                        Why::Busy => true,
                    };
                    loses || fault.to + AFTER > sample.from
                });
                if !explained && !self.could_not_leave(over, claim) {
                    let took = sample.from.since(over.to);
                    found.insert(
                        over.number,
                        format!("it is over for {took:?} and its claim is in the store: {over:?}"),
                    );
                }
            }
        }
        found.into_values().collect()
    }
}

/// How much time these cover.
fn length(mut spans: Vec<(Boot, Boot)>) -> Duration {
    spans.sort();
    let (mut sum, mut end) = (Duration::ZERO, Boot::at(Duration::ZERO));
    for (from, to) in spans {
        sum += to.since(from.max(end));
        end = end.max(to);
    }
    sum
}
