//! Finding the keys that somebody holds or waits for. rlock keeps a number for each of them, and its side key is what
//! is searched for, so no value of another program's is read in the search.

use std::collections::HashSet;
use std::time::Duration;

use redis::cmd;

use super::errors::{self, Wants};
use super::{Redis, look, script};
use crate::clock::Boot;
use crate::store::{Key, Listed, Reply, Trouble};

/// How many keys the server goes through in a step: about a millisecond of its time (2.9 ms for 1,000 among a million,
/// on two busy cores).
const STEP: usize = 250;
/// How many keys are looked at within one time limit.
const LOOKS: usize = 16;

pub(super) fn list(
    store: &mut Redis,
    pattern: Option<&str>,
    step: Duration,
    each: &mut dyn FnMut(Listed) -> bool,
) -> Reply<()> {
    let mut seen = HashSet::new();
    let mut cursor = "0".to_owned();
    let mut refused = None;
    let mut any = false;
    loop {
        let (next, names) = store.request((Wants::List, None), Boot::now() + step, |wire| {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg("*:rlock1:token*").arg("COUNT").arg(STEP);
            scan.query::<(String, Vec<Vec<u8>>)>(wire)
        })?;
        let names = names.iter().filter_map(|name| std::str::from_utf8(name).ok());
        let keys = names.filter_map(|name| script::key_of(name, "token"));
        let wanted = keys.filter(|key| pattern.is_none_or(|glob| matches(glob.as_bytes(), key.as_str().as_bytes())));
        // A search may come upon a key twice.
        let fresh: Vec<Key> = wanted.filter(|key| seen.insert(key.clone())).collect();
        for keys in fresh.chunks(LOOKS) {
            let looks =
                store.request((Wants::Look, keys.first()), Boot::now() + step, |wire| look::look(wire, keys))?;
            for (key, look) in keys.iter().zip(looks) {
                let look = match look {
                    Ok(look) => look,
                    Err(err) => {
                        let at = store.dialer.at(Some(key), Wants::Look);
                        match errors::fault(&err, &at).trouble {
                            // Others' keys may be none of this user's business.
                            Trouble::Refused(why) => refused = Some(Trouble::Refused(why)),
                            trouble => return Err(trouble),
                        }
                        continue;
                    }
                };
                any = true;
                let is_idle = look.is_free() && look.queue.is_empty();
                if !is_idle && !each(Listed { key: key.clone(), look }) {
                    return Ok(());
                }
            }
        }
        if next == "0" {
            return refused.filter(|_| !any).map_or(Ok(()), Err);
        }
        cursor = next;
    }
}

/// Whether `text` matches `glob` as Redis reads globs: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a plain character.
/// A `?` is a whole character, not a byte of it.
fn matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut glob, mut text) = (glob, text);
    // Where the last star stands and how much it has taken: only that one need ever be taken back.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        let step = match glob.split_first() {
            Some((b'*', rest)) => {
                star = Some((rest, text));
                glob = rest;
                continue;
            }
            Some(_) if !text.is_empty() => one(glob, text),
            None if text.is_empty() => return true,
            Some(_) | None => None,
        };
        (glob, text) = match (step, star) {
            (Some(rest), _) => rest,
            (None, Some((after, taken))) if !taken.is_empty() => {
                star = Some((after, &taken[1..]));
                (after, &taken[1..])
            }
            (None, _) => return false,
        };
    }
}

/// What is left of both when the glob's first part takes the text's first character.
fn one<'a, 'b>(glob: &'a [u8], text: &'b [u8]) -> Option<(&'a [u8], &'b [u8])> {
    let width = 1 + text[1..].iter().take_while(|byte| **byte & 0xc0 == 0x80).count();
    let (first, after) = text.split_at(width);
    match glob {
        [b'?', rest @ ..] => Some((rest, after)),
        [b'[', class @ ..] => {
            let (negated, class) = class.strip_prefix(b"^").map_or((false, class), |class| (true, class));
            let (hit, rest) = in_class(class, first);
            (hit != negated).then_some((rest, after))
        }
        [b'\\', plain, rest @ ..] | [plain, rest @ ..] => (*plain == text[0]).then_some((rest, &text[1..])),
        [] => None,
    }
}

/// Whether a character is in the class, and what follows the class. One that is not closed ends with the glob.
fn in_class<'a>(class: &'a [u8], character: &[u8]) -> (bool, &'a [u8]) {
    let mut rest = class;
    let mut hit = false;
    loop {
        rest = match rest {
            [] => return (hit, rest),
            [b']', after @ ..] => return (hit, after),
            [b'\\', plain, after @ ..] => {
                hit |= character == [*plain];
                after
            }
            [low, b'-', high, after @ ..] if *high != b']' => {
                let (low, high) = (low.min(high), low.max(high));
                hit |= matches!(character, [byte] if (low..=high).contains(&byte));
                after
            }
            _ => {
                let width = 1 + rest[1..].iter().take_while(|byte| **byte & 0xc0 == 0x80).count();
                hit |= rest[..width] == *character;
                &rest[width..]
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_redis() {
        for (glob, text, wanted) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("job:*", "job:backup", true),
            ("job:*", "job", false),
            ("*:b*p", "job:backup", true),
            ("*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaac", false),
            ("j?b", "job", true),
            ("j?b", "jüb", true),
            ("j??b", "jüb", false),
            ("j[a-p]b", "job", true),
            ("j[p-a]b", "job", true),
            ("j[^o]b", "job", false),
            ("j[^a]b", "job", true),
            ("j[ü]b", "jüb", true),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
            ("[]", "]", false),
            ("*[b]", "ab", true),
        ] {
            assert_eq!(matches(glob.as_bytes(), text.as_bytes()), wanted, "{glob} {text}");
        }
    }
}
