//! `rlock list`: the keys that somebody holds or waits for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Desk, Interrupted, json};
use crate::clock::Boot;
use crate::error::Error;
use crate::exit::{self, Exit};
use crate::report::{self, KeyView, Voice, aligned};
use crate::settings::Settings;
use crate::store::{Cancel, Find, Key, Look};
use crate::sys;

/// Prints a line for each key that `pattern` matches, in order.
pub fn list(settings: &Settings, pattern: Option<&str>) -> anyhow::Result<Exit> {
    let mut desk = Desk::open(settings)?;
    let found = search(&mut desk, pattern)?;
    let name = desk.name();
    let views: Vec<KeyView> = found.iter().map(|(key, look)| KeyView::new(key.as_str(), &name, look)).collect();
    let text = if settings.output.json {
        views.iter().map(json).collect::<anyhow::Result<String>>()?
    } else if views.is_empty() {
        String::new()
    } else {
        let head = ["KEY", "HOLDER", "SINCE", "LEFT", "WAITERS"].map(str::to_owned).to_vec();
        aligned(&std::iter::once(head).chain(views.iter().map(KeyView::row)).collect::<Vec<_>>())
    };
    report::print(&text)?;
    if views.is_empty() {
        desk.say_where();
    }
    Ok(Exit::Code(exit::OK))
}

fn search(desk: &mut Desk, pattern: Option<&str>) -> anyhow::Result<BTreeMap<Key, Look>> {
    let mut progress = Progress::new(desk);
    // A store may show a key twice, and a try that failed half-way is begun again.
    let mut found = BTreeMap::new();
    let done = desk.ask(|store, by| {
        store.search(pattern, by.left(), &mut |find| match find {
            Find::Key(listed) => {
                found.insert(listed.key, listed.look);
                true
            }
            Find::Searched(searched, all) => progress.show(searched, all, found.len()),
        })
    });
    progress.end()?;
    done?;
    Ok(found)
}

/// A live line that tells how far a long search is.
struct Progress {
    voice: Voice,
    cancel: Cancel,
    next: Boot,
    is_shown: bool,
}

impl Progress {
    /// A search that is over sooner is not told of.
    const FIRST: Duration = Duration::from_millis(500);
    const EVERY: Duration = Duration::from_millis(100);

    fn new(desk: &Desk) -> Self {
        let next = Boot::now() + Self::FIRST;
        Self { voice: desk.voice.clone(), cancel: desk.cancel.clone(), next, is_shown: false }
    }

    /// Whether the search is to go on.
    fn show(&mut self, searched: u64, all: Option<u64>, found: usize) -> bool {
        if Boot::now() < self.next || !self.voice.can_be_live() {
            return true;
        }
        self.next = Boot::now() + Self::EVERY;
        if !self.is_shown {
            self.is_shown = true;
            // From here on there is something to clear away when Ctrl-C comes. Where that fails, the line stays.
            let cancel = self.cancel.clone();
            let _ = ctrlc::set_handler(move || cancel.fire());
        }
        let of = all.map(|all| format!(" of {all}")).unwrap_or_default();
        self.voice.live(&format!("searched {searched}{of} keys, found {found}"));
        !self.cancel.is_fired()
    }

    /// Clears it away. From here on Ctrl-C has its usual effect, also while a pager does not read.
    fn end(&self) -> anyhow::Result<()> {
        if !self.is_shown {
            return Ok(());
        }
        self.voice.finish(Self::FIRST);
        sys::set_disposition(libc::SIGINT, false)
            .map_err(|error| Error::Os(format!("cannot let SIGINT go: {error}")))?;
        if self.cancel.is_fired() { Err(Interrupted.into()) } else { Ok(()) }
    }
}
