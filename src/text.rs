//! Words and figures for people: escaping, cutting, quoting, durations, instants.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use unicode_width::UnicodeWidthChar as _;

/// The last millisecond that RFC 3339 can write, in the year 9999.
const LAST_INSTANT_MS: u64 = 253_402_300_799_999;

/// `text` with everything escaped that could move the cursor, hide or reorder what stands beside it. Escaping what is
/// escaped already changes nothing.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        push_escaped(&mut out, c);
    }
    out
}

/// `text` escaped, and cut to `most` characters of the original.
pub fn shown(text: &str, most: usize) -> String {
    let mut out = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == most {
            out.push('…');
            break;
        }
        push_escaped(&mut out, c);
    }
    out
}

/// Bytes as text: valid UTF-8 escaped as by [`shown`], every other byte as `\xff`; cut to about `most` characters.
pub fn shown_bytes(bytes: &[u8], most: usize) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    shown(&text, most)
}

fn push_escaped(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_ascii_control() => {
            let _ = write!(out, "\\x{:02x}", u32::from(c));
        }
        c if c.is_control() || is_deceptive(c) => {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
        c => out.push(c),
    }
}

/// Characters that are not seen themselves and change what is: bidi marks, line separators, zero widths, tags.
fn is_deceptive(c: char) -> bool {
    matches!(c,
        '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// JSON in which what [`escape`] escapes is escaped as JSON does it: a terminal shows it as harmless text, and a reader
/// gets what was meant.
pub fn safe_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut units = [0; 2];
    for c in json.chars() {
        // JSON has them inside strings only, those below space escaped already.
        if c.is_control() || is_deceptive(c) {
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// `text` cut at a character's border to at most `most` bytes.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or_default()]
}

/// How many columns of a terminal `text` takes, by the measure that terminals have: each character by itself.
pub fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// `text`, cut to what takes at most `most` columns of a terminal.
pub fn fitted(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.to_owned();
    }
    let mut left = most.saturating_sub(columns_of('…'));
    let fits = |c: &char| {
        let rest = left.checked_sub(columns_of(*c));
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    text.chars().take_while(fits).chain(['…'].into_iter().take(most)).collect()
}

fn columns_of(c: char) -> usize {
    c.width().unwrap_or_default()
}

/// `text` as one word of a shell's command line. What a terminal must not get is written as bash, zsh and ksh read it.
pub fn quoted(text: &str) -> String {
    if text.chars().any(|c| c.is_control() || is_deceptive(c)) {
        return dollar_quoted(text);
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:/@%+=,-".contains(&b);
    if !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn dollar_quoted(text: &str) -> String {
    let mut out = "$'".to_owned();
    for c in text.chars() {
        if c.is_control() || is_deceptive(c) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(out, "\\x{byte:02x}");
            }
        } else {
            out.extend(['\\'].into_iter().filter(|_| matches!(c, '\'' | '\\')));
            out.push(c);
        }
    }
    out + "'"
}

/// A duration in two units at most, never more than it is: `300ms`, `3.3s`, `21s`, `2m10s`, `12m`, `1h2m`, `3d4h`.
pub fn short(duration: Duration) -> String {
    let (ms, s) = (duration.as_millis(), duration.as_secs());
    let two = |big: u64, big_unit: &str, small: u64, small_unit: &str| {
        if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
    };
    match s {
        0 if ms == 0 => "0s".into(),
        0 => format!("{ms}ms"),
        1..10 if ms % 1000 >= 100 => format!("{s}.{}s", ms % 1000 / 100),
        1..60 => format!("{s}s"),
        60..600 => two(s / 60, "m", s % 60, "s"),
        600..3600 => format!("{}m", s / 60),
        3600..86_400 => two(s / 3600, "h", s / 60 % 60, "m"),
        _ => two(s / 86_400, "d", s / 3600 % 24, "h"),
    }
}

/// [`short`] of milliseconds.
pub fn short_ms(ms: u64) -> String {
    short(Duration::from_millis(ms))
}

/// Milliseconds since 1970 as an instant of RFC 3339 in UTC.
pub fn instant(ms: u64) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(ms.min(LAST_INSTANT_MS));
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_harmless_and_means_the_same() {
        let text = "a\u{1b}[31m\u{9b}2J\u{202e}b\u{7f}\u{e0041}ü\n";
        let safe = safe_json(&serde_json::to_string(text).unwrap());
        assert!(!safe.chars().any(|c| c.is_control() || is_deceptive(c)) && safe.contains('ü'), "{safe}");
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
    }

    #[test]
    fn nothing_reaches_a_terminal_raw() {
        assert_eq!(escape("a\x1b[2Jb\n\t\r\x7f"), r"a\x1b[2Jb\n\t\r\x7f");
        assert_eq!(escape("\u{85}\u{9b}"), r"\u{85}\u{9b}");
        assert_eq!(escape("x\u{202e}y\u{2066}z\u{feff}\u{200b}"), r"x\u{202e}y\u{2066}z\u{feff}\u{200b}");
        assert_eq!(escape("schlüssel 鍵 'a' \\"), "schlüssel 鍵 'a' \\");
        assert_eq!(escape(&escape("\x1b")), escape("\x1b"));
        assert_eq!(shown_bytes(b"ok\xff\xfe\x1b", 80), r"ok\xff\xfe\x1b");
        assert_eq!(shown_bytes(b"\xe9\x8d", 80), r"\xe9\x8d");
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(shown("abcdef", 6), "abcdef");
        assert_eq!(shown("abcdefg", 6), "abcdef…");
        assert_eq!(shown("\x1b\x1b\x1b", 2), r"\x1b\x1b…");
        assert_eq!(cut("aüb", 2), "a");
        assert_eq!(cut("aüb", 9), "aüb");
    }

    #[test]
    fn what_a_terminal_shows_is_cut_by_its_columns() {
        assert_eq!((columns("job"), columns("鍵:備份"), columns("e\u{301}")), (3, 7, 1));
        for (text, most, cut) in [
            ("abcdef", 6, "abcdef"),
            ("abcdefg", 6, "abcde…"),
            ("鍵備份", 6, "鍵備份"),
            ("鍵備份", 5, "鍵備…"),
            ("鍵備份", 4, "鍵…"),
            ("鍵備份", 2, "…"),
            ("鍵備份", 1, "…"),
            ("鍵備份", 0, ""),
            ("e\u{301}e\u{301}e", 2, "e\u{301}…"),
        ] {
            assert_eq!(fitted(text, most), cut, "{text} in {most}");
            assert!(columns(&fitted(text, most)) <= most);
        }
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("job:backup"), "job:backup");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("{tag}"), "'{tag}'");
        assert_eq!(quoted("-n"), "'-n'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a\tit's\\é\u{202e}9"), r"$'a\x09it\'s\\é\xe2\x80\xae9'");
    }

    #[test]
    fn durations_are_short() {
        for (ms, text) in [
            (0, "0s"),
            (300, "300ms"),
            (1000, "1s"),
            (3333, "3.3s"),
            (21_900, "21s"),
            (60_000, "1m"),
            (130_000, "2m10s"),
            (725_000, "12m"),
            (3_600_000, "1h"),
            (3_720_000, "1h2m"),
            (86_400_000, "1d"),
            (273_600_000, "3d4h"),
        ] {
            assert_eq!(short_ms(ms), text, "{ms}");
        }
        assert!(!short(Duration::MAX).is_empty());
    }

    #[test]
    fn instants_never_fail() {
        assert_eq!(instant(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(instant(1_764_535_213_007), "2025-11-30T20:40:13.007Z");
        assert_eq!(instant(u64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
