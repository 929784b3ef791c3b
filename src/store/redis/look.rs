//! Looking: plain reads, several keys in one exchange. What holds a key and is not rlock's is read only in small.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value, cmd};

use super::foreign;
use super::script::{self, LONGEST_VALUE, Stored, side_key, text};
use super::wire::Wire;
use crate::claim::{ClaimId, Entry};
use crate::store::{Foreign, Key, Look};

/// How many keys are looked at in one exchange.
const BATCH: usize = 16;

/// What is found of each key, in order; an error answer (no right to read this key) stands for that key alone.
pub(super) fn look(wire: &mut Wire, keys: &[Key]) -> RedisResult<Vec<RedisResult<Look>>> {
    let mut found = Vec::new();
    for batch in keys.chunks(BATCH) {
        let mut looks = first(wire, batch)?;
        second(wire, batch, &mut looks)?;
        found.append(&mut looks);
    }
    Ok(found)
}

/// What is found of one key.
pub(super) fn look_at(wire: &mut Wire, key: &Key) -> RedisResult<Look> {
    look(wire, std::slice::from_ref(key))?.pop().unwrap_or_else(|| Err(nonsense()))
}

/// The reads of one key, which happen at one instant.
fn reads(key: &Key) -> Vec<Cmd> {
    let side = |name| side_key(key, name);
    let all = [
        cmd("MULTI"),
        cmd("TIME"),
        cmd("TYPE").arg(key.as_str()).clone(),
        cmd("PTTL").arg(key.as_str()).clone(),
        cmd("STRLEN").arg(key.as_str()).clone(),
        // A long value is never fetched.
        cmd("GETRANGE").arg(key.as_str()).arg(0).arg(LONGEST_VALUE - 1).clone(),
        cmd("GET").arg(side("token")).clone(),
        cmd("HVALS").arg(side("holders")).clone(),
        cmd("ZRANGE").arg(side("queue")).arg(0).arg(-1).clone(),
        cmd("HVALS").arg(side("waiters")).clone(),
        cmd("EXEC"),
    ];
    all.into()
}

fn first(wire: &mut Wire, keys: &[Key]) -> RedisResult<Vec<RedisResult<Look>>> {
    let commands: Vec<Cmd> = keys.iter().flat_map(reads).collect();
    let answers = send(wire, &commands)?;
    let each = commands.len() / keys.len().max(1);
    Ok(answers.chunks(each).map(read_first).collect())
}

/// Sends the commands together. An error answer is a value.
pub(super) fn send(wire: &mut Wire, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
    wire.exchange(&packed, commands.len())
}

fn read_first(answers: &[Value]) -> RedisResult<Look> {
    // An error among the queued commands says more than the EXEC that follows from it.
    for answer in answers {
        if let Value::ServerError(err) = answer {
            return Err(err.clone().into());
        }
    }
    let Some(Value::Array(values)) = answers.last() else { return Err(nonsense()) };
    let [time, kind, pttl, length, value, token, holders, queue, waiters] = values.as_slice() else {
        return Err(nonsense());
    };
    let (Some((now_ms, kind)), &Value::Int(pttl)) = (now(time).zip(text(kind)), pttl) else { return Err(nonsense()) };
    let left = u64::try_from(pttl).ok().map(Duration::from_millis);
    let mut look =
        Look { now_ms, number: text(token).and_then(|text| text.parse().ok()).unwrap_or(0), ..Look::default() };
    let foreign =
        |what: &str| Foreign { kind: kind.to_string(), what: what.into(), value: Vec::new(), left, seen: Vec::new() };
    let mut waiting: HashMap<_, _> = entries(waiters).flatten().map(|entry| (entry.id, entry)).collect();
    let places = items(queue).iter().filter_map(|id| text(id).and_then(|id| ClaimId::parse(&id)));
    look.queue = places.filter_map(|id| waiting.remove(&id)).filter(|entry| entry.until_ms > now_ms).collect();
    match (&*kind, value, length) {
        ("none", ..) => {}
        ("string", Value::BulkString(value), &Value::Int(length)) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let stored = if length > LONGEST_VALUE { Stored::Foreign } else { Stored::of(value) };
            match stored {
                Stored::Holder(entry) => look.holders.push(*entry),
                Stored::Aside => match entries(holders).collect::<Option<Vec<_>>>() {
                    Some(all) if !all.is_empty() => look.holders = all,
                    Some(_) => look.foreign = Some(foreign("the mark of a lock of rlock's whose holders were lost")),
                    None => look.foreign = Some(foreign("a lock of rlock's with a holder that cannot be read")),
                },
                Stored::Newer => look.foreign = Some(foreign::string(value, length, "the lock of a newer rlock", left)),
                Stored::Foreign => look.foreign = Some(foreign::string(value, length, "", left)),
            }
        }
        _ => look.foreign = Some(foreign("")),
    }
    look.holders.retain(|entry| entry.until_ms > now_ms);
    look.holders.sort_by_key(|entry| (entry.since_ms, entry.id));
    Ok(look)
}

/// What a first look says must be asked for: which holders are condemned, and what a foreign value of another type is.
fn second(wire: &mut Wire, keys: &[Key], looks: &mut [RedisResult<Look>]) -> RedisResult<()> {
    let mut commands = Vec::new();
    for (key, look) in keys.iter().zip(looks.iter()) {
        let Ok(look) = look else { continue };
        let gone = side_key(key, "gone");
        let marks = look.holders.iter().map(|held| cmd("ZSCORE").arg(&gone).arg(format!("c:{}", held.id)).clone());
        commands.extend(marks);
    }
    let mut answers = send(wire, &commands)?.into_iter();
    for (key, look) in keys.iter().zip(looks.iter_mut()) {
        let Ok(look) = look else { continue };
        let marked: Vec<_> = look.holders.iter().map(|held| held.id).zip(answers.by_ref()).collect();
        // A mark that has run out by its score is swept with the next operation.
        let now_ms = look.now_ms;
        let stands = |score: &Value| text(score).and_then(|end| end.parse().ok()).is_some_and(|end: u64| end > now_ms);
        look.condemned = marked.into_iter().filter(|(_, score)| stands(score)).map(|(id, _)| id).collect();
        match look.foreign.as_mut() {
            Some(held) if held.what.is_empty() => foreign::describe(wire, key, held)?,
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

fn entries(value: &Value) -> impl Iterator<Item = Option<Entry>> {
    items(value).iter().map(script::entry)
}

/// The milliseconds of an answer to TIME.
fn now(value: &Value) -> Option<u64> {
    let [seconds, micros] = items(value) else { return None };
    let [seconds, micros] = [seconds, micros].map(|part| text(part).and_then(|text| text.parse::<u64>().ok()));
    Some(seconds?.checked_mul(1000)? + micros? / 1000)
}

fn nonsense() -> RedisError {
    (redis::ErrorKind::UnexpectedReturnType, "not what a look answers").into()
}
