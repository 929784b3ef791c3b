//! The local store: a directory of this host, and the rule of `claim.rs` run on what lies in it.
//!
//! Every operation finds the key's directory, locks it, reads the record, runs the rule, writes the record, and unlocks;
//! then it wakes whom the rule has served. Nothing is kept open in between but the claim's own FIFO, by which the
//! kernel tells others that its processes are dead (`local/pulse.rs`).
//!
//! The store's clock is `CLOCK_BOOTTIME`, put where the wall clock stood when the key's record was begun. So leases
//! are not touched when somebody sets the clock, and numbers still grow over a lost record.

mod folder;
mod nudge;
mod place;
mod pulse;
mod record;
mod saved;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::folder::{Folder, Want, name_of};
pub(super) use self::place::Address;
use self::pulse::{Own, Pulse, Pulses};
use self::record::{NEWER, Record};
use self::saved::Saved;
use super::{Can, Cancel, Find, Foreign, Key, Limits, Listed, Look, Reply, Store, Trouble, glob};
use crate::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Entry, Event, Renew, Renewal, State, Step, What};
use crate::clock::{self, Boot, ms};
use crate::timing;

/// How soon a claim notices that its directory was removed, and a condemnation that no FIFO tells of.
const NOTICE: Duration = Duration::from_secs(1);
/// How long a waiter whose directory was removed lets the holder take its lock again first.
const SPARE: Duration = NOTICE.saturating_mul(2);
/// How many holders the head of a queue watches; the end of another is seen at the next refresh.
const MOST_WATCHED: usize = 32;
/// Waiters behind the head rest longer, each place by so much: the whole queue must not keep the key's directory busy.
const REFRESH_PER_PLACE: Duration = Duration::from_millis(20);
/// Below the heartbeat, with time for the operation.
const LONGEST_REFRESH: Duration = Duration::from_secs(6);

/// The store's clock and the wall clock at one instant: what people are shown is told by the latter, also when it was
/// set since.
#[derive(Clone, Copy)]
struct Clocks {
    store_ms: u64,
    wall_ms: u64,
}

impl Clocks {
    fn of(saved: &Saved) -> Self {
        Self { store_ms: saved.now_us() / 1000, wall_ms: clock::wall_ms() }
    }

    fn shown(self, mut entry: Entry) -> Entry {
        let shift = |ms: u64| self.wall_ms.saturating_add(ms).saturating_sub(self.store_ms);
        (entry.since_ms, entry.until_ms) = (shift(entry.since_ms), shift(entry.until_ms));
        entry
    }

    fn all_shown(self, entries: Vec<Entry>) -> Vec<Entry> {
        entries.into_iter().map(|entry| self.shown(entry)).collect()
    }
}

/// The store of one user.
pub(super) struct Local {
    address: Address,
    cancel: Cancel,
    /// The name of this boot, once it was read.
    boot: Option<String>,
    own: Option<Own>,
    /// The last ask was answered with a place in the queue.
    waits: bool,
    /// Whose death this claim waits for.
    watched: Vec<ClaimId>,
    /// The key's directory at the last operation.
    seen: Option<(u64, u64)>,
    /// When this waiter first found its directory empty.
    missed: Option<Boot>,
}

/// An operation that was carried out.
struct Done<T> {
    answer: T,
    saved: Saved,
    clocks: Clocks,
}

impl Local {
    pub(super) fn new(address: Address, cancel: Cancel) -> Self {
        Self { address, cancel, boot: None, own: None, waits: false, watched: Vec::new(), seen: None, missed: None }
    }

    /// Carries out one operation on a key. `ends` says whether a claim is over with it; `asker` is a waiter that asks.
    fn change<T>(
        &mut self,
        key: &Key,
        by: Boot,
        asker: Option<ClaimId>,
        act: impl FnOnce(&mut Step<'_>) -> T,
        ends: impl FnOnce(&T) -> Option<ClaimId>,
    ) -> Reply<Done<T>> {
        self.boot()?;
        let Some(folder) = Folder::lock(&self.address, &name_of(key), Want::Change, by, &self.cancel)? else {
            return Err(Trouble::Later(format!("{}: the directory cannot be made", self.address)));
        };
        self.seen = Some(folder.identity);
        let record = self.read(&folder, Want::Change)?;
        let mut saved = self.saved(&record, Some(key))?;
        if record.is_missing() && asker.is_some() && self.waits {
            self.spare_the_holder(key)?;
        }
        self.missed = None;
        let pulses = Pulses::open(&folder.root);
        let mut over = saved.bury(&pulses, asker);
        let now_us = saved.now_us();
        let mut step = saved.state.at(now_us);
        let answer = act(&mut step);
        let mut events = step.events;
        // Who gave back what it had just been given makes room for one behind it whose pulse was not felt.
        while events.last().is_some_and(|event| event.what == What::Served) {
            let dead = saved.bury(&pulses, None);
            if dead.is_empty() {
                break;
            }
            over.extend(dead);
            let mut step = saved.state.at(now_us);
            step.serve();
            events.extend(step.events);
        }
        let ended = ends(&answer);
        // The owner does one thing after another: nothing of it comes after the end that it is told of here.
        if let Some(own) = ended.filter(|id| self.is_own(*id)) {
            saved.forget(own);
        }
        let text = serde_json::to_vec(&saved).map_err(|error| Trouble::Config(error.to_string()))?;
        if text != record.text {
            record.write(&text).map_err(|errno| self.address.failed("cannot write a record", errno))?;
        }
        drop(folder);
        self.tell(&pulses, &events);
        over.extend(ended);
        for id in over {
            pulses.remove(id);
        }
        Ok(Done { answer, clocks: Clocks::of(&saved), saved })
    }

    fn is_own(&self, id: ClaimId) -> bool {
        self.own.as_ref().is_some_and(|own| own.id == id)
    }

    /// After the lock is free: whoever is woken wants it at once.
    fn tell(&self, pulses: &Pulses, events: &[Event]) {
        for event in events {
            if matches!(event.what, What::Served | What::Condemned) && !self.is_own(event.entry.id) {
                pulses.wake(event.entry.id);
            }
        }
    }

    /// A waiter that finds nothing where it stood in a queue was robbed of its directory, and so was the holder, which
    /// notices within [`NOTICE`] and takes its lock again.
    fn spare_the_holder(&mut self, key: &Key) -> Reply<()> {
        let missed = *self.missed.get_or_insert_with(Boot::now);
        if (missed + SPARE).left().is_zero() {
            return Ok(());
        }
        Err(Trouble::Later(format!("{}: the directory of `{key}` was removed under the lock", self.address)))
    }

    fn read(&self, folder: &Folder, want: Want) -> Reply<Record> {
        Record::read(folder.fd(), want == Want::Change).map_err(|errno| match errno {
            NEWER => Trouble::Config(format!("{}: a newer rlock keeps its locks here; update this one", self.address)),
            errno => self.address.failed("cannot open a record", errno),
        })
    }

    /// What a record says now: of another boot only its number is left.
    fn saved(&mut self, record: &Record, key: Option<&Key>) -> Reply<Saved> {
        let boot = self.boot()?;
        let name = key.map_or("", Key::as_str);
        if record.is_missing() {
            return Ok(Saved::new(&boot, name, 0));
        }
        let saved: Saved = serde_json::from_slice(&record.text)
            .map_err(|error| Trouble::Config(format!("{}: a record of a key cannot be read: {error}", self.address)))?;
        if !saved.is_sane() {
            return Err(Trouble::Config(format!(
                "{}: a record of a key has numbers that no rlock writes; remove its directory in keys",
                self.address
            )));
        }
        if key.is_some_and(|key| saved.key != key.as_str()) {
            let other = crate::text::shown(&saved.key, 40);
            return Err(Trouble::Config(format!(
                "{}: the key `{other}` stands where `{name}` would; give one of them another name",
                self.address
            )));
        }
        Ok(if saved.boot == boot { saved } else { Saved::new(&boot, &saved.key, saved.state.number) })
    }

    /// The name of this boot. To be read first while nothing else is open: descriptors may be few.
    fn boot(&mut self) -> Reply<String> {
        if let Some(boot) = &self.boot {
            return Ok(boot.clone());
        }
        let path = "/proc/sys/kernel/random/boot_id";
        let boot = fs::read_to_string(path).map_err(|error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
            let none = || Trouble::Config(format!("cannot tell one boot from another: {path}: {error}"));
            Trouble::of_os(&self.address, "cannot tell one boot from another", errno).unwrap_or_else(none)
        })?;
        Ok(self.boot.insert(boot.trim().to_owned()).clone())
    }

    /// What stands in a directory, with its key; none where there is no record.
    fn look_in(&mut self, name: &str, key: Option<&Key>, by: Boot) -> Reply<Option<(String, Look)>> {
        self.boot()?;
        let Some(folder) = Folder::lock(&self.address, name, Want::Look, by, &self.cancel)? else { return Ok(None) };
        let record = self.read(&folder, Want::Look)?;
        if record.is_missing() {
            return Ok(None);
        }
        let saved = self.saved(&record, key)?;
        let (pulses, clocks) = (Pulses::open(&folder.root), Clocks::of(&saved));
        drop(folder);
        let now_ms = clocks.store_ms;
        let State { number, mut holders, mut queue, traces } = saved.state;
        for entries in [&mut holders, &mut queue] {
            entries.retain(|entry| entry.until_ms > now_ms && !(entry.process && pulses.is_dead(entry.id)));
        }
        let condemned = traces.iter().filter(|trace| trace.condemned && trace.until_ms > now_ms).map(|trace| trace.id);
        let look = Look {
            condemned: condemned.filter(|id| holders.iter().any(|held| held.id == *id)).collect(),
            holders: clocks.all_shown(holders),
            queue: clocks.all_shown(queue),
            number,
            foreign: None,
            now_ms: clocks.wall_ms,
        };
        Ok(Some((saved.key, look)))
    }

    /// Removes the directories of keys that nothing is left of, and FIFOs of the dead. Nobody waits for it to end, and
    /// what it does not get now it gets later.
    fn sweep(&mut self) {
        for name in Folder::names(&self.address).unwrap_or_default() {
            // A directory in use is not waited for.
            let Ok(Some(folder)) = Folder::lock(&self.address, &name, Want::Change, Boot::now(), &self.cancel) else {
                continue;
            };
            let Ok(record) = self.read(&folder, Want::Look) else { continue };
            let Ok(mut saved) = self.saved(&record, None) else { continue };
            let pulses = Pulses::open(&folder.root);
            saved.bury(&pulses, None);
            let now_us = saved.now_us();
            saved.state.at(now_us).serve();
            if saved.is_idle() {
                folder.remove();
            }
        }
        if let Ok(Some(root)) = self.address.open(false) {
            Pulses::open(&root).sweep();
        }
    }
}

impl Store for Local {
    fn can(&self) -> Can {
        Can {
            least_ttl: timing::LEAST_TTL,
            greatest_ttl: timing::GREATEST_TTL,
            limits: Limits::Any,
            ordered: true,
            condemn: true,
            reach: "this host, one user",
        }
    }

    fn enrol(&mut self, id: ClaimId) -> Option<BorrowedFd<'_>> {
        // What is wrong with the directory is told by the first ask.
        let root = self.address.open(true).ok()??;
        self.own = Own::make(&root, id).ok();
        self.own.as_ref().map(AsFd::as_fd)
    }

    fn name(&self) -> String {
        self.address.to_string()
    }

    fn ask(&mut self, key: &Key, ask: &Ask, by: Boot) -> Reply<Answer> {
        let is_over = |answer: &Answer| matches!(answer, Answer::Busy { .. } | Answer::Gone).then_some(ask.id);
        let done = self.change(key, by, Some(ask.id), |step| step.ask(ask), is_over)?;
        let state = &done.saved.state;
        self.waits = false;
        self.watched.clear();
        Ok(match done.answer {
            Answer::Waiting { position, lapse_ms, holders } => {
                self.waits = true;
                let before: &[Entry] =
                    if position > 1 { &state.queue[position - 2..position - 1] } else { &state.holders };
                self.watched
                    .extend(before.iter().filter(|entry| entry.process).map(|entry| entry.id).take(MOST_WATCHED));
                Answer::Waiting { position, lapse_ms, holders: done.clocks.all_shown(holders) }
            }
            Answer::Busy { holders } => Answer::Busy { holders: done.clocks.all_shown(holders) },
            answer => answer,
        })
    }

    fn renew(&mut self, key: &Key, renew: &Renew, by: Boot) -> Reply<Renewal> {
        Ok(self.change(key, by, None, |step| step.renew(renew), |_| None)?.answer)
    }

    fn drop_claim(&mut self, key: &Key, id: ClaimId, ttl: Duration, by: Boot) -> Reply<Dropped> {
        let done = self.change(key, by, None, |step| step.drop_claim(id, ms(ttl)), |_| Some(id))?;
        // One in 256 looks after what others left.
        if id.to_string().ends_with("00") {
            self.sweep();
        }
        Ok(match done.answer {
            Dropped::Held(entry) => Dropped::Held(Box::new(done.clocks.shown(*entry))),
            Dropped::Waited(entry) => Dropped::Waited(Box::new(done.clocks.shown(*entry))),
            Dropped::Unknown => Dropped::Unknown,
        })
    }

    fn finish(&mut self, key: &Key, id: ClaimId, left: Duration, ttl: Duration, by: Boot) -> Reply<Renewal> {
        Ok(self.change(key, by, None, |step| step.finish(id, ms(left), ms(ttl)), |_| Some(id))?.answer)
    }

    fn condemn(&mut self, key: &Key, id: ClaimId, ttl: Duration, by: Boot) -> Reply<Condemnation> {
        Ok(self.change(key, by, None, |step| step.condemn(id, ms(ttl)), |_| None)?.answer)
    }

    fn look(&mut self, key: &Key, by: Boot) -> Reply<Look> {
        let found = self.look_in(&name_of(key), Some(key), by)?;
        Ok(found.map_or_else(|| Look { now_ms: clock::wall_ms(), ..Look::default() }, |(_, look)| look))
    }

    fn search(&mut self, pattern: Option<&str>, step: Duration, each: &mut dyn FnMut(Find) -> bool) -> Reply<()> {
        let names = Folder::names(&self.address)?;
        let all = names.len() as u64;
        for (name, searched) in names.into_iter().zip(0..) {
            if !each(Find::Searched(searched, Some(all))) {
                break;
            }
            let Some((key, look)) = self.look_in(&name, None, Boot::now() + step)? else { continue };
            let is_wanted = pattern.is_none_or(|pattern| glob::matches(pattern.as_bytes(), key.as_bytes()));
            let is_idle = look.is_free() && look.queue.is_empty();
            if let (true, false, Ok(key)) = (is_wanted, is_idle, Key::parse(&key))
                && !each(Find::Key(Box::new(Listed { key, look })))
            {
                break;
            }
        }
        Ok(())
    }

    fn remove_foreign(&mut self, _key: &Key, _shown: &Foreign, _by: Boot) -> Reply<bool> {
        Ok(false)
    }

    fn wait(&mut self, key: &Key, id: ClaimId, until: Boot) -> Reply<bool> {
        let pulses: Vec<Pulse> = match self.address.open(false)? {
            Some(root) => {
                let pulses = Pulses::open(&root);
                self.watched.iter().map(|watched| pulses.of(*watched)).collect()
            }
            None => Vec::new(),
        };
        if pulses.iter().any(|pulse| matches!(pulse, Pulse::Dead)) {
            return Ok(true);
        }
        let own = self.own.as_ref().filter(|own| own.id == id);
        let watched: Vec<OwnedFd> =
            pulses.into_iter().filter_map(|pulse| if let Pulse::Beats(fd) = pulse { Some(fd) } else { None }).collect();
        let mut fds = vec![PollFd::new(self.cancel.as_fd(), PollFlags::POLLIN)];
        fds.extend(own.map(|own| PollFd::new(own.as_fd(), PollFlags::POLLIN)));
        // Nothing but an error: the last one that reads it is gone.
        fds.extend(watched.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::empty())));
        loop {
            let notice = Boot::now() + NOTICE;
            if poll_until(&mut fds, notice.min(until)) {
                if fds[0].any() == Some(true) {
                    return Err(Trouble::Interrupted);
                }
                own.inspect(|own| own.hush());
                return Ok(true);
            }
            // Without a FIFO that others find, and in a directory that is not the one that was left, nobody can tell us.
            let is_lost = own.is_none_or(Own::is_lost);
            let is_moved = self.seen.is_some() && Folder::identity_at(&self.address, &name_of(key)) != self.seen;
            if is_lost || is_moved {
                return Ok(true);
            }
            if until.left().is_zero() {
                return Ok(false);
            }
        }
    }

    /// Only the head looks after leases: the kernel tells the others of deaths.
    fn rest(&self, position: usize, lapse: Option<Duration>) -> Duration {
        let behind = u32::try_from(position.saturating_sub(1)).unwrap_or(u32::MAX);
        let refresh = (timing::REFRESH + REFRESH_PER_PLACE.saturating_mul(behind)).min(LONGEST_REFRESH);
        lapse.filter(|_| behind == 0).map_or(refresh, |lapse| lapse.min(refresh))
    }

    fn clock_ms(&self) -> u64 {
        clock::wall_ms()
    }

    fn round_trip(&self) -> Option<Duration> {
        None
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn disconnect(&mut self) {}
}

/// Whether one of them is ready before `until`.
fn poll_until(fds: &mut [PollFd<'_>], until: Boot) -> bool {
    loop {
        let left = until.left();
        // A millisecond more, so that a rest below one does not spin.
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(fds, timeout) {
            Ok(1..) => return true,
            _ if until.left().is_zero() => return false,
            _ => {}
        }
    }
}
