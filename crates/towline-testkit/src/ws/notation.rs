//! WebSocket in conformance files: one line is one frame, masked as its side must mask it.
//!
//! ```text
//! text: hello          text more: hel          continue more: l          continue: o
//! binary: \xff         ping: 1                 pong                      close 1000: bye
//! text rsv1: ...       frame 0x83: x           text wrong-mask: x        bytes: any bytes
//! ```
//!
//! `more` omits FIN; `frame` has the given first byte; `wrong-mask` masks a frame that must not be masked and the
//! reverse.

use towline_proto::Side;

use super::{BINARY, CLOSE, CONT, FIN, PING, PONG, RSV1, TEXT, to_side};
use crate::notation::{head_and_text, in_parts, number};

/// The parts of a wire block for this side.
///
/// # Errors
/// The line and its error.
pub fn wire(block: &str, side: Side) -> Result<Vec<Vec<u8>>, String> {
    in_parts(block, |line, out| {
        let (times, line) = match line.split_once(" x ") {
            Some((times, line)) => (number(times)?, line),
            None => (1, line),
        };
        let frame = frame(line, side)?;
        for _ in 0..times {
            out.extend_from_slice(&frame);
        }
        Ok(())
    })
}

fn frame(line: &str, side: Side) -> Result<Vec<u8>, String> {
    let (head, mut payload) = head_and_text(line)?;
    let (name, rest) = head.split_once(' ').unwrap_or((head, ""));
    let opcode = match name {
        "bytes" => return Ok(payload),
        "continue" => CONT,
        "text" => TEXT,
        "binary" => BINARY,
        "close" => CLOSE,
        "ping" => PING,
        "pong" => PONG,
        "frame" => 0,
        _ => return Err(format!("{name} is no frame")),
    };
    let (mut first, mut mask) = (FIN | opcode, side);
    for word in rest.split_whitespace() {
        match word {
            "more" => first &= !FIN,
            "rsv1" => first |= RSV1,
            "wrong-mask" => mask = opposite(side),
            code if name == "close" => {
                let code = u16::try_from(number(code)?).map_err(|_| "a code has two bytes")?;
                payload.splice(..0, code.to_be_bytes());
            }
            byte if name == "frame" => first = number(byte)? as u8,
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(to_side(mask, first, &payload))
}

fn opposite(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ws::{bare, masked};

    fn whole(line: &str) -> Vec<u8> {
        wire(line, Side::Client).unwrap().concat()
    }

    #[test]
    fn lines_are_frames() {
        assert_eq!(whole("text more: a"), bare(TEXT, b"a"));
        assert_eq!(whole("text rsv1: a"), bare(FIN | RSV1 | TEXT, b"a"));
        assert_eq!(whole("close 1000: bye"), bare(FIN | CLOSE, b"\x03\xe8bye"));
        assert_eq!(whole("close"), bare(FIN | CLOSE, b""));
        assert_eq!(whole("ping wrong-mask: a"), masked(FIN | PING, b"a"));
        assert_eq!(whole("2 x frame 0x03"), bare(3, b"").repeat(2));
        assert_eq!(
            wire("pong", Side::Server).unwrap().concat(),
            masked(FIN | PONG, b"")
        );
    }

    #[test]
    fn mistakes_are_errors() {
        for (line, part) in [
            ("txt: a", "txt is no frame"),
            ("text mre: a", "mre is not known"),
            ("close one", "no number"),
        ] {
            assert!(
                wire(line, Side::Server).unwrap_err().contains(part),
                "{line}"
            );
        }
    }
}
