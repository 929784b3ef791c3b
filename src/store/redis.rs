//! The Redis store: one server, by itself or behind a proxy that passes single keys on.
//!
//! One round trip for an operation; a second where the server does not know the script yet. A request that was not
//! answered in time leaves its connection, and the next one begins on a new one.

mod dial;
mod errors;
mod foreign;
mod list;
mod look;
pub mod script;
mod url;
mod wire;

use std::path::Path;
use std::time::Duration;

use redis::{ConnectionLike, RedisResult, Value, cmd};

use self::dial::Dialer;
use self::errors::Wants;
use self::script::{Call, Told, wake_key};
pub(super) use self::url::Address;
use self::wire::Wire;
use super::{Can, Cancel, Find, Foreign, Key, Limits, Look, Reply, Store, Trouble};
use crate::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Renew, Renewal};
use crate::clock::{self, Boot, ms};
use crate::timing;

/// How late a server notices that a BLPOP's time is over: its clock ticks ten times a second.
const TICK: Duration = Duration::from_millis(110);
/// The shortest wait for a wake-up; less is only slept.
const LEAST_WAIT: Duration = Duration::from_millis(50);
/// The most connections that are kept for the sake of a request that was never answered: those of a silence as long as a
/// store's default time.
const MOST_UNANSWERED: usize = 64;

/// A store on one server.
pub(super) struct Redis {
    dialer: Dialer,
    cancel: Cancel,
    /// The connection that has answered the last request.
    wire: Option<Wire>,
    /// Connections with a change that was never answered. The server may still carry it out; a drop is sent after it.
    unanswered: Vec<Wire>,
    /// How many replicas must have a grant or a renewal.
    replicas: u32,
    round_trips: RoundTrips,
    /// The server's clock at its last answer, in milliseconds, and when that came.
    clock: Option<(u64, Boot)>,
}

/// The last round trips, the newest first.
#[derive(Clone, Copy, Default)]
struct RoundTrips([Option<Duration>; 2]);

impl RoundTrips {
    fn add(&mut self, one: Duration) {
        self.0 = [Some(one), self.0[0]];
    }

    /// The shorter one: a single slow answer must not make every try that follows a long one.
    fn shorter(self) -> Option<Duration> {
        self.0.into_iter().flatten().min()
    }
}

impl Redis {
    /// A store that connects at its first request.
    pub(super) fn new(address: Address, password_file: Option<&Path>, cancel: Cancel) -> Self {
        let dialer = Dialer::new(address, password_file, cancel.clone());
        Self {
            dialer,
            cancel,
            wire: None,
            unanswered: Vec::new(),
            replicas: 0,
            round_trips: RoundTrips::default(),
            clock: None,
        }
    }

    /// Sends what `send` sends, over the connection or a new one, and files the connection by what came of it.
    fn request<T>(
        &mut self,
        (wants, key): (Wants, Option<&Key>),
        by: Boot,
        send: impl FnOnce(&mut Wire) -> RedisResult<T>,
    ) -> Reply<T> {
        // The server may have closed it since, in a restart or because it was idle.
        let mut wire = match self.wire.take().filter(|wire| !wire.is_stale()) {
            Some(wire) => wire,
            None => self.dialer.dial(by)?,
        };
        let result = send(wire.until(by));
        if wire.is_open() && !matches!(wants, Wants::Wait | Wants::Replicate) {
            wire.round_trip().into_iter().for_each(|one| self.round_trips.add(one));
        }
        let err = match result {
            Ok(answer) => {
                self.wire = Some(wire);
                self.dialer.note_answer();
                return Ok(answer);
            }
            Err(err) => err,
        };
        let fault = errors::fault(&err, &self.dialer.at(key, wants));
        if wire.is_open() {
            self.dialer.note_answer();
        }
        if wire.is_open() && !fault.closes {
            self.wire = Some(wire);
            return Err(fault.trouble);
        }
        if fault.trouble != Trouble::Interrupted {
            self.dialer.turn();
        }
        if wants == Wants::Change && wire.is_unanswered() {
            self.unanswered.insert(0, wire);
            // What was closed since can carry no drop, and what was answered since needs none.
            self.unanswered.retain(|wire| !wire.is_stale());
            self.unanswered.truncate(MOST_UNANSWERED);
        }
        Err(fault.trouble)
    }

    /// Runs the script.
    fn call<T>(&mut self, key: &Key, call: &Call, by: Boot, read: fn(&Value) -> Result<Told<T>, String>) -> Reply<T> {
        let value = self.request((Wants::Change, Some(key)), by, |wire| {
            let known = call.by_name().query(wire);
            match known {
                Err(err) if err.code() == Some("NOSCRIPT") => call.by_text().query(wire),
                known => known,
            }
        });
        let told = read(&value?).map_err(|what| Trouble::Config(format!("{}: {what}", self.name())))?;
        self.clock = Some((told.now_ms, Boot::now()));
        Ok(told.answer)
    }

    /// Waits until enough replicas have what this connection has changed.
    fn replicate(&mut self, key: &Key, by: Boot) -> Reply<()> {
        if self.replicas == 0 {
            return Ok(());
        }
        let (needed, spare) = (self.replicas, self.spare());
        let have: u32 = self.request((Wants::Replicate, Some(key)), by, |wire| {
            // Zero would be for ever.
            let limit = by.left().saturating_sub(spare).as_millis().max(1);
            cmd("WAIT").arg(needed).arg(u64::try_from(limit).unwrap_or(u64::MAX)).query(wire)
        })?;
        if have >= needed {
            return Ok(());
        }
        Err(Trouble::TooFew(format!(
            "{}: {have} of the {needed} replicas of --wait-replicas have the lock in time; see to its replicas",
            self.name()
        )))
    }

    /// How long before its end a request must end that the server itself ends, for its answer to be here: a connection
    /// that owes one is of no more use.
    fn spare(&self) -> Duration {
        TICK + self.round_trips.shorter().unwrap_or_default() * 3
    }
}

impl Store for Redis {
    fn can(&self) -> Can {
        Can {
            least_ttl: timing::LEAST_TTL,
            greatest_ttl: timing::GREATEST_TTL,
            limits: Limits::Any,
            ordered: true,
            condemn: true,
            reach: "every host that uses the server",
        }
    }

    fn need_replicas(&mut self, count: u32) -> Reply<()> {
        self.replicas = count;
        Ok(())
    }

    fn name(&self) -> String {
        self.dialer.address().to_string()
    }

    fn ask(&mut self, key: &Key, ask: &Ask, by: Boot) -> Reply<Answer> {
        let answer = self.call(key, &Call::ask(key, ask), by, script::read_answer)?;
        if matches!(answer, Answer::Granted { .. }) {
            self.replicate(key, by)?;
        }
        Ok(answer)
    }

    fn renew(&mut self, key: &Key, renew: &Renew, by: Boot) -> Reply<Renewal> {
        let renewal = self.call(key, &Call::renew(key, renew), by, script::read_renewal)?;
        if matches!(renewal, Renewal::Renewed { .. }) {
            self.replicate(key, by)?;
        }
        Ok(renewal)
    }

    fn drop_claim(&mut self, key: &Key, id: ClaimId, ttl: Duration, by: Boot) -> Reply<Dropped> {
        let call = Call::drop_claim(key, id, ms(ttl));
        // What is under way on other connections comes before it, or after it and finds the tombstone.
        let unanswered = std::mem::take(&mut self.unanswered);
        let dropped = self.call(key, &call, by, script::read_dropped);
        if dropped.is_err() {
            for wire in unanswered {
                // With the script's text: nobody will be there to hear that the server does not know its name.
                wire.post_and_close(&call.by_text().get_packed_command());
            }
        }
        dropped
    }

    fn finish(&mut self, key: &Key, id: ClaimId, left: Duration, ttl: Duration, by: Boot) -> Reply<Renewal> {
        self.call(key, &Call::finish(key, id, ms(left), ms(ttl)), by, script::read_renewal)
    }

    fn condemn(&mut self, key: &Key, id: ClaimId, ttl: Duration, by: Boot) -> Reply<Condemnation> {
        self.call(key, &Call::condemn(key, id, ms(ttl)), by, script::read_condemnation)
    }

    fn look(&mut self, key: &Key, by: Boot) -> Reply<Look> {
        self.request((Wants::Look, Some(key)), by, |wire| look::look_at(wire, key))
    }

    fn search(&mut self, pattern: Option<&str>, step: Duration, each: &mut dyn FnMut(Find) -> bool) -> Reply<()> {
        list::search(self, pattern, step, each)
    }

    fn remove_foreign(&mut self, key: &Key, shown: &Foreign, by: Boot) -> Reply<bool> {
        let Some(removal) = foreign::removal(key, &shown.seen) else {
            let what = format!("{}: rlock does not remove a {}; remove it with redis-cli", self.name(), shown.kind);
            return Err(Trouble::Config(what));
        };
        self.request((Wants::Remove, Some(key)), by, |wire| removal.query(wire))
    }

    fn wait(&mut self, key: &Key, id: ClaimId, until: Boot) -> Reply<bool> {
        let list = wake_key(key, id);
        let spare = self.spare();
        if until.left() > spare + LEAST_WAIT {
            let woken = self.request((Wants::Wait, Some(key)), until, |wire| {
                let block = until.left().saturating_sub(spare).max(Duration::from_millis(1));
                cmd("BLPOP").arg(&list).arg(format!("{:.3}", block.as_secs_f64())).query(wire)
            });
            match woken {
                Ok(Value::Array(_)) => return Ok(true),
                Err(trouble) => return Err(trouble),
                Ok(_) => {}
            }
        }
        wire::sleep(&self.cancel, until).map_err(|_| Trouble::Interrupted)?;
        Ok(false)
    }

    fn clock_ms(&self) -> u64 {
        self.clock.map_or_else(clock::wall_ms, |(now_ms, heard)| now_ms.saturating_add(ms(Boot::now().since(heard))))
    }

    fn round_trip(&self) -> Option<Duration> {
        self.round_trips.shorter()
    }

    fn is_connected(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| !wire.is_stale())
    }

    fn disconnect(&mut self) {
        self.wire = None;
    }

    fn server_clock(&self) -> Option<(u64, Boot)> {
        self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_answer_is_not_the_line() {
        let ms = Duration::from_millis;
        let mut round_trips = RoundTrips::default();
        assert_eq!(round_trips.shorter(), None);
        for (one, shorter) in [(900, 900), (2, 2), (3, 2), (900, 3), (4, 4), (900, 4), (800, 800), (850, 800)] {
            round_trips.add(ms(one));
            assert_eq!(round_trips.shorter(), Some(ms(shorter)));
        }
    }
}
