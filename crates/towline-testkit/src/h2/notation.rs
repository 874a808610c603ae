//! HTTP/2 in conformance files: one line is one frame, as [`Frame`](super::Frame) displays sent ones.
//!
//! ```text
//! PREFACE                              SETTINGS INITIAL_WINDOW_SIZE=5       SETTINGS ack
//! HEADERS 1 end                        PING                                 PING ack: 8 bytes
//!   :method: GET                       WINDOW_UPDATE 0 by 100               RST_STREAM 1 CANCEL
//! DATA 1 end padded=3: hello           GOAWAY last 1 NO_ERROR               PRIORITY 1 on 3
//! CONTINUATION 1                       PRIORITY_UPDATE 1: u=0               frame 0xbe 0x0 1: any payload
//! bytes: any bytes                     1001 x PING
//! ```
//!
//! `end` is `END_STREAM`; `more` means that CONTINUATION follows. Indented lines are fields, as literals.

use towline_proto::ErrorCode;

use super::{ACK, END, END_HEADERS, PADDED};
use crate::notation::{head_and_text, in_parts, number};

/// The parts of a wire block.
///
/// # Errors
/// The line and its error.
pub fn wire(block: &str) -> Result<Vec<Vec<u8>>, String> {
    // Offset of the last frame, to which fields can be added.
    let mut open = None;
    in_parts(block, |line, out| {
        if let Some(field) = line.strip_prefix("  ") {
            let start = open.filter(|start| *start < out.len());
            return add_field(field, start.ok_or("a field without HEADERS")?, out);
        }
        open = Some(out.len());
        let (times, line) = match line.split_once(" x ") {
            Some((times, line)) => (number(times)?, line),
            None => (1, line),
        };
        let frame = frame(line)?;
        for _ in 0..times {
            out.extend_from_slice(&frame);
        }
        Ok(())
    })
}

/// Appends a field to the block of the last frame.
fn add_field(text: &str, start: usize, out: &mut Vec<u8>) -> Result<(), String> {
    // A pseudo-header field begins with a colon.
    let colon = text[1..].find(": ").ok_or("a field needs a colon")? + 1;
    let (_, value) = head_and_text(&text[colon..])?;
    out.push(0);
    super::text(out, &text.as_bytes()[..colon]);
    super::text(out, &value);
    let [_, lengths @ ..] = ((out.len() - start - 9) as u32).to_be_bytes();
    out[start..start + 3].copy_from_slice(&lengths);
    Ok(())
}

fn frame(line: &str) -> Result<Vec<u8>, String> {
    let (head, text) = head_and_text(line)?;
    let words: Vec<&str> = head.split(' ').collect();
    let flag = |word: &str, flag: u8| if words.contains(&word) { flag } else { 0 };
    Ok(match words.as_slice() {
        ["PREFACE"] => super::PREFACE.to_vec(),
        ["bytes"] => text,
        ["frame", kind, flags, stream] => {
            let (kind, flags) = (number(kind)? as u8, number(flags)? as u8);
            super::frame(kind, flags, number(stream)?, &text)
        }
        ["SETTINGS", "ack"] => super::settings_ack(),
        ["SETTINGS", pairs @ ..] => {
            let pairs: Result<Vec<_>, String> = pairs.iter().map(|pair| setting(pair)).collect();
            super::settings(&pairs?)
        }
        ["PING"] => super::ping(),
        ["PING", "ack"] => super::frame(super::PING, ACK, 0, &text),
        ["HEADERS", stream, rest @ ..] => {
            known(rest, &["end", "more"])?;
            let flags = flag("end", END) | (END_HEADERS ^ flag("more", END_HEADERS));
            super::frame(super::HEADERS, flags, number(stream)?, b"")
        }
        ["CONTINUATION", stream, rest @ ..] => {
            known(rest, &["more"])?;
            let flags = END_HEADERS ^ flag("more", END_HEADERS);
            super::frame(super::CONTINUATION, flags, number(stream)?, b"")
        }
        ["DATA", stream, rest @ ..] => data(number(stream)?, rest, text)?,
        ["PRIORITY", stream, "on", other] => super::priority(number(stream)?, number(other)?),
        ["PRIORITY_UPDATE", stream] => {
            super::priority_update(number(stream)?, &String::from_utf8_lossy(&text))
        }
        ["RST_STREAM", stream, code] => super::reset(number(stream)?, error_code(code)?),
        ["GOAWAY", "last", last, code] => super::go_away(number(last)?, error_code(code)?),
        ["WINDOW_UPDATE", stream, "by", n] => super::window_update(number(stream)?, number(n)?),
        _ => return Err(format!("{head} is no frame")),
    })
}

fn data(stream: u32, words: &[&str], text: Vec<u8>) -> Result<Vec<u8>, String> {
    let (mut flags, mut payload) = (0, text);
    for word in words {
        match word.split_once('=') {
            None if *word == "end" => flags |= END,
            Some(("padded", n)) => {
                flags |= PADDED;
                let n = number(n)?;
                payload.insert(0, n as u8);
                payload.resize(payload.len() + n as usize, 0);
            }
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(super::frame(super::DATA, flags, stream, &payload))
}

fn known(words: &[&str], known: &[&str]) -> Result<(), String> {
    match words.iter().find(|word| !known.contains(word)) {
        Some(word) => Err(format!("{word} is not known")),
        None => Ok(()),
    }
}

fn setting(pair: &str) -> Result<(u16, u32), String> {
    const NAMES: [(&str, u16); 6] = [
        ("HEADER_TABLE_SIZE", super::HEADER_TABLE_SIZE),
        ("ENABLE_PUSH", super::ENABLE_PUSH),
        ("MAX_CONCURRENT_STREAMS", super::MAX_CONCURRENT_STREAMS),
        ("INITIAL_WINDOW_SIZE", super::INITIAL_WINDOW_SIZE),
        ("MAX_FRAME_SIZE", super::MAX_FRAME_SIZE),
        ("ENABLE_CONNECT_PROTOCOL", super::ENABLE_CONNECT_PROTOCOL),
    ];
    let (name, value) = pair.split_once('=').ok_or("a setting needs a value")?;
    let known = NAMES.iter().find(|(known, _)| *known == name);
    let name = match known {
        Some((_, number)) => *number,
        None => u16::try_from(number(name)?).map_err(|_| format!("{name} is too large"))?,
    };
    Ok((name, number(value)?))
}

fn error_code(name: &str) -> Result<ErrorCode, String> {
    let mut codes = (0..=0xd).map(ErrorCode);
    let code = codes.find(|code| code.name() == name);
    code.ok_or_else(|| format!("{name} is no error code"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2;

    #[test]
    fn frames_are_parsed_as_displayed() {
        let lines = [
            "DATA 1 5 bytes end",
            "RST_STREAM 3 CANCEL",
            "GOAWAY last 1 NO_ERROR",
            "WINDOW_UPDATE 0 by 7",
            "SETTINGS ack",
        ];
        let block = "DATA 1 end: hello\nRST_STREAM 3 CANCEL\nGOAWAY last 1 NO_ERROR\nWINDOW_UPDATE 0 by 7\nSETTINGS ack";
        assert_eq!(h2::lines(&wire(block).unwrap().concat()), lines);
    }

    #[test]
    fn fields_belong_to_their_frame() {
        let block = "HEADERS 1 end\n  :status: 200\n  a: b: c\nPING";
        let expected = [
            h2::headers(1, END, &[(":status", "200"), ("a", "b: c")]),
            h2::ping(),
        ];
        assert_eq!(wire(block).unwrap(), [expected.concat()]);
    }

    #[test]
    fn padding_and_repetition() {
        let padded = h2::frame(h2::DATA, PADDED, 1, b"\x02hi\0\0");
        assert_eq!(wire("DATA 1 padded=2: hi").unwrap(), [padded]);
        assert_eq!(wire("3 x PING").unwrap(), [h2::ping().repeat(3)]);
    }

    #[test]
    fn mistakes_are_errors() {
        for (block, part) in [
            ("  a: b", "without HEADERS"),
            ("HEADERS 1 and", "and is not known"),
            ("DATA one", "no number"),
            ("RST_STREAM 1 WRONG", "no error code"),
            ("HELLO", "no frame"),
        ] {
            assert!(wire(block).unwrap_err().contains(part), "{block}");
        }
    }
}
