//! Something like rlock: it blocks signals, forks the keeper, and then does what it is told, one line an order.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlock::child::Program;
use rlock::clock::Boot;
use rlock::error::Error;
use rlock::keeper::{Event, Keeper, Spec};
use rlock::lease::Instants;
use rlock::signal::{self, Signals};
use rlock::sys;

/// The first word of its command line; then the socket, the descriptor to take or `-`, and the command.
pub(crate) const ROLE: &str = "--as-parent";

pub(crate) fn main(words: &[OsString]) -> ExitCode {
    let taken: Option<OwnedFd> = words[1].to_str().unwrap().parse().ok().map(|fd| sys::take_fd(fd).unwrap());
    let signals = Signals::block_all().unwrap();
    let mut socket = UnixStream::connect(&words[0]).unwrap();
    let keeper = match start(&signals, words[2..].to_vec()) {
        Ok(keeper) => keeper,
        Err(error) => {
            writeln!(socket, "error {} {error}", error.code()).unwrap();
            return ExitCode::from(error.code());
        }
    };
    if let Some(fd) = taken {
        std::fs::File::from(fd).write_all(b"taken\n").unwrap();
    }
    writeln!(socket, "keeper {}", keeper.pid()).unwrap();
    Parent { orders: BufReader::new(socket.try_clone().unwrap()), socket, signals, keeper: Some(keeper) }.serve()
}

fn start(signals: &Signals, argv: Vec<OsString>) -> Result<Keeper, Error> {
    let program = Program::find(argv)?;
    let keeper = Keeper::fork(Spec { program, at_entry: signals.at_entry(), signal: libc::SIGTERM, keep: Vec::new() })?;
    keeper.wait_ready()?;
    Ok(keeper)
}

struct Parent {
    orders: BufReader<UnixStream>,
    socket: UnixStream,
    signals: Signals,
    keeper: Option<Keeper>,
}

impl Parent {
    fn serve(mut self) -> ExitCode {
        let mut is_gone = false;
        loop {
            let mut fds = vec![
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            if let Some(keeper) = self.keeper.as_ref().filter(|_| !is_gone) {
                fds.push(PollFd::new(keeper.as_fd(), PollFlags::POLLIN));
            }
            poll(&mut fds, PollTimeout::NONE).unwrap();
            let has_order = fds[0].any() == Some(true);
            while let Some(received) = self.signals.read() {
                if received.signal == libc::SIGCHLD {
                    self.keeper.as_mut().unwrap().reap();
                } else {
                    let sender = received.sender.map_or("the kernel".into(), |pid| pid.to_string());
                    let whom = if received.is_from_terminal() { "all" } else { "us" };
                    writeln!(self.socket, "received {} from {sender} for {whom}", received.signal).unwrap();
                }
            }
            while let Some(event) = self.keeper.as_mut().and_then(Keeper::try_recv) {
                is_gone |= event == Event::Gone;
                writeln!(self.socket, "{}", serde_json::to_string(&event).unwrap()).unwrap();
            }
            if has_order {
                let mut line = String::new();
                self.orders.read_line(&mut line).unwrap();
                if let Some(code) = self.obey(line.trim_end()) {
                    return code;
                }
            }
        }
    }

    fn obey(&mut self, line: &str) -> Option<ExitCode> {
        let (order, rest) = line.split_once(' ').unwrap_or((line, ""));
        let keeper = self.keeper.as_mut().unwrap();
        match order {
            "spawn" => keeper.spawn(serde_json::from_str(rest).unwrap()).unwrap(),
            "instants" => {
                let mut at = rest.split(' ').map(|ms| ms.parse().ok().map(|ms| Boot::at(Duration::from_millis(ms))));
                let (signal_at, kill_at) = (at.next().unwrap(), at.next().unwrap());
                keeper.set_instants(kill_at.map(|kill_at| Instants { signal_at, kill_at }));
            }
            "kill" => {
                let left = keeper.tree().kill(Boot::now() + Duration::from_millis(rest.parse().unwrap()));
                writeln!(self.socket, "left {}", serde_json::to_string(&left).unwrap()).unwrap();
            }
            "die" => {
                signal::die_of(rest.parse().unwrap());
                return Some(ExitCode::from(99));
            }
            "done" => {
                let keeper = self.keeper.take().unwrap().done();
                let by = Boot::now() + Duration::from_secs(5);
                while !rlock::keeper::bury(keeper) && Boot::now() < by {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Some(ExitCode::SUCCESS);
            }
            _ => panic!("unknown order: {line:?}"),
        }
        // So that the rig knows that it was done.
        writeln!(self.socket, "ok").unwrap();
        None
    }
}
