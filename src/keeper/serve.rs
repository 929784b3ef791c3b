//! The keeper's own end: one loop on one thread, from the fork to its end.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigEvent, SigSet, SigevNotify, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::sys::wait::WaitPidFlag;
use nix::time::ClockId;
use nix::unistd::{Pid, close, dup2_stderr, dup2_stdin, dup2_stdout, getpid, pipe2, read, setsid, write};

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
pub(super) fn serve(spec: Spec, socket: OwnedFd, line: OwnedFd, slot: Slot) -> ! {
    let served = catch_unwind(AssertUnwindSafe(|| match Serve::new(spec, socket, line, slot) {
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
    life: Life,
}

enum Life {
    /// It is about to become the command: the pipe ends when it has, or brings why it could not.
    Starting(OwnedFd),
    Running,
    Ended,
}

struct Serve {
    spec: Spec,
    socket: OwnedFd,
    /// It is open as long as we live.
    line: OwnedFd,
    slot: Slot,
    signals: SignalFd,
    /// Wakes us even when we are stopped.
    timer: Timer,
    armed: Option<Boot>,
    /// The command is to be started with this.
    wanted: Option<Environment>,
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
    fn new(spec: Spec, socket: OwnedFd, line: OwnedFd, slot: Slot) -> Option<Self> {
        let prepared = prepare();
        let ready = prepared.as_ref().map(|_| ()).map_err(|errno| *errno as i32);
        // rlock goes on from here: nothing of what wakes us may still be missing.
        transmit(&socket, &ready).ok()?;
        let (signals, timer) = prepared.ok()?;
        Some(Self {
            spec,
            socket,
            line,
            slot,
            signals,
            timer,
            armed: None,
            wanted: None,
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
                Received::Message(Order::Spawn(environment)) => self.wanted = Some(environment),
                Received::Message(Order::Look) => {}
                Received::Message(Order::Done) => sys::exit_now(exit::OK.into()),
                Received::Nothing => break,
                Received::End => self.is_alone = true,
            }
        }
        // Only now: we may have been stopped, and the order be followed by another, by rlock's death or by the instants.
        let Some(environment) = self.wanted.take().filter(|_| !self.is_alone) else {
            return;
        };
        if self.slot.get().is_some_and(|instants| Boot::now() >= instants.signal_at.unwrap_or(instants.kill_at)) {
            self.say(Event::NotStarted { errno: libc::ETIME });
        } else if let Err(errno) = self.spawn(environment) {
            self.say(Event::NotStarted { errno: errno as i32 });
        }
    }

    /// Forks the command. We do not wait until it runs: it could be stopped before, or its file be slow to read, and
    /// the instants count all the same.
    fn spawn(&mut self, environment: Environment) -> Result<(), Errno> {
        // Before there is anything to stop: we could be stopped together with it at once.
        self.arm();
        let (told, tell) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let keeper = getpid();
        let Some(pid) = sys::fork().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EAGAIN)))?
        else {
            self.become_command(environment, &tell, keeper);
        };
        drop(tell);
        // The command stays in rlock's group, where the terminal's signals are; we must not be killed with it.
        // A session of our own, not only a group: a parent in the same session but another group would make
        // the kernel believe that somebody is there to continue a command that Ctrl-Z stopped.
        let _ = setsid();
        // With 20 others for each of two processors to run, 600 sleepers were up to 75 ms late, which is all the time
        // that a killed tree has; at this priority 0.1 ms. Whoever may not have it is as good as the machine is idle.
        let _ = sys::run_before_others();
        self.let_go(&told);
        self.first = Some(First { pid, life: Life::Starting(told) });
        self.tree = Tree::below(keeper).keeping([pid]);
        Ok(())
    }

    /// In the forked child.
    fn become_command(&self, environment: Environment, tell: &OwnedFd, keeper: Pid) -> ! {
        // rlock learns from the end of these that the keeper is dead; nothing here uses them any more.
        for fd in [&self.socket, &self.line] {
            let _ = close(fd.as_raw_fd());
        }
        let argv = self.spec.program.argv();
        let mut command = Command::new(self.spec.program.path());
        command.arg0(&argv[0]).args(&argv[1..]).envs(environment.set);
        for name in environment.unset {
            command.env_remove(name);
        }
        sys::before_exec(&mut command, self.spec.at_entry.mask, self.spec.at_entry.ignored, keeper);
        let errno = command.exec().raw_os_error().unwrap_or(libc::EINVAL);
        // It fails only where the keeper is dead.
        let _ = write(tell, &errno.to_ne_bytes());
        sys::exit_now(exit::CANNOT_RUN.into())
    }

    /// Closes what only the command needs: a pipe must end when the command ends, not when we do.
    fn let_go(&self, told: &OwnedFd) {
        let own = [self.socket.as_fd(), self.line.as_fd(), self.signals.as_fd(), told.as_fd()].map(|fd| fd.as_raw_fd());
        sys::close_all_but(&[&own, &self.spec.keep[..]].concat());
        let null = OpenOptions::new().read(true).write(true).open("/dev/null");
        // Any descriptor that nobody else waits for will do.
        let quiet = null.as_ref().map_or(self.signals.as_fd(), AsFd::as_fd);
        // They fail only for a descriptor that is not open.
        let _ = dup2_stdin(quiet);
        let _ = dup2_stdout(quiet);
        let _ = dup2_stderr(quiet);
    }

    /// The first process goes first: rlock waits for the news of it.
    fn look_after_children(&mut self) {
        self.hear_of_the_start();
        self.look_after_first();
        self.tree.reap();
    }

    fn look_after_first(&mut self) {
        let Some(First { pid, life: Life::Running }) = self.first else {
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
        self.first = Some(First { pid, life: Life::Ended });
        self.say(Event::Ended(ending));
    }

    fn hear_of_the_start(&mut self) {
        let Some(First { pid, life: Life::Starting(told) }) = &self.first else {
            return;
        };
        let mut errno = [0; size_of::<i32>()];
        let (pid, heard) = (*pid, read(told, &mut errno));
        match heard {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Ok(length) if length == errno.len() => {
                self.first = None;
                self.say(Event::NotStarted { errno: i32::from_ne_bytes(errno) });
            }
            // It runs the command, or was killed on its way there.
            _ => {
                self.first = Some(First { pid, life: Life::Running });
                self.say(Event::Started { pid: pid.as_raw() });
            }
        }
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
        let is_due_to_kill = self.kill == Kill::NotDue && instants.is_some_and(|instants| is_due(instants.kill_at));
        // Alone we look once more, whatever was killed before, and then end.
        if is_due_to_kill || (self.is_alone && !matches!(self.kill, Kill::Under(_))) {
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
        let at = TimeSpec::from_duration(next.map_or(Duration::ZERO, Boot::since_boot));
        let often = Expiration::IntervalDelayed(at, TimeSpec::from_duration(AGAIN));
        // The timer exists and the times are ones: it cannot fail.
        let _ = self.timer.set(often, TimerSetTimeFlags::TFD_TIMER_ABSTIME);
    }

    fn wait(&self) {
        let until_next = self.armed.filter(|_| self.first.is_some()).map(Boot::left);
        let timeout = if matches!(self.kill, Kill::Under(_)) { Some(PAUSE) } else { until_next };
        // Rounded up: too early would be a turn for nothing.
        let timeout = timeout.map(|time| i32::try_from(time.as_millis() + 1).unwrap_or(i32::MAX));
        let timeout = timeout.map_or(PollTimeout::NONE, |ms| PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX));
        let out = if self.unsent.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if let Some(First { life: Life::Starting(told), .. }) = &self.first {
            fds.push(PollFd::new(told.as_fd(), PollFlags::POLLIN));
        }
        if !self.is_alone {
            fds.push(PollFd::new(self.socket.as_fd(), PollFlags::POLLIN | out));
        }
        // A failure is a turn for nothing.
        let _ = poll(&mut fds, timeout);
        // What came is not looked at: every turn looks at everything.
        while let Ok(Some(_)) = self.signals.read_signal() {}
    }
}

/// All signals off, but for the two that wake us; orphans fall to us. rlock's death wakes us even when we are stopped,
/// and so does the timer: without it nothing would end the tree of a keeper that is stopped together with rlock.
fn prepare() -> Result<(SignalFd, Timer), Errno> {
    // A name for `ps`; without it the keeper is called like rlock.
    let _ = prctl::set_name(c"rlock-keeper");
    prctl::set_child_subreaper(true)?;
    prctl::set_pdeathsig(Signal::SIGCONT)?;
    // Blocked, they are kept for us to read even where they were ignored at entry.
    SigSet::all().thread_block()?;
    let wakers = sys::signal_set(sys::bit(libc::SIGCHLD) | sys::bit(libc::SIGCONT));
    let signals = SignalFd::with_flags(&wakers, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGCONT, si_value: 0 });
    Ok((signals, Timer::new(ClockId::CLOCK_BOOTTIME, event)?))
}

fn few(mut left: Vec<Left>) -> Vec<Left> {
    left.truncate(MOST_LEFT);
    left
}
