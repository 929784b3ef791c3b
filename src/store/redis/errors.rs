//! What a server's errors mean for us. They are told apart by their code; the server's words are shown as they are,
//! on one line.

use redis::{ErrorKind, RedisError};

use super::url::Address;
use super::wire::{Cut, io_of};
use crate::store::{Key, Trouble};

/// What `claim.lua` calls, and what the waiting and the looking need. A test compares the first with the script.
const SCRIPT: &str = "del get hdel hget hset hvals pexpire pexpireat pttl rpush set strlen time type xadd zadd zcard \
                      zrange zrank zrem zremrangebyscore zrevrange zscore";
const CALLS: &str = "eval evalsha blpop";
const REMOVAL: &str = "eval pexpire type strlen get hlen hget del";
const LOOK: &str = "multi exec time type pttl strlen getrange get zrange hvals zscore";

/// The most of a server's words that is shown, in characters.
const MOST_WORDS: usize = 200;

/// A request that failed: what to tell, and whether the connection is of no more use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) trouble: Trouble,
    pub(super) closes: bool,
}

/// Where it happened and what was wanted, for the text.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) address: &'a Address,
    pub(super) key: Option<&'a Key>,
    pub(super) wants: Wants,
    /// What the server was told at the last login.
    pub(super) password: Option<&'a str>,
    /// The store has answered before: it is a Redis, whatever comes in its name now.
    pub(super) answered: bool,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// To log in and to go to the database.
    Greet,
    /// To change a key's claims.
    Change,
    /// To hear of a change.
    Wait,
    /// To know that replicas have a change.
    Replicate,
    /// To look at a key.
    Look,
    /// To remove what is not rlock's.
    Remove,
    /// To find keys and look at them.
    List,
}

impl At<'_> {
    fn user(&self) -> &str {
        self.address.user.as_deref().unwrap_or("default")
    }

    /// The ACL rule that lets the request pass.
    fn rule(&self) -> String {
        let commands = match self.wants {
            // AUTH needs no right.
            Wants::Greet => return format!("ACL SETUSER {} +select", pattern(self.user())),
            Wants::Change | Wants::Wait => format!("{CALLS} {SCRIPT}"),
            Wants::Replicate => format!("{CALLS} wait {SCRIPT}"),
            Wants::Remove => REMOVAL.to_owned(),
            Wants::Look => LOOK.to_owned(),
            Wants::List => format!("scan {LOOK}"),
        };
        let user = pattern(self.user());
        let keys = self.key.map(|key| pattern(key.as_str()));
        let keys = keys.map_or("~*".to_owned(), |key| format!("~{key} ~{key}:rlock1:*"));
        format!("ACL SETUSER {user} {keys} +{}", commands.replace(' ', " +"))
    }
}

/// A glob that matches `text`. An ACL rule cannot hold a space, and a shell would eat a quote.
fn pattern(text: &str) -> String {
    let mut glob = String::new();
    for c in text.chars() {
        match c {
            ' ' | '"' | '\'' | '\\' | '`' | '$' => glob.push('?'),
            '*' | '?' | '[' | ']' => glob.extend(['\\', c]),
            _ => glob.push(c),
        }
    }
    glob
}

/// What `err` means.
pub(super) fn fault(err: &RedisError, at: &At<'_>) -> Fault {
    let address = at.address;
    let closed = |trouble| Fault { trouble, closes: true };
    match (Cut::of(err), err.kind()) {
        (Some(Cut::Cancelled), _) => closed(Trouble::Interrupted),
        (Some(Cut::Late), _) => closed(Trouble::Unknown(format!("{address} did not answer in time"))),
        (Some(Cut::TooLarge), _) => closed(Trouble::Unknown(format!("{address} sends an answer without end"))),
        (None, ErrorKind::Parse) if at.answered => {
            closed(Trouble::Unknown(format!("{address} broke the connection: its answer is not of the Redis protocol")))
        }
        (None, ErrorKind::Parse) => {
            let text =
                format!("{address} does not speak the Redis protocol; check host and port, and whether it wants TLS");
            closed(Trouble::Config(text))
        }
        (None, ErrorKind::Io) => {
            let why = match io_of(err) {
                Some(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => "it was closed".to_owned(),
                _ => words(&err.to_string()),
            };
            closed(Trouble::Unknown(format!("{address} broke the connection: {why}")))
        }
        (None, _) => match err.code() {
            Some(code) => server_error(code, err.detail().unwrap_or_default(), at),
            None => closed(Trouble::Config(format!(
                "{address} gave an answer that makes no sense: {}",
                words(&err.to_string())
            ))),
        },
    }
}

/// What an error answer comes down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Not just now; the connection is of no more use where it `closes`.
    Later {
        closes: bool,
    },
    NoRight,
    NoLogin,
    BadLogin,
    Denied,
    InTheWay,
    TooOld,
    NoDatabase,
}

fn meaning(code: &str, detail: &str) -> Meaning {
    match code {
        "NOPERM" => Meaning::NoRight,
        "NOAUTH" => Meaning::NoLogin,
        "WRONGPASS" => Meaning::BadLogin,
        "DENIED" => Meaning::Denied,
        // The server is the wrong one now; the next connection may find the right one.
        "READONLY" | "MOVED" | "ASK" | "UNBLOCKED" | "MASTERDOWN" => Meaning::Later { closes: true },
        "CROSSSLOT" | "WRONGTYPE" => Meaning::InTheWay,
        "ERR" => by_words(&detail.to_ascii_lowercase()),
        _ => Meaning::Later { closes: false },
    }
}

/// What an error without a code of its own comes down to. One that nobody knows may pass: it is a proxy's, most likely.
fn by_words(detail: &str) -> Meaning {
    let says = |parts: &[&str]| parts.iter().any(|part| detail.contains(part));
    if says(&["max number of clients"]) {
        Meaning::Later { closes: true }
    } else if says(&["unauthenticated"]) {
        // From one who has not logged in the server takes no request of more than ten words.
        Meaning::NoLogin
    } else if says(&["without any password", "invalid password", "no password is set"]) {
        Meaning::BadLogin
    } else if says(&["unknown command", "unknown redis command", "non deterministic", "number of arguments"]) {
        Meaning::TooOld
    } else if says(&["db index", "select is not allowed"]) {
        Meaning::NoDatabase
    } else {
        Meaning::Later { closes: false }
    }
}

fn server_error(code: &str, detail: &str, at: &At<'_>) -> Fault {
    let (address, user) = (at.address, at.user());
    let (code, detail) = innermost(code, detail);
    let meaning = meaning(code, detail);
    let said = said(code, detail, meaning, at);
    let refused = |closes, text| Fault { trouble: Trouble::Refused(text), closes };
    let config = |what: &str| Fault { trouble: Trouble::Config(format!("{address} {what}: {said}")), closes: false };
    match meaning {
        Meaning::Later { closes } => {
            Fault { trouble: Trouble::Later(format!("{address} cannot do it just now: {said}")), closes }
        }
        Meaning::NoRight => {
            refused(false, format!("{address} lacks a right for user {user}: {said}; grant it with: {}", at.rule()))
        }
        Meaning::NoLogin => {
            // Without a code of its own it is a complaint about the request's form, and no help.
            let said = if code == "ERR" { String::new() } else { format!(": {said}") };
            let todo = "give a --password-file, and a user as redis://user@host";
            refused(true, format!("{address} wants a login{said}; {todo}"))
        }
        Meaning::BadLogin => {
            let todo = match at.password {
                None => "no password was given: give it in a --password-file or in RLOCK_URL",
                Some(_) => "check the user and the password file",
            };
            refused(true, format!("{address} refuses the login of user {user}: {said}; {todo}"))
        }
        Meaning::Denied => refused(true, format!("{address} refuses connections: {said}")),
        Meaning::InTheWay => {
            let keys = at.key.map_or(String::new(), |key| format!(" ({key}:rlock1:*)"));
            config(&format!("has what is not rlock's where the key's side keys{keys} must be; remove it"))
        }
        Meaning::TooOld => config("is too old or has a command renamed; Redis 6.0 or Valkey 7.2 is needed"),
        Meaning::NoDatabase => config("has no such database"),
    }
}

/// The server's words as they may be shown. Servers and proxies repeat what they did not understand, and in a greeting
/// that is the password: what is not known to be harmless is left out there, and the password itself everywhere.
fn said(code: &str, detail: &str, meaning: Meaning, at: &At<'_>) -> String {
    if let Some(password) = at.password {
        let is_known = meaning != Meaning::Later { closes: false };
        // As a whole: what is cut off below could leave a part of it.
        let text = format!("{code} {}", without_arguments(detail));
        if text.contains(password) || (at.wants == Wants::Greet && !is_known) {
            return "its words are not shown, since they may repeat the password".to_owned();
        }
    }
    if code == "ERR" { words(detail) } else { format!("{} {}", words(code), words(detail)) }
}

/// What a server says of an unknown command, without the command's arguments.
fn without_arguments(text: &str) -> &str {
    text.split(", with args beginning with").next().unwrap_or(text)
}

/// The error behind that of a script or of a transaction: servers before 7 wrap what stopped a script, and all wrap an
/// ACL's refusal.
fn innermost<'a>(code: &'a str, detail: &'a str) -> (&'a str, &'a str) {
    let wrapped = detail
        .split_once(": -")
        .or_else(|| detail.split_once("because of: "))
        .map(|(_, inner)| inner.split_once(' ').unwrap_or((inner, "")));
    match wrapped {
        Some((inner, rest)) if matches!(code, "ERR" | "EXECABORT") && inner.bytes().all(|b| b.is_ascii_uppercase()) => {
            (inner, rest)
        }
        _ if is_script_refusal(detail) => ("NOPERM", detail),
        _ => (code, detail),
    }
}

fn is_script_refusal(detail: &str) -> bool {
    detail.contains("The user executing the script can't") || detail.contains("ACL failure in script")
}

/// The server's words on one line, without the arguments it repeats and the trace that a script's error ends in.
fn words(text: &str) -> String {
    let text = without_arguments(text);
    let plain = text.split(" script: ").next().unwrap_or(text).trim().trim_end_matches('.');
    let mut line: String = plain.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_WORDS).collect();
    if plain.chars().nth(MOST_WORDS).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use crate::store::redis::{foreign, script};

    fn told(answer: &str) -> Fault {
        told_of(Wants::Change, Some("hunter2"), false, &format!("-{answer}"))
    }

    fn told_of(wants: Wants, password: Option<&str>, answered: bool, line: &str) -> Fault {
        let address = Address::parse_tcp("app:hunter2@db1").unwrap();
        let key = Key::parse("job:b").unwrap();
        let err = redis::parse_redis_value(format!("{line}\r\n").as_bytes())
            .and_then(redis::Value::extract_error)
            .unwrap_err();
        let fault = fault(&err, &At { address: &address, key: Some(&key), wants, password, answered });
        let text = fault.trouble.to_string();
        assert!(!text.contains("hunter2") && !text.contains('\n') && !text.contains("@user_script"), "{text}");
        fault
    }

    #[test]
    fn what_passes_is_tried_again() {
        for (answer, closes) in [
            ("READONLY You can't write against a read only replica. script: 78, on @user_script:1.", true),
            ("MOVED 12182 127.0.0.1:21406", true),
            ("UNBLOCKED force unblock from blocking operation", true),
            ("MASTERDOWN Link with MASTER is down", true),
            ("LOADING Redis is loading the dataset in memory", false),
            ("CLUSTERDOWN Hash slot not served", false),
            ("TRYAGAIN Multiple keys request during rehashing of slot", false),
            ("BUSY Redis is busy running a script.", false),
            ("NOREPLICAS Not enough good replicas to write.", false),
            ("OOM command not allowed when used memory > 'maxmemory'. script: 78, on @user_script:30.", false),
            ("MISCONF Redis is configured to save RDB snapshots", false),
            ("NOSCRIPT No matching script.", false),
            ("ERR max number of clients reached", true),
            ("ERR Error running script (call to f_78): @user_script:1: -OOM command not allowed", false),
            ("ERR Error running script (call to f_78): @user_script:1: -READONLY You can't", true),
            ("ERR upstream failure", false),
            ("NEWCODE what may this be", false),
        ] {
            let fault = told(answer);
            assert!(matches!(fault.trouble, Trouble::Later(_)), "{answer}: {fault:?}");
            assert_eq!(fault.closes, closes, "{answer}");
        }
        let Trouble::Later(text) = told("OOM command not allowed. script: 7, on @user_script:3.").trouble else {
            panic!()
        };
        assert_eq!(text, "redis://db1:6379 cannot do it just now: OOM command not allowed");
    }

    #[test]
    fn a_missing_right_comes_with_the_rule() {
        for answer in [
            "NOPERM this user has no permissions to run the 'eval' command",
            "NOPERM No permissions to access a key",
            "ERR The user executing the script can't run this command or subcommand script: 7, on @user_script:1.",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "ERR ACL failure in script: User app has no permissions to run the 'xadd' command script: 7, on @user_script:1.",
            "NOPERM ACL failure in script: User app has no permissions",
            "EXECABORT Transaction discarded because of: NOPERM this user has no permissions to run the 'exec' command",
            "ERR Error running script (call to f_78): @user_script:1: -NOPERM this user has no permissions",
        ] {
            let Trouble::Refused(text) = told(answer).trouble else { panic!("{answer}") };
            assert!(text.contains("ACL SETUSER app ~job:b ~job:b:rlock1:* +eval +evalsha +blpop +del "), "{text}");
        }
    }

    #[test]
    fn a_refused_login_and_a_wrong_server() {
        for answer in [
            "NOAUTH Authentication required.",
            "ERR Protocol error: unauthenticated multibulk length",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "DENIED Redis is running in protected mode",
            "ERR AUTH <password> called without any password configured for the default user.",
            "ERR invalid password",
        ] {
            assert!(matches!(told(answer).trouble, Trouble::Refused(_)), "{answer}");
        }
        for answer in [
            "ERR unknown command 'EVALSHA', with args beginning with:",
            "ERR DB index is out of range",
            "ERR SELECT is not allowed in cluster mode",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR wrong number of arguments for 'auth' command",
        ] {
            assert!(matches!(told(answer).trouble, Trouble::Config(_)), "{answer}");
        }
    }

    #[test]
    fn a_greetings_error_repeats_no_password() {
        for answer in [
            "ERR unknown command 'AUTH', with args beginning with: 'hunter2' ",
            "ERR unknown command `AUTH`, with args beginning with: `app`, `hunter2`, ",
            "ERR unknown command 'AUTH hunter2'",
            "ERR syntax error near 'hunter2'",
            "ERR cannot parse 'hunt' 'er2'",
            "PROXYERR AUTH hunt-er2",
            "WRONGPASS hunter2 is wrong",
            "hunter2 what",
        ] {
            let text = told_of(Wants::Greet, Some("hunter2"), false, &format!("-{answer}")).trouble.to_string();
            assert!(!text.contains("er2") && !text.contains("args"), "{text}");
        }
        let known = "-WRONGPASS invalid username-password pair or user is disabled.";
        let text = told_of(Wants::Greet, Some("hunter2"), false, known).trouble.to_string();
        assert!(text.contains("WRONGPASS invalid") && text.ends_with("check the user and the password file"), "{text}");
        let text = told_of(Wants::Greet, None, false, known).trouble.to_string();
        assert!(text.contains("no password was given") && !text.contains("check"), "{text}");
        // In any phase, and also where the end of what is shown would cut it in two.
        for before in ["a proxy's words, with ".to_owned(), "x".repeat(MOST_WORDS - 3)] {
            let later = told_of(Wants::Look, Some("hunter2"), true, &format!("-ERR {before}hunter2 in them")).trouble;
            let hidden = "its words are not shown, since they may repeat the password";
            assert!(later.to_string().ends_with(hidden), "{later}");
        }
        let noise =
            told_of(Wants::Look, Some("hunter2"), true, "-ERR Protocol error: unauthenticated multibulk length")
                .trouble;
        assert!(noise.to_string().starts_with("redis://db1:6379 wants a login; give a --password-file"), "{noise}");
    }

    #[test]
    fn a_store_that_has_answered_is_a_redis() {
        let odd = "HTTP/1.1 502 Bad Gateway";
        assert!(matches!(
            told_of(Wants::Change, Some("hunter2"), false, odd),
            Fault { trouble: Trouble::Config(_), closes: true }
        ));
        assert!(matches!(
            told_of(Wants::Change, Some("hunter2"), true, odd),
            Fault { trouble: Trouble::Unknown(_), closes: true }
        ));
    }

    #[test]
    fn a_pattern_matches_its_key() {
        assert_eq!(pattern("a b*c[d]\"e\\f"), "a?b\\*c\\[d\\]?e?f");
    }

    #[test]
    fn words_are_one_short_line() {
        assert_eq!(words("a\r\nb\u{1b}[31m script: 7"), "a  b [31m");
        assert_eq!(words(&"x".repeat(500)).chars().count(), MOST_WORDS + 1);
    }

    #[test]
    fn the_rule_names_what_the_scripts_call() {
        for (source, names, beside) in [(script::SOURCE, SCRIPT, ""), (foreign::REMOVE, REMOVAL, "eval")] {
            let calls = source.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
            let called: BTreeSet<_> = calls.map(str::to_ascii_lowercase).collect();
            let named: BTreeSet<_> = names.split_whitespace().filter(|name| *name != beside).map(Into::into).collect();
            assert_eq!(called, named);
        }
    }
}
