//! A key's record as it lies in its directory: read beside the store, and changed as time, a clock that was set or a
//! new boot would change it.

use std::fs;
use std::path::{Path, PathBuf};

use rlock::claim::State;
use serde_json::Value;

/// The newer of the two files that are whole, and its text.
fn newest(folder: &Path) -> Option<(PathBuf, u64, String)> {
    let read = |name: &str| {
        let path = folder.join(name);
        let all = fs::read(&path).ok()?;
        let head = std::str::from_utf8(all.get(..50)?).ok()?;
        let words: Vec<_> = head.trim_end().split(' ').collect();
        let [_, turn, length, sum] = words[..] else { return None };
        let number = |text| u64::from_str_radix(text, 16).ok();
        let text = String::from_utf8(all.get(50..50 + usize::try_from(number(length)?).ok()?)?.to_vec()).ok()?;
        (number(sum)? == sum_of(number(turn)?, &text)).then_some((path, number(turn)?, text))
    };
    ["a", "b"].into_iter().filter_map(read).max_by_key(|(_, turn, _)| *turn)
}

fn sum_of(turn: u64, text: &str) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = std::iter::once(turn).chain(text.as_bytes().chunks(8).map(word));
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
}

/// What stands in the record; none where there is none.
pub(crate) fn read(folder: &Path) -> Option<Value> {
    newest(folder).map(|(.., text)| serde_json::from_str(&text).expect("JSON"))
}

/// The rule's part of it.
pub(crate) fn state(folder: &Path) -> State {
    read(folder).map(|record| serde_json::from_value(record["state"].clone()).expect("a state")).unwrap_or_default()
}

/// Changes what stands in the record.
pub(crate) fn change(folder: &Path, change: impl FnOnce(&mut Value)) {
    let (path, turn, text) = newest(folder).expect("a record");
    let mut record = serde_json::from_str(&text).expect("JSON");
    change(&mut record);
    let text = record.to_string();
    let all = format!("rlock1 {turn:016x} {:08x} {:016x}\n{text}", text.len(), sum_of(turn, &text));
    fs::write(path, all).expect("the record");
}
