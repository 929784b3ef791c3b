//! The tree of a process: who is in it now, a signal to all of it, and its end.
//!
//! A process that leaves its parent, its group or its session stays in the tree, because the root is a subreaper:
//! orphans become its children. So the tree is exactly what /proc shows below the root.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use nix::sys::wait::WaitPidFlag;
use nix::unistd::{Pid, getpid};
use serde::{Deserialize, Serialize};

use super::Ending;
use crate::clock::Boot;
use crate::sys::{self, Change};

/// The pause between two looks at a tree that is dying.
const PAUSE: Duration = Duration::from_millis(1);

/// How often a tree is looked at to be sure that nobody is in it.
const MOST_LOOKS: u32 = 50;

/// A process that is still there, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Its pid.
    pub pid: i32,
    /// Its name as the kernel has it, or `?`.
    pub comm: String,
    /// Why it is still there.
    pub why: Why,
}

/// Why a process is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// It runs as somebody else: we may not signal it.
    NotPermitted,
    /// It was killed and has not died yet, as in uninterruptible sleep.
    NotDead,
}

/// What repeated looks at a tree have shown.
#[derive(Default)]
struct Sight {
    /// Who was dead in the last look.
    dead: Option<HashSet<Pid>>,
    /// Who was alive in it.
    alive: HashSet<Pid>,
    /// That look has missed nobody.
    is_whole: bool,
    /// It has shown nobody new alive.
    is_settled: bool,
}

/// All processes below one, without that one.
#[derive(Clone, Debug)]
pub struct Tree {
    root: Pid,
    except: Vec<Pid>,
    kept: Vec<Pid>,
}

impl Tree {
    /// The tree below `root`.
    pub fn below(root: Pid) -> Self {
        Self { root, except: Vec::new(), kept: Vec::new() }
    }

    /// Without these processes and what is below them.
    #[must_use]
    pub fn without(mut self, except: &[Pid]) -> Self {
        self.except.extend(except);
        self
    }

    /// With children that are never reaped here, so that their pids stay theirs.
    #[must_use]
    pub fn keeping(mut self, kept: impl IntoIterator<Item = Pid>) -> Self {
        self.kept.extend(kept);
        self
    }

    /// Those that live now, parents before their children.
    pub fn members(&self) -> Vec<Pid> {
        let found = self.walk(0).into_iter();
        found.filter(|found| !found.is_dead && is_there(&found.sent)).map(|found| found.pid).collect()
    }

    /// Sends `signal` to all of them once, and lets those that are stopped go on, so that they can act on it. Those
    /// that we may not signal are returned.
    pub fn signal(&self, signal: i32) -> Vec<Left> {
        let mut left = Vec::new();
        // All are found before the first has it: a parent that dies of it would hide its children from us.
        for pid in self.members() {
            match sys::kill(pid, signal) {
                Err(error) if is_forbidden(&error) => left.push(Left::of(pid, Why::NotPermitted)),
                // It may have ended meanwhile.
                _ => {
                    let _ = sys::kill(pid, libc::SIGCONT);
                }
            }
        }
        left
    }

    /// How many live now. None only when it is certain that nobody does. Where the one that is known to be `dead`, and
    /// is not reaped, is the only one who is, a single look is enough.
    pub fn count(&self, dead: Option<Pid>) -> usize {
        let mut sight = Sight { dead: dead.map(|dead| HashSet::from([dead])), ..Sight::default() };
        for _ in 0..MOST_LOOKS {
            let left = self.send_all(0, &mut sight);
            if sight.is_whole || !left.is_empty() {
                return left.len();
            }
        }
        // They come and go faster than we look.
        1
    }

    /// Kills all of them, again and again until nobody is left, those that we may not signal excepted, or until
    /// `until`. What is left then is returned. It looks once at least.
    pub fn kill(&self, until: Boot) -> Vec<Left> {
        let mut sight = Sight::default();
        loop {
            self.reap();
            let left = self.send_all(libc::SIGKILL, &mut sight);
            let is_done = sight.is_whole && left.iter().all(|(_, why)| *why == Why::NotPermitted);
            if is_done || Boot::now() >= until {
                return left.into_iter().map(|(pid, why)| Left::of(pid, why)).collect();
            }
            if sight.is_settled {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Sends `signal` to all that live, and says who they are.
    fn send_all(&self, signal: i32, sight: &mut Sight) -> Vec<(Pid, Why)> {
        let (mut left, mut dead, mut is_steady) = (Vec::new(), HashSet::new(), true);
        for Found { pid, is_dead, sent } in self.walk(signal) {
            match sent {
                _ if is_dead => drop(dead.insert(pid)),
                Ok(()) => left.push((pid, Why::NotDead)),
                Err(error) if is_forbidden(&error) => left.push((pid, Why::NotPermitted)),
                Err(_) => is_steady = false,
            }
        }
        // A process may fork and end while we look, and its child be missed. Who was dead in the look before this
        // one has no such child. And a list is not whole out of which somebody was reaped while it was read.
        sight.is_whole = is_steady && sight.dead.as_ref().is_some_and(|were| dead.is_subset(were));
        sight.dead = Some(dead);
        let alive = left.iter().map(|(pid, _)| *pid).collect();
        sight.is_settled = is_steady && sight.alive.is_superset(&alive);
        sight.alive = alive;
        left
    }

    /// Reaps our children that ended, if we are the root: the orphans of the tree among them.
    pub fn reap(&self) -> Vec<(Pid, Ending)> {
        if self.root != getpid() {
            return Vec::new();
        }
        let mut reaped = Vec::new();
        while let Some((pid, _)) = sys::wait_child(None, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            if self.kept.contains(&pid) {
                // It stands in front of the others for ever.
                let others = children_of(self.root).into_iter().filter(|child| !self.kept.contains(child));
                reaped.extend(others.filter_map(reap_one));
                break;
            }
            reaped.extend(reap_one(pid));
        }
        reaped
    }

    /// Everybody below the root, also the dead who are not reaped, each with what became of sending `signal` to it.
    fn walk(&self, signal: i32) -> Vec<Found> {
        let by_parent = if has_children_files() { None } else { Some(all_by_parent()) };
        let children = |pid: Pid| match &by_parent {
            None => listed_children(pid),
            Some(map) => map.get(&pid).cloned().unwrap_or_default(),
        };
        let mut known: HashSet<Pid> = self.except.iter().copied().collect();
        known.insert(self.root);
        let mut found = Vec::new();
        let mut parents = VecDeque::from([self.root]);
        while let Some(parent) = parents.pop_front() {
            // The signal goes out before anything else is asked: there are processes that live no longer than that.
            let new = children(parent).into_iter().filter(|child| known.insert(*child));
            let sent: Vec<_> = new.map(|pid| (pid, sys::kill(pid, signal))).collect();
            for (pid, sent) in sent {
                let is_dead = Stat::of(pid).is_some_and(|stat| stat.is_dead());
                if !is_dead {
                    parents.push_back(pid);
                }
                found.push(Found { pid, is_dead, sent });
            }
        }
        found
    }
}

/// A process that was found in a tree.
struct Found {
    pid: Pid,
    is_dead: bool,
    /// An error too where it was gone by then, or is not ours to signal.
    sent: io::Result<()>,
}

impl Left {
    fn of(pid: Pid, why: Why) -> Self {
        let comm = Stat::of(pid).map_or_else(|| "?".to_owned(), |stat| stat.comm);
        Self { pid: pid.as_raw(), comm, why }
    }
}

fn is_there(sent: &io::Result<()>) -> bool {
    sent.as_ref().err().is_none_or(is_forbidden)
}

fn is_forbidden(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

fn reap_one(pid: Pid) -> Option<(Pid, Ending)> {
    let (pid, change) = sys::wait_child(Some(pid), WaitPidFlag::WEXITED)?;
    match change {
        Change::Exited(code) => Some((pid, Ending::Code(code))),
        Change::Killed(signal) => Some((pid, Ending::Signal(signal))),
        Change::Stopped(_) | Change::Continued => None,
    }
}

/// What /proc/PID/stat says.
struct Stat {
    comm: String,
    state: u8,
    parent: Pid,
    threads: u32,
}

impl Stat {
    fn of(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `pid (comm) state parent …`, the number of threads being the 20th; the name may hold anything.
    fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let comm = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
        let rest = str::from_utf8(&text[close + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.bytes().next()?;
        let parent = Pid::from_raw(fields.next()?.parse().ok()?);
        let threads = fields.nth(15)?.parse().ok()?;
        Some(Self { comm, state, parent, threads })
    }

    /// A process whose first thread has ended looks like a zombie, and runs.
    fn is_dead(&self) -> bool {
        self.state == b'Z' && self.threads <= 1
    }
}

/// The parent of `pid`, also of one that is dead and not reaped.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    Stat::of(pid).map(|stat| stat.parent)
}

/// Whether `pid` is stopped.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.state == b'T')
}

/// Whether the kernel lists the children of a thread, which is much cheaper than to look at every process.
fn has_children_files() -> bool {
    let own = getpid();
    fs::exists(format!("/proc/{own}/task/{own}/children")).unwrap_or(false)
}

/// The children of `pid`, the dead who are not reaped too.
pub(crate) fn children_of(pid: Pid) -> Vec<Pid> {
    if has_children_files() { listed_children(pid) } else { all_by_parent().remove(&pid).unwrap_or_default() }
}

fn listed_children(pid: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().filter_map(parse_pid).collect::<Vec<_>>()).collect()
}

fn all_by_parent() -> HashMap<Pid, Vec<Pid>> {
    let mut map: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for name in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = name.file_name().to_str().and_then(parse_pid);
        if let Some((pid, stat)) = pid.and_then(|pid| Some((pid, Stat::of(pid)?))) {
            map.entry(stat.parent).or_default().push(pid);
        }
    }
    map
}

fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let line = b"42 (a) b (c) Z 7 42 42 0 -1 4 0 0 0 0 0 0 0 0 20 0 3 0 100 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.comm.as_str(), stat.state, stat.parent.as_raw(), stat.threads), ("a) b (c", b'Z', 7, 3));
        assert!(!stat.is_dead(), "other threads run");
        assert!(Stat::parse(b"42 (x").is_none());
        let own = Stat::of(getpid()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid());
        assert!(own.threads >= 2);
    }

    #[test]
    fn both_ways_to_look_find_the_same() {
        let script = "sleep 100 & sleep 100 & echo ready; wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(shell.id()).unwrap());
        io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        let mut listed = children_of(pid);
        let mut scanned = all_by_parent().remove(&pid).unwrap();
        listed.sort();
        scanned.sort();
        assert!(has_children_files(), "this kernel lists children; the test compares both ways");
        assert_eq!(listed.len(), 2);
        assert_eq!(listed, scanned);
        assert!(children_of(getpid()).contains(&pid));

        let tree = Tree::below(pid);
        assert_eq!(tree.members().len(), 2);
        assert_eq!(tree.clone().without(&listed[..1]).members(), &listed[1..]);
        assert_eq!(tree.kill(Boot::now() + Duration::from_secs(5)), []);
        assert_eq!(tree.members(), []);
        shell.wait().unwrap();
    }
}
