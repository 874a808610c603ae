//! HTTP/3 in conformance files: one line is a frame, or something else, on one stream.
//!
//! ```text
//! 2 stream control                     0 HEADERS                            0 end
//! 2 SETTINGS MAX_FIELD_SECTION_SIZE=5    :method: GET                       0 reset H3_REQUEST_CANCELLED
//! 2 GOAWAY 4                           0 DATA: hello                        0 stop H3_NO_ERROR
//! 2 PRIORITY_UPDATE 0: u=0             0 frame 0x21: any payload            close H3_NO_ERROR
//! 2 MAX_PUSH_ID 1                      0 bytes: any bytes                   1001 x 0 DATA
//! ```
//!
//! Indented lines are fields, as literals of QPACK.

use towline_proto::ErrorCode;

use super::frames::{self, frame, varint};
use crate::notation::{head_and_text, in_parts, number};

/// Something that arrives from the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    Bytes(u64, Vec<u8>),
    End(u64),
    Reset(u64, u64),
    Stop(u64, u64),
    Close(u64),
}

/// The parts of a wire block, each as bytes that [`arrivals`] reads.
///
/// # Errors
/// The line and its error.
pub fn wire(block: &str) -> Result<Vec<Vec<u8>>, String> {
    // Offset of the last arrival, and of the frame in it, to which fields can be added.
    let mut open: Option<(usize, usize)> = None;
    in_parts(block, |line, out| {
        if let Some(field) = line.strip_prefix("  ") {
            let (start, frame) = open
                .filter(|open| open.0 < out.len())
                .ok_or("a field without HEADERS")?;
            return add_field(field, start, frame, out);
        }
        let (times, line) = match line.split_once(" x ") {
            Some((times, line)) => (number(times)?, line),
            None => (1, line),
        };
        let arrival = arrival(line)?;
        for _ in 0..times {
            open = Some((out.len(), out.len() + 13));
            write(&arrival, out);
        }
        Ok(())
    })
}

/// Reads what [`wire`] has written.
pub fn arrivals(part: &[u8]) -> Vec<Arrival> {
    let mut rest = part;
    let mut take = |n: usize| {
        let (taken, behind) = rest.split_at(n.min(rest.len()));
        rest = behind;
        taken
    };
    let mut all = Vec::new();
    loop {
        let [kind] = take(1) else { return all };
        let stream = big_endian(take(8));
        let len = big_endian(take(4)) as usize;
        let bytes = take(len).to_vec();
        all.push(match kind {
            b'b' => Arrival::Bytes(stream, bytes),
            b'e' => Arrival::End(stream),
            b'r' => Arrival::Reset(stream, big_endian(&bytes)),
            b's' => Arrival::Stop(stream, big_endian(&bytes)),
            _ => Arrival::Close(big_endian(&bytes)),
        });
    }
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn write(arrival: &Arrival, out: &mut Vec<u8>) {
    let (kind, stream, bytes) = match arrival {
        Arrival::Bytes(stream, bytes) => (b'b', *stream, bytes.clone()),
        Arrival::End(stream) => (b'e', *stream, Vec::new()),
        Arrival::Reset(stream, code) => (b'r', *stream, code.to_be_bytes().to_vec()),
        Arrival::Stop(stream, code) => (b's', *stream, code.to_be_bytes().to_vec()),
        Arrival::Close(code) => (b'c', 0, code.to_be_bytes().to_vec()),
    };
    out.push(kind);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// Appends a field to the section of the last frame.
fn add_field(text: &str, start: usize, at: usize, out: &mut Vec<u8>) -> Result<(), String> {
    // A pseudo-header field begins with a colon.
    let colon = text[1..].find(": ").ok_or("a field needs a colon")? + 1;
    let (_, value) = head_and_text(&text[colon..])?;
    let (kind, n) = frames::read_varint(&out[at..]).ok_or("a field without HEADERS")?;
    if kind != frames::HEADERS {
        return Err("a field without HEADERS".into());
    }
    let (_, m) = frames::read_varint(&out[at + n..]).ok_or("a field without HEADERS")?;
    let mut section = out.split_off(at + n + m);
    frames::field(&text.as_bytes()[..colon], &value, &mut section);
    out.truncate(at);
    out.extend_from_slice(&frame(frames::HEADERS, &section));
    let len = (out.len() - at) as u32;
    out[start + 9..start + 13].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

fn arrival(line: &str) -> Result<Arrival, String> {
    let (head, text) = head_and_text(line)?;
    let words: Vec<&str> = head.split(' ').collect();
    if let ["close", code] = words.as_slice() {
        return Ok(Arrival::Close(error_code(code)?));
    }
    let [stream, words @ ..] = words.as_slice() else {
        return Err(format!("{head} is no frame"));
    };
    let stream = u64::from(number(stream)?);
    let bytes = match words {
        ["end"] => return Ok(Arrival::End(stream)),
        ["reset", code] => return Ok(Arrival::Reset(stream, error_code(code)?)),
        ["stop", code] => return Ok(Arrival::Stop(stream, error_code(code)?)),
        ["bytes"] => text,
        ["stream", name] => varint(match *name {
            "control" => 0,
            "push" => 1,
            "encoder" => 2,
            "decoder" => 3,
            other => u64::from(number(other)?),
        }),
        ["frame", kind] => frame(u64::from(number(kind)?), &text),
        ["HEADERS"] => frame(frames::HEADERS, &[0, 0]),
        ["DATA"] => frame(frames::DATA, &text),
        ["SETTINGS", pairs @ ..] => {
            let mut payload = Vec::new();
            for pair in pairs {
                let (name, value) = setting(pair)?;
                payload.extend(varint(name));
                payload.extend(varint(value));
            }
            frame(frames::SETTINGS, &payload)
        }
        ["GOAWAY", id] => frame(frames::GOAWAY, &varint(number(id)?.into())),
        ["MAX_PUSH_ID", id] => frame(0xd, &varint(number(id)?.into())),
        ["CANCEL_PUSH", id] => frame(0x3, &varint(number(id)?.into())),
        ["PUSH_PROMISE", id] => {
            let payload = [varint(number(id)?.into()), vec![0, 0]].concat();
            frame(0x5, &payload)
        }
        ["PRIORITY_UPDATE", id] => frame(0xf_0700, &[varint(number(id)?.into()), text].concat()),
        _ => return Err(format!("{head} is no frame")),
    };
    Ok(Arrival::Bytes(stream, bytes))
}

fn setting(pair: &str) -> Result<(u64, u64), String> {
    let (name, value) = pair.split_once('=').ok_or("a setting needs a value")?;
    let name = match frames::SETTINGS_NAMES.iter().find(|known| known.1 == name) {
        Some((number, _)) => *number,
        None => u64::from(number(name)?),
    };
    Ok((name, u64::from(number(value)?)))
}

fn error_code(name: &str) -> Result<u64, String> {
    let mut codes = (0x100..=0x110).chain(0x200..=0x202).map(ErrorCode);
    match codes.find(|code| code.name() == name) {
        Some(code) => Ok(code.0),
        None => number(name).map(u64::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_arrivals() {
        let block = "0 HEADERS\n  :method: GET\n0 DATA: hi\n0 end\n4 reset H3_NO_ERROR\nclose 5";
        let parts = wire(block).unwrap();
        let mut section = vec![0, 0];
        frames::field(b":method", b"GET", &mut section);
        assert_eq!(
            arrivals(&parts.concat()),
            [
                Arrival::Bytes(0, frame(frames::HEADERS, &section)),
                Arrival::Bytes(0, frame(frames::DATA, b"hi")),
                Arrival::End(0),
                Arrival::Reset(4, 0x100),
                Arrival::Close(5),
            ]
        );
    }

    #[test]
    fn mistakes_are_errors() {
        for (block, part) in [
            ("  a: b", "without HEADERS"),
            ("0 DATA\n  a: b", "without HEADERS"),
            ("HEADERS", "no number"),
            ("0 reset WRONG", "no number"),
            ("0 HELLO", "no frame"),
        ] {
            assert!(wire(block).unwrap_err().contains(part), "{block}");
        }
    }
}
