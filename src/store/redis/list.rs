//! Finding the keys that somebody holds or waits for. rlock keeps a number for each of them, and its side key is what
//! is searched for, so no value of another program's is read in the search.

use std::collections::HashSet;
use std::time::Duration;

use redis::cmd;

use super::errors::{self, Wants};
use super::{Redis, look, script};
use crate::clock::Boot;
use crate::store::{Find, Key, Listed, Reply, Trouble, glob};

/// How many keys the server goes through in a step: about a millisecond of its time (2.9 ms for 1,000 among a million,
/// on two busy cores).
const STEP: usize = 250;
/// A search this far may be a long one.
const FEW: u64 = 100 * STEP as u64;
/// How many keys are looked at within one time limit.
const LOOKS: usize = 16;

pub(super) fn search(
    store: &mut Redis,
    pattern: Option<&str>,
    step: Duration,
    each: &mut dyn FnMut(Find) -> bool,
) -> Reply<()> {
    let mut seen = HashSet::new();
    let mut cursor = "0".to_owned();
    let mut refused = None;
    let mut any = false;
    let mut all = None;
    for searched in (0..).step_by(STEP) {
        if searched == FEW {
            all = size(store, step)?;
        }
        if !each(Find::Searched(searched, all)) {
            return Ok(());
        }
        let (next, names) = store.request((Wants::List, None), Boot::now() + step, |wire| {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg("*:rlock1:token*").arg("COUNT").arg(STEP);
            scan.query::<(String, Vec<Vec<u8>>)>(wire)
        })?;
        let names = names.iter().filter_map(|name| std::str::from_utf8(name).ok());
        let keys = names.filter_map(|name| script::key_of(name, "token"));
        let wanted =
            keys.filter(|key| pattern.is_none_or(|pattern| glob::matches(pattern.as_bytes(), key.as_str().as_bytes())));
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
                if !is_idle && !each(Find::Key(Box::new(Listed { key: key.clone(), look }))) {
                    return Ok(());
                }
            }
        }
        if next == "0" {
            return refused.filter(|_| !any).map_or(Ok(()), Err);
        }
        cursor = next;
    }
    Ok(())
}

/// How many keys there are, which may be none of this user's business.
fn size(store: &mut Redis, step: Duration) -> Reply<Option<u64>> {
    match store.request((Wants::List, None), Boot::now() + step, |wire| cmd("DBSIZE").query(wire)) {
        Ok(size) => Ok(Some(size)),
        Err(Trouble::Refused(_)) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}
