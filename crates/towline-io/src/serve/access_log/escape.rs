//! Escaping of the peer's bytes in a log line, so that they cannot forge a line, end a field or send a
//! control sequence to a terminal.

/// Escapes text: printable ASCII stays, quotes and backslashes get a backslash, all else becomes `\xHH`.
pub(super) fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| !is_plain(byte)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            byte => {
                out.extend_from_slice(b"\\x");
                push_hex(out, byte);
            }
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Escapes the content of a JSON string (RFC 8259 section 7). Valid UTF-8 stays, except control characters (with
/// C1), line separators, and characters that are invisible or reorder the text around them (Trojan Source,
/// CVE-2021-42574); other bytes are read as Latin-1.
pub(super) fn push_json(out: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        for char in chunk.valid().chars() {
            push_json_char(out, char);
        }
        for &byte in chunk.invalid() {
            push_unicode_escape(out, u16::from(byte));
        }
    }
}

fn push_json_char(out: &mut Vec<u8>, char: char) {
    match char {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\u{0}'..='\u{1f}'
        | '\u{7f}'..='\u{9f}'
        | '\u{ad}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => {
            for unit in char.encode_utf16(&mut [0; 2]) {
                push_unicode_escape(out, *unit);
            }
        }
        _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

fn push_unicode_escape(out: &mut Vec<u8>, unit: u16) {
    out.extend_from_slice(b"\\u");
    for byte in unit.to_be_bytes() {
        push_hex(out, byte);
    }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

fn push_hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        push_text(&mut out, bytes);
        String::from_utf8(out).unwrap()
    }

    fn json(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        push_json(&mut out, bytes);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_is_one_line_of_printable_ascii() {
        assert_eq!(text(b"GET /a?b=c"), "GET /a?b=c");
        assert_eq!(text(b"a\"b\\c\r\n\x1b[31m"), r#"a\"b\\c\x0d\x0a\x1b[31m"#);
        assert_eq!(text("é".as_bytes()), r"\xc3\xa9");
        let all: Vec<u8> = (0..=255).collect();
        assert!(text(&all).bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    }

    #[test]
    fn json_keeps_letters_and_escapes_controls() {
        assert_eq!(json("né \"x\"\\".as_bytes()), r#"né \"x\"\\"#);
        assert_eq!(json(b"\r\n\0\x7f"), r"\u000d\u000a\u0000\u007f");
        assert_eq!(json(b"caf\xe9!"), r"caf\u00e9!");
        assert_eq!(json("\u{9b}\u{2028}".as_bytes()), r"\u009b\u2028");
        assert_eq!(
            json("a\u{202e}b\u{2066}\u{200f}\u{e0041}".as_bytes()),
            r"a\u202eb\u2066\u200f\udb40\udc41"
        );
    }
}
