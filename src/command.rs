//! The subcommands beside `run`: they look at the store and print what they find.
//!
//! Nothing is to be undone when one of them is ended by a signal, so signals keep their default effect, also while a
//! pager or a question is waited for. Only `force-release`, once it tells a holder to stop, takes SIGINT, to say
//! what it leaves behind.

pub mod completions;
pub mod force_release;
pub mod inspect;
pub mod list;
pub mod ttl;

use std::fmt;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::clock::Boot;
use crate::error::Error;
use crate::report::{self, Voice, store_error};
use crate::settings::Settings;
use crate::store::{self, Cancel, Key, Look, Reply, Store, Trouble};
use crate::text::{safe_json, short};
use crate::timing;

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// SIGINT ended the command before it was done.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// A store that is asked patiently: again and again until it answers, or until its time is over.
struct Desk {
    store: Box<dyn Store>,
    cancel: Cancel,
    timeout: Duration,
    voice: Voice,
    unconfigured: bool,
}

impl Desk {
    fn open(settings: &Settings) -> Result<Self, Error> {
        let cancel = Cancel::new().map_err(|error| Error::Os(format!("cannot make an event descriptor: {error}")))?;
        let store = &settings.store;
        Ok(Self {
            store: store::open(&store.url, store.password_file.as_deref(), &cancel),
            cancel,
            timeout: store.timeout,
            voice: Voice::direct(settings.output),
            unconfigured: store.unconfigured,
        })
    }

    /// Says which store was looked at where nothing names one: for who does not find what they look for.
    fn say_where(&self) {
        if self.unconfigured {
            self.voice.say(&report::unconfigured(&self.name()));
        }
    }

    fn name(&self) -> String {
        self.store.name()
    }

    /// What the store answers within its time.
    fn ask<T>(&mut self, ask: impl FnMut(&mut dyn Store, Boot) -> Reply<T>) -> anyhow::Result<T> {
        self.ask_within(self.timeout, ask)
    }

    /// What the store answers within `most`. Each try may take longer than the one before: a slow line needs that.
    fn ask_within<T>(
        &mut self,
        most: Duration,
        mut ask: impl FnMut(&mut dyn Store, Boot) -> Reply<T>,
    ) -> anyhow::Result<T> {
        let start = Boot::now();
        let end = start + most;
        let (mut limit, mut pause, mut told) = (timing::LONGEST_TRY, timing::FIRST_PAUSE, false);
        loop {
            let trouble = match ask(self.store.as_mut(), (Boot::now() + limit).min(end)) {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Interrupted) => return Err(Interrupted.into()),
                Err(trouble) => trouble,
            };
            let may_pass = matches!(trouble, Trouble::Unknown(_) | Trouble::Later(_) | Trouble::Os(_));
            if !may_pass || end.left() <= pause {
                return Err(store_error(&trouble, most).into());
            }
            if !told && Boot::now().since(start) >= Duration::from_secs(1) {
                told = true;
                self.voice.say(&format!("{trouble}; trying for another {}", short(end.left())));
            }
            self.pause(pause)?;
            pause = (pause * 2).min(LONGEST_PAUSE);
            limit *= 2;
        }
    }

    fn look(&mut self, key: &Key) -> anyhow::Result<Look> {
        self.ask(|store, by| store.look(key, by))
    }

    fn looks(&mut self, keys: &[Key]) -> anyhow::Result<Vec<Look>> {
        keys.iter().map(|key| self.look(key)).collect()
    }

    /// Does nothing for a while, or until the cancel fires.
    fn pause(&self, most: Duration) -> Result<(), Interrupted> {
        let timeout = PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.cancel.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(1..) => Err(Interrupted),
            _ => Ok(()),
        }
    }
}

/// One JSON object on a line.
fn json(view: &impl serde::Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string(view)
        .map(|json| safe_json(&json))
        .map_err(|error| Error::Software(format!("cannot write JSON: {error}")))?;
    Ok(text + "\n")
}
