//! The table of exit codes. The README and the man page are checked against it.

/// How rlock ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal, raised again on rlock itself; where that does not kill, with 128 + its number.
    Signal(i32),
}

impl Exit {
    /// The code that a shell shows: the code itself, or 128 + the signal.
    pub fn shown(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(number) => 128u8.saturating_add(u8::try_from(number).unwrap_or(127)),
        }
    }
}

/// Done.
pub const OK: u8 = 0;
/// `inspect`, `ttl`: one of the keys is free; `force-release`: left alone.
pub const NO: u8 = 1;
/// Usage, a wait that could never end, or a question that nobody is there to answer.
pub const USAGE: u8 = 64;
/// The store is unreachable or failing.
pub const UNAVAILABLE: u8 = 69;
/// rlock's own fault.
pub const SOFTWARE: u8 = 70;
/// The operating system refused something rlock needs.
pub const OS: u8 = 71;
/// The report cannot be opened.
pub const CANNOT_CREATE: u8 = 73;
/// Busy: the lock was not obtained.
pub const BUSY: u8 = 75;
/// Refused by the store: login or permission.
pub const REFUSED: u8 = 77;
/// Bad configuration, or a store that cannot do what was asked.
pub const CONFIG: u8 = 78;
/// The lease was lost; the command was stopped.
pub const LOST: u8 = 79;
/// The command ran as long as `--max-runtime` allows; as `timeout` has it.
pub const MAX_RUNTIME: u8 = 124;
/// The command cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// Every code of rlock's own with what it means, in order. A command's own code passes through as it is.
pub const TABLE: &[(u8, &str)] = &[
    (OK, "done; for `run`, the command ended with 0"),
    (NO, "`inspect`, `ttl`: one of the keys is free; `force-release`: left alone"),
    (USAGE, "usage, or a question that nobody is there to answer"),
    (UNAVAILABLE, "the store is unreachable or failing"),
    (SOFTWARE, "a fault of rlock's own"),
    (OS, "the operating system refused something that rlock needs"),
    (CANNOT_CREATE, "the report cannot be opened"),
    (BUSY, "busy: not obtained at once or within --wait (-E changes it); `force-release`: not passed within -w"),
    (REFUSED, "refused by the store: login or permission"),
    (CONFIG, "bad configuration, or a store that cannot do what was asked"),
    (LOST, "the lease was lost; the command was stopped"),
    (MAX_RUNTIME, "the command ran as long as --max-runtime allows, and was stopped"),
    (CANNOT_RUN, "the command cannot be run"),
    (NOT_FOUND, "the command was not found"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_says_each_code_once() {
        assert!(TABLE.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(TABLE.iter().all(|(_, text)| !text.is_empty() && !text.ends_with('.')));
    }

    #[test]
    fn a_signal_shows_as_a_shell_shows_it() {
        assert_eq!(Exit::Signal(15).shown(), 143);
        assert_eq!(Exit::Code(7).shown(), 7);
    }
}
