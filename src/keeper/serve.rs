//! The keeper's own end: one loop on one thread, from the fork to its end.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigEvent, SigSet, SigevNotify, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::sys::wait::WaitPidFlag;
use nix::time::ClockId;
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpid, setsid};

use super::{Environment, Event, Order, Received, Slot, Spec, receive, transmit};
use crate::child::{Ending, Left, Tree, Why};
use crate::clock::Boot;
use crate::exit;
use crate::sys::{self, Change};
use crate::timing;

/// How long one attempt to kill the tree goes on before messages are read again, and the pause until the next.
const ROUND: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(100);

/// How often the timer fires after its instant.
const AGAIN: Duration = Duration::from_millis(50);

/// How many of those that are still there are told.
const MOST_LEFT: usize = 16;

/// Runs the keeper, in the process that was forked for it. Everything of rlock's that it inherited is left as it is.
pub(super) fn serve(spec: Spec, socket: OwnedFd, slot: Slot) -> ! {
    let served = catch_unwind(AssertUnwindSafe(|| match Serve::new(spec, socket, slot) {
        Some(serve) => serve.run(),
        None => sys::exit_now(exit::OS.into()),
    }));
    if served.is_err() {
        // A fault of ours must not leave the command alone.
        Tree::below(getpid()).kill(Boot::now() + Duration::from_secs(1));
    }
    sys::exit_now(exit::SOFTWARE.into())
}

struct First {
    pid: Pid,
    has_ended: bool,
}

struct Serve {
    spec: Spec,
    socket: OwnedFd,
    slot: Slot,
    signals: SignalFd,
    /// Wakes us even when we are stopped; where there can be none, only poll's own timeout does.
    timer: Option<Timer>,
    armed: Option<Boot>,
    first: Option<First>,
    tree: Tree,
    /// rlock is dead.
    is_alone: bool,
    has_signalled: bool,
    kill: Kill,
    unsent: VecDeque<Event>,
}

#[derive(PartialEq, Eq)]
enum Kill {
    NotDue,
    Under(Option<Vec<Left>>),
    Done,
}

impl Serve {
    fn new(spec: Spec, socket: OwnedFd, slot: Slot) -> Option<Self> {
        let signals = prepare();
        let ready = signals.as_ref().map(|_| ()).map_err(|errno| *errno as i32);
        transmit(&socket, &ready).ok()?;
        let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGCONT, si_value: 0 });
        Some(Self {
            spec,
            socket,
            slot,
            signals: signals.ok()?,
            timer: Timer::new(ClockId::CLOCK_BOOTTIME, event).ok(),
            armed: None,
            first: None,
            tree: Tree::below(getpid()),
            is_alone: false,
            has_signalled: false,
            kill: Kill::NotDue,
            unsent: VecDeque::new(),
        })
    }

    fn run(mut self) -> ! {
        loop {
            // What rlock has said comes first: it may be done, or have moved the instants.
            self.listen();
            self.look_after_children();
            self.act();
            self.send_unsent();
            self.arm();
            self.wait();
        }
    }

    fn listen(&mut self) {
        while !self.is_alone {
            match receive(&self.socket) {
                Received::Message(Order::Spawn(environment)) => self.spawn(environment),
                Received::Message(Order::Look) => {}
                Received::Message(Order::Done) => sys::exit_now(exit::OK.into()),
                Received::Nothing => return,
                Received::End => self.is_alone = true,
            }
        }
    }

    fn spawn(&mut self, environment: Environment) {
        // Before there is anything to stop: we could be stopped together with it at once.
        self.arm();
        if self.next_instant().is_some_and(|at| at.left().is_zero()) {
            // We were stopped since rlock decided to start it.
            self.say(Event::NotStarted { errno: libc::ETIME });
            return;
        }
        let argv = self.spec.program.argv();
        let mut command = Command::new(self.spec.program.path());
        command.arg0(&argv[0]).args(&argv[1..]).envs(environment.set);
        for name in environment.unset {
            command.env_remove(name);
        }
        sys::before_exec(&mut command, self.spec.at_entry.mask, self.spec.at_entry.ignored, getpid());
        match command.spawn() {
            Ok(child) => {
                // The command stays in rlock's group, where the terminal's signals are; we must not be killed with it.
                // A session of our own, not only a group: a parent in the same session but another group would make
                // the kernel believe that somebody is there to continue a command that Ctrl-Z stopped.
                let _ = setsid();
                let pid = Pid::from_raw(child.id().cast_signed());
                self.first = Some(First { pid, has_ended: false });
                self.tree = Tree::below(getpid()).keeping([pid]);
                self.say(Event::Started { pid: pid.as_raw() });
                self.let_go();
            }
            Err(error) => self.say(Event::NotStarted { errno: error.raw_os_error().unwrap_or(libc::EINVAL) }),
        }
    }

    /// Closes what only the command needs: a pipe must end when the command ends, not when we do.
    fn let_go(&self) {
        let own = [self.socket.as_raw_fd(), self.signals.as_fd().as_raw_fd()];
        sys::close_all_but(&[&own, &self.spec.keep[..]].concat());
        let null = OpenOptions::new().read(true).write(true).open("/dev/null");
        // Any descriptor that nobody else waits for will do.
        let quiet = null.as_ref().map_or(self.signals.as_fd(), AsFd::as_fd);
        // They fail only for a descriptor that is not open.
        let _ = dup2_stdin(quiet);
        let _ = dup2_stdout(quiet);
        let _ = dup2_stderr(quiet);
    }

    fn look_after_children(&mut self) {
        self.tree.reap();
        let Some(First { pid, has_ended: false }) = self.first else {
            return;
        };
        while let Some((_, change)) = sys::wait_child(Some(pid), WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED) {
            self.say(match change {
                Change::Stopped(signal) => Event::Stopped { signal },
                _ => Event::Continued,
            });
        }
        // It is not reaped, so that rlock never signals a stranger that got its pid.
        let ended = sys::wait_child(Some(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        let ending = match ended {
            Some((_, Change::Exited(code))) => Ending::Code(code),
            Some((_, Change::Killed(signal))) => Ending::Signal(signal),
            _ => return,
        };
        self.first = Some(First { pid, has_ended: true });
        self.say(Event::Ended(ending));
    }

    fn act(&mut self) {
        let instants = self.slot.get();
        if self.first.is_none() {
            if self.is_alone {
                sys::exit_now(exit::OK.into());
            }
            return;
        }
        let now = Boot::now();
        let is_due = |at: Boot| now >= at + timing::KEEPER_LATER;
        if self.kill == Kill::NotDue && (self.is_alone || instants.is_some_and(|instants| is_due(instants.kill_at))) {
            self.kill = Kill::Under(None);
        }
        if let Kill::Under(told) = &mut self.kill {
            let told = told.take();
            self.kill_tree(told.as_ref());
        } else if !self.has_signalled && instants.and_then(|instants| instants.signal_at).is_some_and(is_due) {
            self.has_signalled = true;
            let left = few(self.tree.signal(self.spec.signal));
            self.say(Event::Signalled { left });
        }
    }

    fn kill_tree(&mut self, told: Option<&Vec<Left>>) {
        let left = self.tree.kill(Boot::now() + ROUND);
        let is_over = left.iter().all(|left| left.why == Why::NotPermitted);
        self.look_after_children();
        if self.is_alone && is_over {
            sys::exit_now(exit::OK.into());
        }
        let left = few(left);
        if told != Some(&left) {
            self.say(Event::Killed { left: left.clone() });
        }
        self.kill = if is_over { Kill::Done } else { Kill::Under(Some(left)) };
    }

    fn say(&mut self, event: Event) {
        let is_turn = |event: &Event| matches!(event, Event::Stopped { .. } | Event::Continued);
        // While rlock does not read, only the last of many stops and continues is kept.
        if is_turn(&event) && self.unsent.back().is_some_and(is_turn) {
            self.unsent.pop_back();
        }
        self.unsent.push_back(event);
        self.send_unsent();
    }

    fn send_unsent(&mut self) {
        while let Some(event) = self.unsent.front() {
            if transmit(&self.socket, event).is_err() {
                return;
            }
            self.unsent.pop_front();
        }
    }

    fn next_instant(&self) -> Option<Boot> {
        let instants = self.slot.get()?;
        let signal_at = instants.signal_at.filter(|_| !self.has_signalled);
        Some(signal_at.unwrap_or(instants.kill_at) + timing::KEEPER_LATER)
    }

    /// The timer goes on after its instant: whoever stops us then, before we have acted, only delays it.
    fn arm(&mut self) {
        let next = if self.kill == Kill::NotDue { self.next_instant() } else { None };
        if next == self.armed || matches!(self.kill, Kill::Under(_)) {
            return;
        }
        self.armed = next;
        if let Some(timer) = &mut self.timer {
            let at = TimeSpec::from_duration(next.map_or(Duration::ZERO, Boot::since_boot));
            // The timer exists and the times are ones: it cannot fail.
            let _ = timer.set(
                Expiration::IntervalDelayed(at, TimeSpec::from_duration(AGAIN)),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            );
        }
    }

    fn wait(&self) {
        let until_next = self.armed.filter(|_| self.first.is_some()).map(Boot::left);
        let timeout = if matches!(self.kill, Kill::Under(_)) { Some(PAUSE) } else { until_next };
        // Rounded up: too early would be a turn for nothing.
        let timeout = timeout.map(|time| i32::try_from(time.as_millis() + 1).unwrap_or(i32::MAX));
        let timeout = timeout.map_or(PollTimeout::NONE, |ms| PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
        let out = if self.unsent.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if !self.is_alone {
            fds.push(PollFd::new(self.socket.as_fd(), PollFlags::POLLIN | out));
        }
        // A failure is a turn for nothing.
        let _ = poll(&mut fds, timeout);
        // What came is not looked at: every turn looks at everything.
        while let Ok(Some(_)) = self.signals.read_signal() {}
    }
}

/// All signals off, but for the two that wake us; orphans fall to us.
fn prepare() -> Result<SignalFd, Errno> {
    // A name for `ps`; without it the keeper is called like rlock.
    let _ = prctl::set_name(c"rlock-keeper");
    prctl::set_child_subreaper(true)?;
    // Blocked, they are kept for us to read even where they were ignored at entry.
    SigSet::all().thread_block()?;
    let wakers = sys::signal_set(sys::bit(libc::SIGCHLD) | sys::bit(libc::SIGCONT));
    SignalFd::with_flags(&wakers, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

fn few(mut left: Vec<Left>) -> Vec<Left> {
    left.truncate(MOST_LEFT);
    left
}
