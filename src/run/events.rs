//! What can happen in a run, and what can be done about it: what goes into [`super::next`] and what comes out.

use std::time::Duration;

use crate::child::Ending;
use crate::clock::Boot;
use crate::exit::Exit;
use crate::lease::{Instants, Loss};

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time has passed; perhaps much, after a stop or a suspend.
    Tick,
    /// A signal came to rlock.
    Signal {
        number: i32,
        /// The terminal gave it to the whole process group.
        from_terminal: bool,
        /// The command's first process sent it.
        from_command: bool,
    },
    /// The key is ours: the request was sent at `sent` and answered with `left`.
    Granted { sent: Boot, left: Duration },
    /// The wait could never end: what is around this rlock holds the key.
    Hopeless,
    /// The wait ended without the key.
    NotObtained(Exit),
    /// The lease was renewed.
    Renewed { sent: Boot, left: Duration },
    /// The store's definite word that the lease is lost.
    Lost(Loss),
    /// The key is released, or it was tried.
    Released,
    /// The store's thread is gone: nobody renews.
    ThreadGone,
    /// The command runs.
    Started,
    /// The command could not be started; rlock ends with this code.
    NotStarted(u8),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The first process ended.
    Ended(Ending),
    /// The keeper ended the tree since rlock did not get to it.
    KeeperActed,
    /// The keeper is gone.
    KeeperGone,
    /// So many processes of the tree are left.
    Left(usize),
    /// The tree was killed; `all` unless some could not be.
    Killed { all: bool },
}

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    /// Leave the queue; [`Input::NotObtained`] or [`Input::Released`] follows.
    GiveUp,
    /// Have the keeper start the command; [`Input::Started`] or [`Input::NotStarted`] follows.
    Spawn,
    /// Tell the keeper when to act.
    Tell(Option<Instants>),
    /// Send the signal to the first process.
    Forward(i32),
    /// Send the signal, then CONT, to the whole tree.
    SignalTree(i32),
    /// Kill the whole tree until nobody is left or `by` is past; [`Input::Killed`] follows.
    KillTree { by: Boot },
    /// Count what is left of the tree; [`Input::Left`] follows.
    Count,
    /// Say that the lease is lost.
    SayLost(Loss),
    /// Say that the command has run as long as it may.
    SayOverrun,
    /// Say when the lease ends and stop as the command did.
    StopSelf,
    /// Let the keeper go, then give the key back, or have the lease end at this instant if that is ahead;
    /// [`Input::Released`] follows.
    Release { keep_until: Option<Boot> },
    /// Let the keeper go and leave the key as it is.
    Leave,
    /// The run is over.
    Finish(Exit),
}
