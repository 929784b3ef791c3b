//! `rlock run`: ask, spawn, supervise, release.
//!
//! The parts: `next` decides what happens next and [`crate::lease`] when the command must be stopped, both pure;
//! `event_loop` carries it out on the thread that owns the deadline, which talks to no store, writes to no pipe that
//! could be full and looks no name up; `worker`, with `wait` and `hold`, is the store's thread. The lines it says
//! are in `report`.

mod account;
mod clock_jump;
mod event_loop;
// What decides is open to the simulator, tests/sim.
#[doc(hidden)]
pub mod events;
#[doc(hidden)]
pub mod hold;
#[doc(hidden)]
pub mod next;
#[doc(hidden)]
pub mod wait;
#[doc(hidden)]
pub mod worker;

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::Context as _;

use crate::child::Program;
use crate::claim::{Ask, ClaimId, Limit};
use crate::clock::Boot;
use crate::error::Error;
use crate::exit::Exit;
use crate::keeper::{Keeper, Spec};
use crate::lease::Plan;
use crate::nest::{self, Nest};
use crate::report::{self, Outcome, Report, ReportFile, Voice, Who};
use crate::settings::{Command, RunSettings, Settings, Wait};
use crate::signal::Signals;
use crate::store::{self, Cancel, Store};
use crate::sys;

use event_loop::EventLoop;
use next::{Manner, Run};
use worker::Work;

/// How long the last lines may take, and the last request of a run that cannot begin: neither a stuck stderr nor a store
/// must keep rlock.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs the command under the lock. An error is what kept it from being asked for.
pub fn run(settings: &Settings, run: &RunSettings) -> anyhow::Result<Exit> {
    run_on(settings, run, |cancel| store::open(&settings.store.url, settings.store.password_file.as_deref(), cancel))
}

/// The same on the store that `open` opens.
pub fn run_on(
    settings: &Settings,
    run: &RunSettings,
    open: impl FnOnce(&Cancel) -> Box<dyn Store>,
) -> anyhow::Result<Exit> {
    // Its descriptor is taken over before anything else is opened.
    let file = run.report.as_ref().map(ReportFile::open).transpose()?;
    let mut report = Report::new(&run.key, settings.store.url.name());
    let ended = start(settings, run, open).and_then(|mut event_loop| {
        let exit = event_loop.run();
        let account = event_loop.account();
        report = account.report.clone();
        Ok((exit?, account.voice.clone()))
    });
    if let Err(error) = &ended
        && let Some(error) = error.downcast_ref::<Error>()
    {
        (report.outcome, report.code, report.why) = (Outcome::from(error), error.code(), Some(error.to_string()));
    }
    let written = file.map_or(Ok(()), |file| file.write(&report));
    let voice = ended.as_ref().map_or_else(|_| Voice::direct(settings.output), |(_, voice)| voice.clone());
    if let Err(why) = written {
        voice.say(&format!("the report {why}"));
    }
    voice.finish(LAST_WORDS);
    ended.map(|(exit, _)| exit)
}

/// Everything up to the first request: the order matters, since the keeper is forked before any thread exists.
fn start<'a>(
    settings: &'a Settings,
    run: &'a RunSettings,
    open: impl FnOnce(&Cancel) -> Box<dyn Store>,
) -> anyhow::Result<EventLoop<'a>> {
    let program = match &run.command {
        Command::Shell(line) => Program::shell(line.clone())?,
        Command::Argv(words) => Program::find(words.clone())?,
    };
    sys::share_heap();
    let signals = Signals::block_all()?;
    let cancel = Cancel::new().context(Error::Os("cannot open a descriptor (see ulimit -n)".into()))?;
    let mut store = open(&cancel);
    if run.replicas > 0 {
        store.need_replicas(run.replicas).map_err(|trouble| Error::Config(trouble.to_string()))?;
    }
    let claim = ClaimId::from_bits(u128::from_ne_bytes(random()?));
    let keep = store.enrol(claim).map(|fd| fd.as_raw_fd()).into_iter().collect();
    let spec = Spec { program: program.clone(), at_entry: signals.at_entry(), signal: run.signal, keep };
    let keeper = Keeper::fork(spec)?;
    let voice = Voice::threaded(settings.output);
    if settings.store.unconfigured {
        voice.say(&report::unconfigured(&store.name()));
    }
    let ask = Ask {
        id: claim,
        limit: Limit::EXCLUSIVE,
        ttl_ms: u64::try_from(run.ttl.as_millis()).unwrap_or(u64::MAX),
        process: true,
        wait: run.wait != Wait::No,
        record: Who::here(&run.command, run.label.as_deref()).to_members(),
    };
    let wait = match run.wait {
        Wait::Forever => None,
        Wait::For(most) => Some(most),
        Wait::No => Some(Duration::ZERO),
    };
    let delay = part(run.jitter, u64::from_ne_bytes(random()?));
    if !delay.is_zero() {
        let line = report::delayed(run.key.as_str(), delay);
        if voice.has_terminal() { voice.live(&line) } else { voice.say_verbose(&line) }
    }
    let store_timeout = settings.store.timeout;
    let work = Work { store, key: run.key.clone(), ask, ttl: run.ttl, delay, wait, store_timeout };
    let began = Boot::now() + delay;
    let timer = event_loop::timer()?;
    let worker = worker::start(work, cancel)
        .with_context(|| Error::Os("cannot start a thread (see ulimit -u and -v)".into()))?;
    // It makes ready while the store is asked.
    if let Err(error) = keeper.wait_ready() {
        worker.give_up(Boot::now() + LAST_WORDS);
        return Err(error.into());
    }
    let plan = Plan { ttl: run.ttl, grace: run.grace, on_lost: run.on_lost };
    let RunSettings { signal, forward, max_runtime, hold_at_least, .. } = *run;
    let state = Run::new(Manner { plan, signal, forward, max_runtime, hold_at_least });
    let nest = Nest::read(std::env::var_os(nest::CLAIM).as_deref());
    let parts = event_loop::Parts { program, signals, timer, keeper, voice, worker, state, nest, claim, began };
    Ok(EventLoop::new(settings, run, parts))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Os(format!("cannot get random numbers: {error}")))?;
    Ok(bytes)
}

/// The part of `whole` that `dice` is of the greatest number: each equally likely.
fn part(whole: Duration, dice: u64) -> Duration {
    let nanos = whole.as_nanos().saturating_mul(u128::from(dice)) >> u64::BITS;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
