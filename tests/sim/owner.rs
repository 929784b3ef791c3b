//! rlock: one owner of the simulation, with the real decisions of both its threads.

use std::collections::VecDeque;
use std::time::Duration;

use generator::Generator;
use rlock::claim::{Ask, Limit, Renewal};
use rlock::clock::Boot;
use rlock::exit::{self, Exit};
use rlock::lease::{Lease, Loss};
use rlock::run::events::{Do, Input};
use rlock::run::next::{Manner, Run};
use rlock::run::wait::End;
use rlock::run::worker::{News, Order};
use rlock::store::{Key, Trouble};
use rlock::timing;

use crate::bug::Bug;
use crate::clock::{MS, Time, nanos};
use crate::command::{Command, Keeper, TERM};
use crate::network::Asked;
use crate::plan::{LATE, Spec};
use crate::server;
use crate::thread::{self, Blocked, Call, SharedDesk, Told, Woken};
use crate::world::{Happening, World};

#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Owner {
    pub(crate) desk: SharedDesk,
    /// The thread's turns are counted: what was to end an earlier one does nothing.
    pub(crate) turn: u64,
    pub(crate) asked: Option<Asked>,
    /// When what was never answered reaches the server.
    pub(crate) unanswered: Vec<Time>,
    /// Until when it is cut off from the server, and the server from it.
    pub(crate) cut: (Time, Time),
    pub(crate) thread: Option<Generator<'static, Woken, Blocked>>,
    pub(crate) run: Run,
    tick_at: Option<Boot>,
    pub(crate) rlock_lives: bool,
    pub(crate) stopped_until: Time,
    pub(crate) machine_stopped_until: Time,
    pub(crate) keeper: Keeper,
    pub(crate) command: Command,
    pub(crate) number: u64,
    pub(crate) is_over: bool,
    thread_is_over: bool,
    pub(crate) was_stopped: bool,
}

impl Owner {
    pub(crate) fn new(spec: &Spec) -> Self {
        Self {
            desk: SharedDesk::new(),
            turn: 0,
            asked: None,
            unanswered: Vec::new(),
            cut: (0, 0),
            thread: None,
            run: Run::new(Manner {
                plan: spec.lease,
                signal: TERM,
                forward: true,
                max_runtime: None,
                hold_at_least: None,
            }),
            tick_at: None,
            rlock_lives: true,
            stopped_until: 0,
            machine_stopped_until: 0,
            keeper: Keeper::default(),
            command: Command::NotYet,
            number: 0,
            is_over: false,
            thread_is_over: false,
            was_stopped: false,
        }
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.command, Command::Runs | Command::Rest)
    }
}

impl World {
    pub(crate) fn boot(&self, owner: usize) -> Boot {
        self.plan.owners[owner].clock.boot(self.now)
    }

    pub(crate) fn when(&self, owner: usize, shown: Boot) -> Time {
        self.plan.owners[owner].clock.when_boot(shown)
    }

    /// Until when whoever would do this is stopped, if it is.
    pub(crate) fn stopped_until(&self, what: &Happening) -> Option<Time> {
        let (owner, is_rlock) = match what {
            Happening::Woken(owner, ..) | Happening::Main(owner) | Happening::Hears(owner, _) => (*owner, true),
            Happening::Keeper(owner)
            | Happening::Spawn(owner)
            | Happening::Dead(owner, _)
            | Happening::RestDead(owner) => (*owner, false),
            _ => return None,
        };
        let owner = &self.owners[owner];
        let until = if is_rlock { owner.stopped_until } else { 0 }.max(owner.machine_stopped_until);
        (until > self.now).then_some(until)
    }

    pub(crate) fn begin(&mut self, owner: usize) {
        let spec = &self.plan.owners[owner];
        if !self.owners[owner].rlock_lives {
            return;
        }
        let key = Key::parse("sim").expect("a key");
        let ask = Ask {
            id: server::id(owner),
            limit: Limit::of(spec.limit),
            ttl_ms: u64::try_from(spec.lease.ttl.as_millis()).expect("a ttl"),
            process: true,
            wait: spec.wait != Some(Duration::ZERO),
            record: String::new(),
        };
        let blind = self.bug == Some(Bug::NoWakeUp);
        let desk = self.owners[owner].desk.clone();
        self.owners[owner].thread = Some(thread::start(&desk, &key, ask, spec.wait, spec.store_timeout, blind));
        self.resume(owner, None);
    }

    /// The thread's turn ends, unless it has.
    pub(crate) fn wake(&mut self, owner: usize, turn: u64, woken: Woken) {
        if self.owners[owner].turn != turn || !self.owners[owner].rlock_lives {
            return;
        }
        if matches!(woken, Woken::Failed(_)) {
            self.unanswered(owner, turn);
        }
        self.owners[owner].asked = None;
        if matches!(woken, Woken::Told(Told::Renewal(Renewal::Gone | Renewal::Condemned), _)) {
            self.is_lost(owner);
        }
        self.resume(owner, Some(woken));
    }

    fn resume(&mut self, owner: usize, woken: Option<Woken>) {
        let now = self.boot(owner);
        let mut woken = woken;
        loop {
            let one = &mut self.owners[owner];
            one.turn += 1;
            one.desk.get().now = now;
            let Some(thread) = &mut one.thread else { return };
            let blocked = thread.raw_send(woken.take()).unwrap_or(Blocked::Over);
            let (turn, fired) = (one.turn, one.desk.get().fired);
            match blocked {
                Blocked::Request { call: Call::Drop { .. }, .. }
                    if self.bug == Some(Bug::NoDrop) && one.number == 0 =>
                {
                    woken = Some(Woken::Failed(Trouble::Unknown("not sent".into())));
                    continue;
                }
                Blocked::Request { call, by, connected } => {
                    let late = Woken::Failed(Trouble::Unknown("no answer in time".into()));
                    self.at(self.when(owner, by), Happening::Woken(owner, turn, late));
                    self.request(owner, call, connected);
                }
                Blocked::Sleep(_) | Blocked::Order if fired => {
                    woken = Some(Woken::Failed(Trouble::Interrupted));
                    continue;
                }
                Blocked::Sleep(until) => self.at(self.when(owner, until), Happening::Woken(owner, turn, Woken::Time)),
                Blocked::Order => {}
                Blocked::Over => one.thread_is_over = true,
            }
            break;
        }
        let soon = self.random.below(MS);
        self.after(soon, Happening::Main(owner));
    }

    fn order(&mut self, owner: usize, order: Order) {
        let one = &mut self.owners[owner];
        let mut desk = one.desk.get();
        desk.orders.push_back(order);
        desk.fired = true;
        drop(desk);
        let turn = one.turn;
        self.after(0, Happening::Woken(owner, turn, Woken::Failed(Trouble::Interrupted)));
    }

    /// The main thread: the deadline first, then what the other thread has said.
    pub(crate) fn main(&mut self, owner: usize) {
        if !self.owners[owner].rlock_lives || self.owners[owner].is_over {
            return;
        }
        self.feed(owner, Input::Tick);
        let news = std::mem::take(&mut self.owners[owner].desk.get().news);
        for one in news {
            if let Some(input) = self.takes(owner, one) {
                self.feed(owner, input);
            }
        }
        if self.owners[owner].thread_is_over {
            self.feed(owner, Input::ThreadGone);
        }
    }

    pub(crate) fn hears(&mut self, owner: usize, input: Input) {
        if self.owners[owner].rlock_lives && !self.owners[owner].is_over {
            self.feed(owner, input);
        }
    }

    fn takes(&mut self, owner: usize, news: News) -> Option<Input> {
        // What the bugs about deadlines would hand on instead.
        let at = |sent: Boot, world: &Self| {
            if world.bug == Some(Bug::DeadlineFromReply) { world.boot(owner) } else { sent }
        };
        Some(match news {
            News::Granted { number, sent, left } => {
                self.owners[owner].number = number;
                Input::Granted { sent: at(sent, self), left }
            }
            News::Renewed { sent, left, .. } => Input::Renewed { sent: at(sent, self), left },
            News::NotRenewed(_) if self.bug == Some(Bug::DeadlineFromUnanswered) => {
                Input::Renewed { sent: self.boot(owner), left: self.plan.owners[owner].lease.ttl }
            }
            News::NotObtained(end) => {
                if matches!(end, End::Removed) {
                    self.checker.told_removed(self.now, owner);
                }
                Input::NotObtained(Exit::Code(exit::BUSY))
            }
            News::Lost(loss, _) => {
                if loss == Loss::Gone {
                    self.checker.counts.gone += 1;
                } else {
                    self.checker.counts.condemned += 1;
                }
                Input::Lost(loss)
            }
            News::Released(_) => Input::Released,
            News::Waiting { .. } | News::ShortTtl(_) | News::ClockJumped(_) | News::NotRenewed(_) => return None,
        })
    }

    fn feed(&mut self, owner: usize, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = self.boot(owner);
            for todo in self.owners[owner].run.next(input, now) {
                inputs.extend(self.carry_out(owner, todo, now));
            }
        }
        if let Some(deadline) = self.owners[owner].run.lease().map(Lease::deadline) {
            self.checker.deadline(self.now, owner, self.when(owner, deadline), &self.server);
        }
        let wake_at = self.owners[owner].run.wake_at();
        if wake_at != self.owners[owner].tick_at {
            self.owners[owner].tick_at = wake_at;
            if let Some(at) = wake_at {
                let late = self.random.below(LATE);
                self.at(self.when(owner, at) + late, Happening::Main(owner));
            }
        }
    }

    fn carry_out(&mut self, owner: usize, todo: Do, now: Boot) -> Option<Input> {
        let soon = self.random.below(LATE);
        match todo {
            Do::GiveUp => self.order(owner, Order::give_up(now)),
            Do::Spawn => self.after(soon, Happening::Spawn(owner)),
            Do::Tell(instants) => {
                self.owners[owner].keeper.instants = instants;
                self.arm(owner);
            }
            Do::Forward(number) | Do::SignalTree(number) => self.signal(owner, number),
            Do::KillTree { .. } => {
                let dies_in = self.plan.owners[owner].dies_in;
                self.kill(owner);
                self.after(dies_in, Happening::Hears(owner, Input::Killed { all: true }));
            }
            Do::Count => {
                let sees = self.owners[owner].runs() && self.bug != Some(Bug::SignalToOnePid);
                return Some(Input::Left(usize::from(sees)));
            }
            Do::SayLost(loss) => {
                self.checker.counts.late += u64::from(loss == Loss::Late);
                self.is_lost(owner);
            }
            Do::StopSelf | Do::SayOverrun => {}
            Do::Release { keep_until } => {
                self.owners[owner].keeper.lives = false;
                let deadline = self.owners[owner].run.lease().map_or(now, Lease::deadline);
                self.order(owner, Order::release(deadline, now, keep_until));
            }
            Do::Leave => {
                self.owners[owner].keeper.lives = false;
                self.order(owner, Order::Leave);
            }
            Do::Finish(_) => self.finish(owner),
        }
        None
    }

    /// After the first signal there is no way back, and none from the store's definite word. After that word rlock
    /// first looks who has the key.
    fn is_lost(&mut self, owner: usize) {
        let lease = self.plan.owners[owner].lease;
        let time = nanos(lease.grace + timing::slack(lease.ttl));
        let look = nanos(timing::FIRST_PAUSE * 4);
        self.after(time + time / 100 + look + 3 * LATE, Happening::MustBeDead(owner));
    }

    pub(crate) fn must_be_dead(&mut self, owner: usize) {
        let one = &self.owners[owner];
        if one.runs() && !one.was_stopped {
            self.checker.outlives(self.now, owner);
        }
    }

    fn finish(&mut self, owner: usize) {
        self.owners[owner].is_over = true;
        self.checker.is_over(self.now, owner);
        let spec = &self.plan.owners[owner];
        let (limit, ttl_ms) = (Limit::of(spec.limit), u64::try_from(spec.lease.ttl.as_millis()).expect("a ttl"));
        let (id, record, number) = (server::id(owner), String::new(), Some(self.owners[owner].number));
        match self.bug {
            Some(Bug::RenewAfterRelease) if number != Some(0) => {
                let renew = rlock::claim::Renew { id, limit, ttl_ms, process: true, number, record };
                self.sends_after_all(owner, Call::Renew(renew));
            }
            Some(Bug::IdUsedAgain) => {
                self.sends_after_all(owner, Call::Ask(Ask { id, limit, ttl_ms, process: true, wait: true, record }));
            }
            _ => {}
        }
    }

    /// Ends the threads that are left, so that their stacks are unwound by returning.
    pub(crate) fn bury(&mut self) {
        for one in &mut self.owners {
            let Some(thread) = &mut one.thread else { continue };
            while !thread.is_done() {
                let mut desk = one.desk.get();
                desk.now = Boot::at(Duration::from_nanos(u64::MAX));
                desk.fired = true;
                desk.orders.push_back(Order::Leave);
                drop(desk);
                thread.raw_send(Some(Woken::Failed(Trouble::Interrupted)));
            }
        }
    }
}
