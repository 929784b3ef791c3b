//! The store's thread of one owner: the real worker, on a stack of its own that gives way wherever the real one would
//! block. What it blocks on comes out, how that ended goes in.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use generator::{Generator, Gn};
use rlock::claim::{Answer, Ask, ClaimId, Condemnation, Dropped, Renew, Renewal};
use rlock::clock::Boot;
use rlock::run::worker::{Around, News, Order, Work, Worker};
use rlock::store::{Can, Find, Foreign, Key, Limits, Look, Reply, Store, Trouble};
use rlock::timing;

/// The stack, in words: far more than the worker has ever used.
const STACK: usize = 0x2000;
/// As in the Redis store: how late a server ends a BLPOP, and the shortest wait that is worth one.
const TICK: Duration = Duration::from_millis(110);
const LEAST_WAIT: Duration = Duration::from_millis(50);

/// What is asked of the server.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Ask(Ask),
    Renew(Renew),
    Drop {
        ttl_ms: u64,
    },
    /// An operator's mark.
    Condemn {
        ttl_ms: u64,
    },
    Look,
    /// BLPOP on the claim's wake list.
    Listen {
        time: Duration,
    },
}

/// What the server says.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Answer(Answer),
    Renewal(Renewal),
    Dropped(Dropped),
    Nothing,
    Called(bool),
}

/// What the thread waits for.
#[derive(Debug)]
pub(crate) enum Blocked {
    Request { call: Call, by: Boot, connected: bool },
    Sleep(Boot),
    Order,
    Over,
}

/// How that ended.
#[derive(Clone, Debug)]
pub(crate) enum Woken {
    Told(Told, Duration),
    Failed(Trouble),
    Time,
}

/// What lies between the thread and the rest of its process.
pub(crate) struct Desk {
    pub(crate) now: Boot,
    pub(crate) fired: bool,
    pub(crate) orders: VecDeque<Order>,
    pub(crate) news: Vec<News>,
}

#[derive(Clone)]
pub(crate) struct SharedDesk(Arc<Mutex<Desk>>);

impl SharedDesk {
    pub(crate) fn new() -> Self {
        let desk = Desk { now: Boot::at(Duration::ZERO), fired: false, orders: VecDeque::new(), news: Vec::new() };
        Self(Arc::new(Mutex::new(desk)))
    }

    pub(crate) fn get(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().expect("a desk")
    }
}

/// The thread, blocked at its beginning.
pub(crate) fn start(
    desk: &SharedDesk,
    key: &Key,
    ask: Ask,
    wait: Option<Duration>,
    store_timeout: Duration,
    blind: bool,
) -> Generator<'static, Woken, Blocked> {
    let desk = desk.clone();
    let store = Line { desk: desk.clone(), connected: false, round_trips: [None; 2], blind };
    let ttl = Duration::from_millis(ask.ttl_ms);
    let work = Work { store: Box::new(store), key: key.clone(), ask, ttl, delay: Duration::ZERO, wait, store_timeout };
    Gn::new_opt(STACK, move || {
        Worker::new(work, Box::new(desk)).run();
        Blocked::Over
    })
}

fn block(on: Blocked) -> Woken {
    #[expect(deprecated, reason = "the form that replaced it lends a handle that no store could keep")]
    let woken = generator::yield_::<Woken, Blocked>(on);
    woken.expect("a word for the thread")
}

impl Around for SharedDesk {
    fn now(&self) -> Boot {
        self.get().now
    }

    fn sleep(&self, until: Boot) -> Result<(), Trouble> {
        if until <= self.now() {
            return Ok(());
        }
        match block(Blocked::Sleep(until)) {
            Woken::Failed(trouble) => Err(trouble),
            _ => Ok(()),
        }
    }

    fn tell(&self, news: News) {
        self.get().news.push(news);
    }

    fn order(&self) -> Option<Order> {
        self.get().orders.pop_front()
    }

    fn await_order(&self) -> Order {
        loop {
            if let Some(order) = self.order() {
                return order;
            }
            block(Blocked::Order);
        }
    }

    fn clear(&self) {
        self.get().fired = false;
    }
}

/// A client's end of a connection to the server.
struct Line {
    desk: SharedDesk,
    connected: bool,
    round_trips: [Option<Duration>; 2],
    blind: bool,
}

impl Line {
    fn request(&mut self, call: Call, by: Boot) -> Reply<Told> {
        let is_wait = matches!(call, Call::Listen { .. });
        match block(Blocked::Request { call, by, connected: self.connected }) {
            Woken::Told(told, round_trip) => {
                self.connected = true;
                if !is_wait {
                    self.round_trips = [Some(round_trip), self.round_trips[0]];
                }
                Ok(told)
            }
            Woken::Failed(trouble) => {
                self.connected = false;
                Err(trouble)
            }
            Woken::Time => unreachable!("a request ends with an answer or fails"),
        }
    }
}

impl Store for Line {
    fn can(&self) -> Can {
        Can {
            least_ttl: timing::LEAST_TTL,
            greatest_ttl: timing::GREATEST_TTL,
            limits: Limits::Any,
            ordered: true,
            condemn: true,
            reach: "the simulation",
        }
    }

    fn name(&self) -> String {
        "sim".into()
    }

    fn ask(&mut self, _: &Key, ask: &Ask, by: Boot) -> Reply<Answer> {
        match self.request(Call::Ask(ask.clone()), by)? {
            Told::Answer(answer) => Ok(answer),
            other => unreachable!("an ask was told {other:?}"),
        }
    }

    fn renew(&mut self, _: &Key, renew: &Renew, by: Boot) -> Reply<Renewal> {
        match self.request(Call::Renew(renew.clone()), by)? {
            Told::Renewal(renewal) => Ok(renewal),
            other => unreachable!("a renewal was told {other:?}"),
        }
    }

    fn drop_claim(&mut self, _: &Key, _: ClaimId, ttl: Duration, by: Boot) -> Reply<Dropped> {
        let ttl_ms = u64::try_from(ttl.as_millis()).expect("a ttl");
        match self.request(Call::Drop { ttl_ms }, by)? {
            Told::Dropped(dropped) => Ok(dropped),
            other => unreachable!("a drop was told {other:?}"),
        }
    }

    fn look(&mut self, _: &Key, by: Boot) -> Reply<Look> {
        self.request(Call::Look, by).map(|_| Look::default())
    }

    fn wait(&mut self, _: &Key, _: ClaimId, until: Boot) -> Reply<bool> {
        let spare = TICK + self.round_trip().unwrap_or_default() * 3;
        let left = until.since(self.desk.now());
        if left > spare + LEAST_WAIT
            && let Told::Called(true) = self.request(Call::Listen { time: left.saturating_sub(spare) }, until)?
        {
            return Ok(true);
        }
        self.desk.sleep(until).map(|()| false)
    }

    fn rest(&self, position: usize, lapse: Option<Duration>) -> Duration {
        if self.blind { Duration::from_secs(24 * 3600) } else { timing::rest(position, lapse) }
    }

    fn clock_ms(&self) -> u64 {
        0
    }

    fn round_trip(&self) -> Option<Duration> {
        self.round_trips.into_iter().flatten().min()
    }

    fn is_connected(&self) -> bool {
        self.connected
    }

    fn disconnect(&mut self) {
        self.connected = false;
    }

    fn finish(&mut self, _: &Key, _: ClaimId, _: Duration, _: Duration, _: Boot) -> Reply<Renewal> {
        unreachable!("a run does not finish a claim")
    }

    fn condemn(&mut self, _: &Key, _: ClaimId, _: Duration, _: Boot) -> Reply<Condemnation> {
        unreachable!("a run condemns nobody")
    }

    fn search(&mut self, _: Option<&str>, _: Duration, _: &mut dyn FnMut(Find) -> bool) -> Reply<()> {
        unreachable!("a run lists nothing")
    }

    fn remove_foreign(&mut self, _: &Key, _: &Foreign, _: Boot) -> Reply<bool> {
        unreachable!("a run removes nothing of others")
    }
}
