//! An rlock inside an rlock: `RLOCK_CLAIM` names the claims held around a command, outermost first.

use std::ffi::OsStr;
use std::fmt::Write as _;

use crate::claim::ClaimId;
use crate::store::Key;

/// The environment variable that names the claims.
pub const CLAIM: &str = "RLOCK_CLAIM";

/// The claims held around this process.
#[derive(Clone, Debug, Default)]
pub struct Nest {
    words: Vec<String>,
}

impl Nest {
    /// What the variable's value says. A word that is not a claim's is left out: it names nothing.
    pub fn read(value: Option<&OsStr>) -> Self {
        let text = value.and_then(OsStr::to_str).unwrap_or_default();
        Self { words: text.split(',').filter(|word| id(word).is_some()).map(str::to_owned).collect() }
    }

    /// Whether `claim` is one of them.
    pub fn has(&self, claim: ClaimId) -> bool {
        self.words.iter().any(|word| id(word) == Some(claim))
    }

    /// The variable's value for a command that runs under one claim more.
    pub fn with(&self, claim: ClaimId, key: &Key) -> String {
        let own = format!("{claim}@{}", encoded(key.as_str()));
        self.words.iter().map(String::as_str).chain([own.as_str()]).collect::<Vec<_>>().join(",")
    }
}

fn id(word: &str) -> Option<ClaimId> {
    word.split_once('@').and_then(|(id, _)| ClaimId::parse(id))
}

/// Percent-encoded outside `A-Za-z0-9._:/-`.
fn encoded(key: &str) -> String {
    let mut text = String::new();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_appended_and_found() {
        let (outer, inner) = (ClaimId::from_bits(1), ClaimId::from_bits(2));
        let none = Nest::read(None);
        let value = none.with(outer, &Key::parse("job:a,b %").unwrap());
        assert_eq!(value, format!("{outer}@job:a%2Cb%20%25"));
        let nest = Nest::read(Some(OsStr::new(&value)));
        assert!(nest.has(outer) && !nest.has(inner) && !none.has(outer));
        assert_eq!(nest.with(inner, &Key::parse("k").unwrap()), format!("{value},{inner}@k"));
    }

    #[test]
    fn words_that_are_no_claims_are_left_out() {
        let nest = Nest::read(Some(OsStr::new("x,,a@b,123@k")));
        assert_eq!(nest.with(ClaimId::from_bits(1), &Key::parse("k").unwrap()), format!("{}@k", ClaimId::from_bits(1)));
    }
}
