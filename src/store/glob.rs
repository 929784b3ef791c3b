//! The patterns of `list`: globs, read alike for every store.

/// Whether `text` matches `glob` as Redis reads globs: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a plain character.
/// A `?` is a whole character, not a byte of it.
pub(super) fn matches(glob: &[u8], text: &[u8]) -> bool {
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
    use proptest::prelude::*;

    use super::*;

    /// The same by trying everything.
    fn slowly(glob: &[u8], text: &[u8]) -> bool {
        match glob {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|taken| slowly(rest, &text[taken..])),
            _ => !text.is_empty() && one(glob, text).is_some_and(|(glob, text)| slowly(glob, text)),
        }
    }

    proptest! {
        #[test]
        fn no_glob_is_too_strange(glob in r"[ab*?\[\]\\^-]{0,9}", text in "[ab^-]{0,7}", noise: Vec<u8>) {
            prop_assert_eq!(matches(glob.as_bytes(), text.as_bytes()), slowly(glob.as_bytes(), text.as_bytes()));
            let escaped: Vec<u8> = noise.iter().flat_map(|byte| [b'\\', *byte]).collect();
            prop_assert!(matches(&escaped, &noise) && matches(b"*", &noise));
            // Any bytes on either side, however it ends.
            let _ = (matches(&noise, text.as_bytes()), matches(&noise, &noise));
        }

        #[test]
        fn a_glob_of_stars_takes_no_time(stars in 1..250_usize) {
            let glob = [&b"*a".repeat(stars)[..], b"b"].concat();
            prop_assert!(!matches(&glob, &b"a".repeat(512)));
        }
    }

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
