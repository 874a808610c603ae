//! Answers that are wrong in one way each: what a generator must find out.

use bytes::Bytes;
use towline_io::Peer;
use towline_proto::{BodySize, Protocol, StreamId, UserError};

use super::{Jobs, responses};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One bit of the body is not what it should be.
    OneByte,
    /// A body one byte shorter, and a length that agrees.
    Short,
    /// A body one byte longer, and a length that agrees.
    Long,
    /// The connection ends in the middle of the body; with HTTP/2 the stream.
    Truncated,
    /// ... or without an answer.
    EarlyClose,
    /// Bytes that are no HTTP, then the end.
    Garbage,
    /// The right answer, and a second one that nobody asked for.
    Twice,
    /// The answer comes before the body has been read.
    Early,
    /// No answer, ever.
    Hang,
    /// A WebSocket's text comes back as binary, or the other way about.
    Kind,
}

impl Fault {
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "one-byte" => Self::OneByte,
            "short" => Self::Short,
            "long" => Self::Long,
            "truncated" => Self::Truncated,
            "early-close" => Self::EarlyClose,
            "garbage" => Self::Garbage,
            "twice" => Self::Twice,
            "early" => Self::Early,
            "hang" => Self::Hang,
            "kind" => Self::Kind,
            _ => return None,
        })
    }
}

pub fn respond(peer: &mut Peer<Jobs>, stream: StreamId, fault: Fault) -> Result<(), UserError> {
    match fault {
        Fault::OneByte => body(peer, stream, b"alivf\r\n"),
        Fault::Short => body(peer, stream, b"alive\r"),
        Fault::Long => body(peer, stream, b"alive\r\n\n"),
        Fault::Early => body(peer, stream, b"alive\r\n"),
        Fault::Twice => {
            body(peer, stream, b"alive\r\n")?;
            // Ahead of the right one, which leaves with the turn.
            match peer.conn.protocol() {
                Some(Protocol::Http2) => raw(peer, &empty_response(stream)),
                // To a client they are the same.
                _ => raw(
                    peer,
                    b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nalive\r\n",
                ),
            }
            Ok(())
        }
        Fault::Truncated => {
            peer.conn
                .respond(stream, &responses::ok(), BodySize::Known(7))?;
            let mut body = peer.conn.stream(stream)?;
            body.write(b"ali")?;
            body.reset();
            Ok(())
        }
        Fault::EarlyClose => {
            peer.conn.stream(stream)?.reset();
            Ok(())
        }
        Fault::Garbage => {
            raw(peer, b"\x16\x03\x01 this is no HTTP\r\n\r\n");
            peer.conn.stream(stream)?.reset();
            Ok(())
        }
        Fault::Hang | Fault::Kind => Ok(()),
    }
}

fn body(peer: &mut Peer<Jobs>, stream: StreamId, bytes: &'static [u8]) -> Result<(), UserError> {
    responses::whole(peer, stream, &responses::ok(), Bytes::from_static(bytes))
}

/// A whole answer in one frame: the status 200, no other field, no body (RFC 9113 6.2).
fn empty_response(stream: StreamId) -> [u8; 10] {
    let mut frame = [0, 0, 1, 1, 5, 0, 0, 0, 0, 0x88];
    let id = u32::try_from(stream.0).unwrap_or(0);
    frame[5..9].copy_from_slice(&id.to_be_bytes());
    frame
}

/// Around the wire core, which says nothing wrong, and around TLS.
fn raw(peer: &Peer<Jobs>, bytes: &[u8]) {
    // SAFETY: the peer's own descriptor and a buffer that outlives the call. That a few bytes do not fit
    // would need a client that has not read what came before.
    unsafe { libc::send(peer.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
}
