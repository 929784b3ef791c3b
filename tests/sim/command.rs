//! The keeper and the command of one owner, and what befalls its processes from outside.

use rlock::child::Ending;
use rlock::clock::Boot;
use rlock::lease::Instants;
use rlock::run::events::Input;
use rlock::timing;

use crate::bug::Bug;
use crate::clock::{MS, Time};
use crate::plan::LATE;
use crate::world::{Happening, World};

pub(crate) const TERM: i32 = 15;
const KILL: i32 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    NotYet,
    Runs,
    /// Its first process has ended, and others of it run.
    Rest,
    Dead,
}

/// The keeper, as far as it decides anything.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) lives: bool,
    pub(crate) instants: Option<Instants>,
    pub(crate) has_signalled: bool,
    pub(crate) has_killed: bool,
}

impl Default for Keeper {
    fn default() -> Self {
        Self { lives: true, instants: None, has_signalled: false, has_killed: false }
    }
}

impl World {
    pub(crate) fn arm(&mut self, owner: usize) {
        let keeper = &self.owners[owner].keeper;
        let Some(instants) = keeper.instants else { return };
        let signal_at = instants.signal_at.filter(|_| !keeper.has_signalled);
        let next = signal_at.unwrap_or(instants.kill_at) + timing::KEEPER_LATER;
        let late = self.random.below(LATE);
        self.at(self.when(owner, next) + late, Happening::Keeper(owner));
    }

    pub(crate) fn keeper(&mut self, owner: usize) {
        let now = self.boot(owner);
        let one = &mut self.owners[owner];
        if !one.keeper.lives || !one.runs() || self.bug == Some(Bug::NoKeeper) {
            return;
        }
        let Some(instants) = one.keeper.instants else { return };
        let is_due = |at: Boot| now >= at + timing::KEEPER_LATER;
        if is_due(instants.kill_at) && !one.keeper.has_killed {
            one.keeper.has_killed = true;
            self.kill(owner);
        } else if !one.keeper.has_signalled && instants.signal_at.is_some_and(is_due) {
            one.keeper.has_signalled = true;
            self.signal(owner, TERM);
            self.arm(owner);
        } else {
            return;
        }
        self.after(0, Happening::Hears(owner, Input::KeeperActed));
    }

    /// The keeper is told to start the command.
    pub(crate) fn spawn(&mut self, owner: usize) {
        let now = self.boot(owner);
        let one = &mut self.owners[owner];
        if !one.keeper.lives {
            return;
        }
        if one.keeper.instants.is_some_and(|instants| now >= instants.signal_at.unwrap_or(instants.kill_at)) {
            self.after(0, Happening::Hears(owner, Input::KeeperActed));
            return;
        }
        one.command = Command::Runs;
        let number = one.number;
        self.checker.starts(self.now, owner, number);
        let work = self.plan.owners[owner].work;
        let soon = self.random.below(LATE);
        self.after(work, Happening::Dead(owner, Ending::Code(0)));
        self.after(soon, Happening::Hears(owner, Input::Started));
        self.arm(owner);
        if !self.owners[owner].rlock_lives {
            self.kill(owner);
        }
    }

    pub(crate) fn signal(&mut self, owner: usize, number: i32) {
        if let Some(heeds) = self.plan.owners[owner].heeds {
            self.after(heeds, Happening::Dead(owner, Ending::Signal(number)));
        }
    }

    pub(crate) fn kill(&mut self, owner: usize) {
        let dies_in = self.plan.owners[owner].dies_in;
        self.after(dies_in, Happening::Dead(owner, Ending::Signal(KILL)));
    }

    pub(crate) fn dead(&mut self, owner: usize, ending: Ending) {
        let one = &mut self.owners[owner];
        let (killed, one_pid) = (ending == Ending::Signal(KILL), self.bug == Some(Bug::SignalToOnePid));
        if one.command == Command::Rest && killed && !one_pid {
            self.rest_dead(owner);
            return;
        }
        if one.command != Command::Runs {
            return;
        }
        one.command = Command::Rest;
        let tells = one.keeper.lives;
        if matches!(ending, Ending::Code(_)) || killed && !one_pid {
            self.rest_dead(owner);
        } else {
            self.after(self.plan.owners[owner].rest, Happening::RestDead(owner));
        }
        if tells {
            let soon = self.random.below(MS);
            self.after(soon, Happening::Hears(owner, Input::Ended(ending)));
        }
    }

    pub(crate) fn rest_dead(&mut self, owner: usize) {
        if self.owners[owner].command == Command::Rest {
            self.owners[owner].command = Command::Dead;
            self.checker.ends(self.now, owner, &self.server);
        }
    }

    pub(crate) fn stop(&mut self, owner: usize, time: Time, machine: bool) {
        let until = self.now + time;
        let one = &mut self.owners[owner];
        if !one.keeper.lives && !machine {
            // Of the two one is assumed to run.
            return;
        }
        let stopped = if machine { &mut one.machine_stopped_until } else { &mut one.stopped_until };
        *stopped = until.max(*stopped);
        one.was_stopped |= time > 0;
        if time > 0 {
            self.checker.disturbed(owner);
        }
        // On the way back it looks at the time before anything else.
        self.at(until, Happening::Main(owner));
    }

    pub(crate) fn kill_rlock(&mut self, owner: usize) {
        let one = &mut self.owners[owner];
        if one.is_over || !one.rlock_lives {
            return;
        }
        one.rlock_lives = false;
        let turn = one.turn;
        self.checker.died(self.now, owner);
        self.after(MS, Happening::Unlisten(owner, turn, false));
        // The keeper hears of it at once; without one the first process dies with its parent.
        let soon = self.random.below(LATE);
        let dies_in = self.plan.owners[owner].dies_in;
        self.after(soon + dies_in, Happening::Dead(owner, Ending::Signal(KILL)));
    }

    pub(crate) fn kill_keeper(&mut self, owner: usize) {
        let one = &mut self.owners[owner];
        // Of the two one is assumed to run.
        if !one.keeper.lives || one.is_over || one.stopped_until > self.now {
            return;
        }
        one.keeper.lives = false;
        self.checker.disturbed(owner);
        self.after(MS, Happening::Hears(owner, Input::KeeperGone));
    }

    pub(crate) fn term(&mut self, owner: usize) {
        self.checker.disturbed(owner);
        let input = Input::Signal { number: TERM, from_terminal: false, from_command: false };
        self.after(0, Happening::Hears(owner, input));
    }
}
