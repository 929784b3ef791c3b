//! The command that runs under a lock: this program started again. It writes what happens to it, and so does the
//! child that it leaves in the background of its tree.
//!
//! Each line is one write to a file opened for appending, stamped with `CLOCK_BOOTTIME`: `start`, a `beat` every few
//! milliseconds, `end`. The kernel judges too: whoever is inside holds the lock of a file, and so does the child.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rlock::clock::Boot;

use crate::dice::Dice;

/// The first word of its command line.
pub(crate) const ROLE: &str = "--inside";
const CHILD: &str = "--child";

/// The environment variable with the directory of the history and of the kernel's judge.
pub(crate) const PLACE: &str = "RLOCK_TEST_PLACE";
/// The file in it that is the history.
pub(crate) const HISTORY: &str = "history";
const EVERY: Duration = Duration::from_millis(8);
/// No bug leaves one behind for longer.
const LONGEST: Duration = Duration::from_secs(90);

/// What it does when it is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It ends.
    Obeys,
    /// It cleans up for a tenth of a second, and ends with 0.
    Cleans,
    /// It ignores what can be ignored.
    Ignores,
}

/// Who belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Alone,
    /// A child in the background.
    Child,
    /// A child in a session of its own.
    Session,
}

/// What it is told on its command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// The run that it belongs to.
    pub(crate) run: usize,
    pub(crate) key: usize,
    pub(crate) manner: Manner,
    pub(crate) family: Family,
    pub(crate) lasts: Duration,
}

impl Job {
    pub(crate) fn random(dice: &mut Dice, run: usize, key: usize) -> Self {
        // One in a few works for longer than its lease lasts without a renewal.
        let lasts = if dice.one_in(4) { dice.ms(1_000, 7_000) } else { dice.ms(10, 250) };
        let manner = dice.one(&[Manner::Obeys, Manner::Cleans, Manner::Ignores]);
        let family = dice.one(&[Family::Alone, Family::Child, Family::Child, Family::Session]);
        Self { run, key, manner, family, lasts }
    }

    /// Its command line, as rlock runs it.
    pub(crate) fn words(&self) -> Vec<String> {
        self.line(ROLE)
    }

    fn line(&self, role: &str) -> Vec<String> {
        let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
        let numbers = [self.run, self.key, self.manner as usize, self.family as usize];
        let lasts = self.lasts.as_millis().to_string();
        let numbers = numbers.iter().map(ToString::to_string);
        [program, role.to_owned()].into_iter().chain(numbers).chain([lasts]).collect()
    }

    fn read(words: &[OsString]) -> Self {
        let number = |at: usize| words[at].to_str().unwrap().parse::<u64>().unwrap();
        let index = |at: usize| usize::try_from(number(at)).unwrap();
        Self {
            run: index(0),
            key: index(1),
            manner: [Manner::Obeys, Manner::Cleans, Manner::Ignores][index(2)],
            family: [Family::Alone, Family::Child, Family::Session][index(3)],
            lasts: Duration::from_millis(number(4)),
        }
    }
}

/// Runs as the command or as its child, if the command line says so.
pub(crate) fn main(words: &[OsString]) -> Option<ExitCode> {
    let role = words.get(1)?.to_str()?;
    let is_first = role == ROLE;
    if !is_first && role != CHILD {
        return None;
    }
    let job = Job::read(&words[2..]);
    let act = if is_first { first } else { child };
    act(job);
    Some(ExitCode::SUCCESS)
}

fn place() -> std::path::PathBuf {
    std::env::var_os(PLACE).unwrap().into()
}

/// The history, and who writes to it.
struct Pen {
    file: File,
    who: &'static str,
    job: Job,
}

impl Pen {
    fn new(who: &'static str, job: Job) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(place().join(HISTORY)).unwrap();
        Self { file, who, job }
    }

    fn write(&mut self, what: &str) {
        let at = Boot::now().since_boot().as_nanos();
        let line = format!("{at} {what} {} {} {}\n", self.job.run, self.job.key, self.who);
        self.file.write_all(line.as_bytes()).unwrap();
    }

    fn start(&mut self) {
        let name = |name: &str| std::env::var(name).unwrap_or_default();
        let (claims, token) = (name("RLOCK_CLAIM"), name("RLOCK_TOKEN"));
        let claim = claims.split(',').next_back().and_then(|claim| claim.split('@').next()).unwrap_or_default();
        let or = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        self.write(&format!("start:{}:{}:{}", std::process::id(), or(&token), or(claim)));
    }
}

/// The signals that tell it to end, kept from ending it.
fn taken(manner: Manner) -> Option<SignalFd> {
    if manner == Manner::Obeys {
        return None;
    }
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().unwrap();
    Some(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).unwrap())
}

fn first(job: Job) {
    let mut told = taken(job.manner);
    let mut pen = Pen::new("first", job);
    pen.start();
    let judge = judge(&place(), job.key);
    if judge.is_none() {
        pen.write(&format!("judged:{}", inside(&place(), job.key)));
    }
    let mut child = start_child(job, judge.as_deref());
    let mut end = Boot::now() + job.lasts;
    while Boot::now() < end {
        thread::sleep(EVERY);
        pen.write("beat");
        let is_told = told.as_mut().is_some_and(|signals| matches!(signals.read_signal(), Ok(Some(_))));
        if is_told && job.manner == Manner::Cleans {
            end = end.min(Boot::now() + Duration::from_millis(100));
        }
    }
    if let Some(child) = &mut child {
        // It has ended where somebody ended it; a letter nobody reads is all right.
        let _ = child.stdin.take().unwrap().write_all(b"x");
        let _ = child.wait();
    }
    pen.write("end");
}

/// The file's lock, which the tree of the command holds; none where somebody else is inside.
fn judge(place: &Path, key: usize) -> Option<Flock<File>> {
    let file = OpenOptions::new().append(true).create(true).open(place.join(format!("judge {key}"))).unwrap();
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

/// Who took the file's lock, as the kernel knows: its number, state and parent. Its children may have it now.
fn inside(place: &Path, key: usize) -> String {
    let inode = std::fs::metadata(place.join(format!("judge {key}"))).unwrap().ino();
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let line = locks.lines().find(|line| line.contains("FLOCK") && line.contains(&format!(":{inode} ")));
    let Some(pid) = line.and_then(|line| line.split_whitespace().nth(4)) else { return "nobody".into() };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let about = stat.rsplit_once(") ").map_or("gone".into(), |(_, rest)| rest.replace(' ', ","));
    format!("{pid}:{}", about.split(',').take(2).collect::<Vec<_>>().join(":"))
}

fn start_child(job: Job, judge: Option<&File>) -> Option<Child> {
    let line = (job.family != Family::Alone).then(|| job.line(CHILD))?;
    // The judge's lock goes on with the descriptor.
    let judge = judge.map_or_else(Stdio::null, |file| file.try_clone().unwrap().into());
    Some(Command::new(&line[0]).args(&line[1..]).stdin(Stdio::piped()).stdout(judge).spawn().unwrap())
}

/// Beats until its first process says that all is done; that one's death says nothing.
fn child(job: Job) {
    let _kept = taken(if job.manner == Manner::Cleans { Manner::Obeys } else { job.manner });
    if job.family == Family::Session {
        nix::unistd::setsid().unwrap();
    }
    let mut pen = Pen::new("child", job);
    pen.start();
    let mut letter = std::io::stdin();
    fcntl(&letter, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let end = Boot::now() + LONGEST;
    while Boot::now() < end && !matches!(letter.read(&mut [0]), Ok(1)) {
        thread::sleep(EVERY);
        pen.write("beat");
    }
    pen.write("end");
}
