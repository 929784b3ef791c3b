//! What the commands wrote, read and checked: it knows of no fault and of no store.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock::clock::Boot;

/// All that one command and what it left in its tree wrote.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) run: usize,
    pub(crate) key: usize,
    pub(crate) claim: String,
    pub(crate) token: u64,
    pub(crate) from: Boot,
    /// The last that was heard of anybody.
    pub(crate) to: Boot,
    /// The first process came to its end.
    pub(crate) has_ended: bool,
    /// Who was inside when it started, as the kernel says.
    judged: Option<String>,
}

/// Two that were inside at once.
#[derive(Clone, Debug)]
pub(crate) struct Overlap {
    pub(crate) runs: (usize, usize),
    pub(crate) key: usize,
    pub(crate) from: Boot,
    pub(crate) to: Boot,
    pub(crate) judged: Option<String>,
}

impl Overlap {
    fn of(earlier: &Life, later: &Life, from: Boot, to: Boot) -> Self {
        Self { runs: (earlier.run, later.run), key: later.key, from, to, judged: later.judged.clone() }
    }
}

/// The commands by their start. A line that cannot be read ends the test.
pub(crate) fn read(text: &str) -> Vec<Life> {
    let mut lives: BTreeMap<usize, Life> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [at, what, run, key, who] = words[..] else { panic!("{line}") };
        let at = Boot::at(Duration::from_nanos(at.parse().unwrap()));
        let (run, key) = (run.parse().unwrap(), key.parse().unwrap());
        if let Some(start) = what.strip_prefix("start:").filter(|_| who == "first") {
            let parts: Vec<&str> = start.split(':').collect();
            let [_, token, claim] = parts[..] else { panic!("{line}") };
            // Other wrappers give none.
            let (token, claim) = (if token == "-" { 0 } else { token.parse().unwrap() }, claim.to_owned());
            let life = Life { run, key, claim, token, from: at, to: at, has_ended: false, judged: None };
            assert!(lives.insert(run, life).is_none(), "run {run} ran its command twice");
        }
        let life = lives.get_mut(&run).unwrap_or_else(|| panic!("no start before {line}"));
        life.to = life.to.max(at);
        life.judged = what.strip_prefix("judged:").map(str::to_owned).or(life.judged.take());
        life.has_ended |= (what, who) == ("end", "first");
    }
    let mut lives: Vec<Life> = lives.into_values().collect();
    lives.sort_by_key(|life| life.from);
    lives
}

/// No two commands are inside one key at once, nor is anything that they left in the background.
pub(crate) fn overlaps(lives: &[Life]) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (at, later) in lives.iter().enumerate() {
        let mut before = lives[..at].iter().filter(|life| life.key == later.key);
        let together: Vec<_> = before.clone().filter(|life| life.to > later.from).collect();
        for earlier in &together {
            let (from, to) = (later.from, later.to.min(earlier.to));
            found.push(Overlap::of(earlier, later, from, to));
        }
        // Whoever was stopped wrote nothing, and was there.
        if let Some(earlier) = before.next_back().filter(|_| later.judged.is_some() && together.is_empty()) {
            let (from, to) = (later.from, later.from);
            found.push(Overlap::of(earlier, later, from, to));
        }
    }
    found
}

/// Pairs of runs, one after the other, whose tokens do not grow.
pub(crate) fn regressions(lives: &[Life]) -> Vec<(usize, usize)> {
    let mut last: BTreeMap<usize, &Life> = BTreeMap::new();
    let mut found = Vec::new();
    for life in lives {
        if let Some(before) = last.insert(life.key, life).filter(|before| before.token >= life.token) {
            found.push((before.run, life.run));
        }
    }
    found
}

/// The checks see what they are to see.
pub(crate) fn sees() {
    let start = |at: u64, run: usize, token: u64| format!("{at} start:9:{token}:c{run} {run} 0 first\n");
    let clean = start(1, 0, 5) + "2 beat 0 0 first\n3 beat 0 0 child\n4 end 0 0 first\n" + &start(5, 1, 6);
    let lives = read(&clean);
    assert!(overlaps(&lives).is_empty() && regressions(&lives).is_empty() && lives[0].has_ended);
    // A child that beats once more.
    let late = read(&(clean.clone() + "6 beat 0 0 child\n"));
    assert_eq!(overlaps(&late).len(), 1);
    // On another key that is all right.
    assert!(overlaps(&read(&clean.replace("1 0 first", "1 1 first").replace("4 end 1 1", "4 end 0 0"))).is_empty());
    // Nobody beats, and the kernel knows.
    assert_eq!(overlaps(&read(&(clean.clone() + "6 judged:9:S:1 1 0 first\n"))).len(), 1);
    assert_eq!(regressions(&read(&(start(1, 0, 5) + &start(2, 1, 5)))), [(0, 1)]);
}
