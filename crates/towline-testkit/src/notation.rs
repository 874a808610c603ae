//! The wire notation of the conformance files: text that shows every byte.
//!
//! A line means itself and CRLF. A line that ends in a single `\` has no CRLF. Escapes: `\r` `\n` `\t` `\0` `\\`,
//! `\xHH`, and `\{N text}`: the text N times (escapes work inside; no nesting). Bytes outside printable ASCII are
//! always escaped. A line that is only `\|` splits the wire: the rest arrives only when everything before has
//! been handled.

use std::fmt::Write;

/// Wire bytes of a block of text, in the parts into which it is split.
///
/// # Errors
/// The line and its error.
pub fn unescape(block: &str) -> Result<Vec<Vec<u8>>, String> {
    in_parts(block, |line, out| {
        let (text, ends) = match line.strip_suffix('\\') {
            Some(text) if !text.ends_with('\\') || text.ends_with("\\\\") => (text, false),
            _ => (line, true),
        };
        unescape_text(text.as_bytes(), out)?;
        if ends {
            out.extend_from_slice(b"\r\n");
        }
        Ok(())
    })
}

/// The parts of a block, whose lines `write` turns into bytes.
pub(crate) fn in_parts(
    block: &str,
    mut write: impl FnMut(&str, &mut Vec<u8>) -> Result<(), String>,
) -> Result<Vec<Vec<u8>>, String> {
    let mut parts = vec![Vec::new()];
    for (number, line) in block.lines().enumerate() {
        if line == "\\|" {
            parts.push(Vec::new());
        } else if let Some(out) = parts.last_mut() {
            write(line, out).map_err(|problem| format!("line {}: {problem}", number + 1))?;
        }
    }
    Ok(parts)
}

/// The bytes of one text with escapes.
pub(crate) fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    unescape_text(text.as_bytes(), &mut out)?;
    Ok(out)
}

/// `head: text` of a line that builds a frame.
pub(crate) fn head_and_text(line: &str) -> Result<(&str, Vec<u8>), String> {
    match line.split_once(": ") {
        Some((head, text)) => Ok((head, bytes(text)?)),
        None => Ok((line, Vec::new())),
    }
}

/// A number in decimal or with `0x`.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is no number"))
}

fn unescape_text(mut text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    while let [first, rest @ ..] = text {
        text = rest;
        match first {
            b'\\' => text = unescape_one(rest, out)?,
            b' '..=b'~' => out.push(*first),
            other => {
                return Err(format!(
                    "byte {other:#04x} must be written as \\x{other:02x}"
                ));
            }
        }
    }
    Ok(())
}

fn unescape_one<'a>(text: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], String> {
    let [kind, rest @ ..] = text else {
        return Err("a lone backslash".into());
    };
    match kind {
        b'r' => out.push(b'\r'),
        b'n' => out.push(b'\n'),
        b't' => out.push(b'\t'),
        b'0' => out.push(0),
        b'\\' => out.push(b'\\'),
        b'x' => {
            let digits = rest
                .get(..2)
                .and_then(|d| std::str::from_utf8(d).ok())
                .unwrap_or("");
            out.push(
                u8::from_str_radix(digits, 16)
                    .map_err(|_| "\\x needs two hexadecimal digits".to_owned())?,
            );
            return Ok(&rest[2..]);
        }
        b'{' => return repeat(rest, out),
        other => return Err(format!("unknown escape \\{}", char::from(*other))),
    }
    Ok(rest)
}

fn repeat<'a>(text: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], String> {
    let close = text
        .iter()
        .position(|b| *b == b'}')
        .ok_or("\\{ without }")?;
    let inside = &text[..close];
    let space = inside
        .iter()
        .position(|b| *b == b' ')
        .ok_or("\\{N text} needs a space")?;
    let count: usize = std::str::from_utf8(&inside[..space])
        .ok()
        .and_then(|n| n.parse().ok())
        .ok_or("\\{N text} needs a number")?;
    let mut once = Vec::new();
    unescape_text(&inside[space + 1..], &mut once)?;
    out.extend(once.iter().copied().cycle().take(once.len() * count));
    Ok(&text[close + 1..])
}

/// The longest byte string that a log shows in full.
const SHOWN_BYTES: usize = 160;

/// Bytes as one line of ASCII. Long ones are cut, with their length and a checksum, so that logs stay readable and a
/// wrong byte still shows.
pub fn escape(bytes: &[u8]) -> String {
    if bytes.len() <= SHOWN_BYTES {
        return escape_all(bytes);
    }
    let mut text = escape_all(&bytes[..32]);
    // `write!` to a `String` cannot fail.
    let _ = write!(
        text,
        "... ({} bytes, fnv {:08x})",
        bytes.len(),
        checksum(bytes)
    );
    text
}

fn escape_all(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        let edge = at == 0 || at + 1 == bytes.len();
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\\' => text.push_str("\\\\"),
            b' ' if edge => text.push_str("\\x20"),
            b' '..=b'~' => text.push(char::from(*byte)),
            other => {
                let _ = write!(text, "\\x{other:02x}");
            }
        }
    }
    text
}

/// FNV-1a, folded to 32 bits.
fn checksum(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Vec<u8> {
        unescape(text).unwrap().concat()
    }

    #[test]
    fn a_line_is_itself_and_crlf() {
        assert_eq!(
            whole("GET / HTTP/1.1\nHost: a\n\n"),
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        );
    }

    #[test]
    fn escapes_and_repeats() {
        assert_eq!(whole("a\\n\\"), b"a\n");
        assert_eq!(whole("a\\\\"), b"a\\\r\n");
        assert_eq!(whole("\\x00\\xff\\t\\\\\\"), b"\x00\xff\t\\");
        assert_eq!(whole("<\\{3 ab\\r}>\\"), b"<ab\rab\rab\r>");
    }

    #[test]
    fn a_bar_splits_the_wire() {
        assert_eq!(
            unescape("a\n\\|\nb\\\n").unwrap(),
            [b"a\r\n".to_vec(), b"b".to_vec()]
        );
    }

    #[test]
    fn mistakes_are_errors() {
        for (text, part) in [
            ("\\q", "unknown"),
            ("\\x4", "two hex"),
            ("\\{3a}", "space"),
            ("\u{e9}", "\\xc3"),
        ] {
            assert!(unescape(text).unwrap_err().contains(part), "{text}");
        }
    }

    #[test]
    fn long_bytes_are_cut_with_a_checksum() {
        let mut long = vec![b'a'; 500];
        let before = escape(&long);
        assert!(before.contains("500 bytes"));
        long[400] = b'b';
        assert_ne!(before, escape(&long));
    }
}
