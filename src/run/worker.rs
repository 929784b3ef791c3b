//! The store's thread: it asks, waits, renews and releases, so that the thread that owns the deadline never waits for
//! a store. What it does is decided by [`crate::lease::Pace`] and the limits of `timing.rs`. The clock and the main
//! thread stand behind [`Around`], so that a simulator can put its own time in their place.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{hold, wait};
use crate::claim::{Ask, Entry};
use crate::clock::Boot;
use crate::lease::Loss;
use crate::store::{Cancel, Key, Look, Store, Trouble};

/// How long a release is retried: briefly, since the lease ends by itself.
const RELEASE: Duration = Duration::from_secs(3);
/// How long it may take although the lease has ended.
const LATE_RELEASE: Duration = Duration::from_millis(500);

/// What the thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Leave the queue, or release, and end; `by` bounds the tries. A lease that is held ends at `keep_until` instead,
    /// if that is ahead.
    Release { by: Boot, keep_until: Option<Boot> },
    /// End and leave the key as it is.
    Leave,
}

/// What the thread tells.
#[derive(Debug)]
pub enum News {
    /// The claim waits.
    Waiting { position: usize, holders: Vec<Entry>, now_ms: u64 },
    /// The key is ours.
    Granted { number: u64, sent: Boot, left: Duration },
    /// The ttl is short for a store whose answers take so long at least.
    ShortTtl(Duration),
    /// The wait ended without the key.
    NotObtained(wait::End),
    /// The lease was renewed, or taken again.
    Renewed { sent: Boot, left: Duration, restored: bool },
    /// The store's clock has jumped by so many milliseconds.
    ClockJumped(i64),
    /// A try to renew failed; the lease goes on to its deadline.
    NotRenewed(String),
    /// The lease is lost for certain; what holds the key now, where that could be seen.
    Lost(Loss, Option<Look>),
    /// The claim was dropped, or why that could not be done.
    Released(hold::Release),
}

/// What the thread works on.
pub struct Work {
    pub store: Box<dyn Store>,
    pub key: Key,
    pub ask: Ask,
    pub ttl: Duration,
    /// How long to rest before the first ask.
    pub delay: Duration,
    /// How long to wait for the key; none for ever. Zero with `ask.wait` false.
    pub wait: Option<Duration>,
    /// How long the store may be silent.
    pub store_timeout: Duration,
}

/// The clock and the main thread, as the store's thread sees them.
pub trait Around: Send {
    /// The present instant.
    fn now(&self) -> Boot;

    /// Sleeps until `until` or until an order comes.
    fn sleep(&self, until: Boot) -> Result<(), Trouble>;

    /// Tells the main thread.
    fn tell(&self, news: News);

    /// The next order, if there is one.
    fn order(&self) -> Option<Order>;

    /// Waits for the next order, as long as it takes.
    fn await_order(&self) -> Order;

    /// Makes the store usable again after an order has interrupted it.
    fn clear(&self);
}

/// The thread's own end.
pub struct Worker {
    pub(super) work: Work,
    pub(super) around: Box<dyn Around>,
}

/// What is around the thread of a real run.
struct Thread {
    cancel: Cancel,
    orders: Receiver<Order>,
    news: Sender<News>,
    bell: Bell,
}

/// The main thread's end.
pub(super) struct Handle {
    orders: Sender<Order>,
    news: Receiver<News>,
    bell: Arc<EventFd>,
    cancel: Cancel,
}

/// Rings at each word, and once more when the thread ends, however it ends.
struct Bell(Arc<EventFd>);

impl Bell {
    fn ring(&self) {
        // It fails only where the counter is full: then it rings anyway.
        let _ = self.0.write(1);
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}

/// Starts the thread.
pub(super) fn start(work: Work, cancel: Cancel) -> io::Result<Handle> {
    let bell = Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let (order_to, orders) = channel();
    let (news, news_from) = channel();
    let around = Thread { cancel: cancel.clone(), orders, news, bell: Bell(Arc::clone(&bell)) };
    let mut worker = Worker::new(work, Box::new(around));
    thread::Builder::new().name("renewal".into()).spawn(move || worker.run())?;
    Ok(Handle { orders: order_to, news: news_from, bell, cancel })
}

impl Handle {
    /// Gives an order; what the thread does at that moment ends at once.
    pub(super) fn order(&self, order: Order) {
        // Without a thread there is nobody to obey; `next` tells.
        let _ = self.orders.send(order);
        self.cancel.fire();
    }

    /// Has it leave the queue or release, and waits for that until `by`.
    pub(super) fn give_up(&self, by: Boot) {
        self.order(Order::Release { by, keep_until: None });
        while self.news.recv_timeout(by.left()).is_ok() {}
    }

    /// The next word: `Ok(None)` if there is none now, an error if the thread is gone and all was read.
    pub(super) fn next(&self) -> Result<Option<News>, ThreadGone> {
        match self.news.try_recv() {
            Ok(news) => Ok(Some(news)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ThreadGone),
        }
    }

    /// Stops the bell; to be called before reading.
    pub(super) fn hush(&self) {
        let _ = self.bell.read();
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The thread has ended.
#[derive(Debug)]
pub(super) struct ThreadGone;

impl Order {
    /// To leave the queue, or to release what was granted meanwhile.
    pub fn give_up(now: Boot) -> Self {
        Self::Release { by: now + RELEASE, keep_until: None }
    }

    /// To release: never past the deadline, but for one try: after a stop the thread may just have taken the claim
    /// again. The lease ends at `keep_until` instead, if that is ahead.
    pub fn release(deadline: Boot, now: Boot, keep_until: Option<Boot>) -> Self {
        Self::Release { by: deadline.max(now + LATE_RELEASE).min(now + RELEASE), keep_until }
    }
}

impl Worker {
    /// A worker on `work`.
    pub fn new(work: Work, around: Box<dyn Around>) -> Self {
        Self { work, around }
    }

    /// Obtains the key and holds it until an order comes.
    pub fn run(&mut self) {
        match wait::wait(self) {
            Ok(grant) => hold::hold(self, grant),
            Err(end) => self.tell(News::NotObtained(end)),
        }
    }

    pub(super) fn now(&self) -> Boot {
        self.around.now()
    }

    pub(super) fn tell(&self, news: News) {
        self.around.tell(news);
    }

    /// The order that interrupted a request, if one did.
    pub(super) fn interrupted(&self) -> Option<Order> {
        self.around.clear();
        self.around.order()
    }

    /// Waits for the next order, as long as it takes.
    pub(super) fn await_order(&self) -> Order {
        let order = self.around.await_order();
        self.around.clear();
        order
    }

    pub(super) fn sleep(&self, until: Boot) -> Result<(), Trouble> {
        self.around.sleep(until)
    }
}

impl Around for Thread {
    fn now(&self) -> Boot {
        Boot::now()
    }

    fn sleep(&self, until: Boot) -> Result<(), Trouble> {
        loop {
            let left = until.left();
            if left.is_zero() {
                return Ok(());
            }
            let mut fds = [PollFd::new(self.cancel.as_fd(), PollFlags::POLLIN)];
            // A millisecond more, so that a rest below one does not spin.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            if let Ok(1..) = poll(&mut fds, timeout) {
                return Err(Trouble::Interrupted);
            }
        }
    }

    fn tell(&self, news: News) {
        // A main thread that no longer listens is about to end.
        let _ = self.news.send(news);
        self.bell.ring();
    }

    /// A main thread that is gone means: end.
    fn order(&self) -> Option<Order> {
        match self.orders.try_recv() {
            Ok(order) => Some(order),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Order::Leave),
        }
    }

    fn await_order(&self) -> Order {
        self.orders.recv().unwrap_or(Order::Leave)
    }

    fn clear(&self) {
        self.cancel.clear();
    }
}
