//! The process: everything is in the library.

use std::process::ExitCode;

use rlock::exit::Exit;

fn main() -> ExitCode {
    let exit = rlock::main(std::env::args_os());
    if let Exit::Signal(number) = exit {
        // It returns where the signal does not kill.
        rlock::signal::die_of(number);
    }
    ExitCode::from(exit.shown())
}
