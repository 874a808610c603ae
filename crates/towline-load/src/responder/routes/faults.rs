//! Responses that are wrong in one way each, to test generators.

use bytes::Bytes;
use towline_io::Conn;
use towline_proto::{BodySize, Protocol, StreamId, UserError};

use super::behaviour::Fault;
use super::job::Jobs;
use super::responses;

pub fn respond(conn: &mut Conn<Jobs>, stream: StreamId, fault: Fault) -> Result<(), UserError> {
    match fault {
        Fault::OneByte => body(conn, stream, b"alivf\r\n"),
        Fault::Short => body(conn, stream, b"alive\r"),
        Fault::Long => body(conn, stream, b"alive\r\n\n"),
        Fault::Early => body(conn, stream, b"alive\r\n"),
        Fault::Twice => {
            body(conn, stream, b"alive\r\n")?;
            // Sent before the right one, which is flushed at the end of the turn.
            match conn.proto.protocol() {
                Some(Protocol::Http2) => raw(conn, &empty_response(stream)),
                // The two are indistinguishable for a client.
                _ => raw(
                    conn,
                    b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nalive\r\n",
                ),
            }
            Ok(())
        }
        Fault::Truncated => {
            conn.proto
                .respond(stream, &responses::ok(), BodySize::Known(7))?;
            let mut body = conn.proto.stream(stream)?;
            body.write(b"ali")?;
            body.reset();
            Ok(())
        }
        Fault::EarlyClose => {
            conn.proto.stream(stream)?.reset();
            Ok(())
        }
        Fault::Garbage => {
            raw(conn, b"\x16\x03\x01 this is not HTTP\r\n\r\n");
            conn.proto.stream(stream)?.reset();
            Ok(())
        }
        Fault::Hang | Fault::Kind => Ok(()),
    }
}

fn body(conn: &mut Conn<Jobs>, stream: StreamId, bytes: &'static [u8]) -> Result<(), UserError> {
    responses::respond_with(conn, stream, &responses::ok(), Bytes::from_static(bytes))
}

/// A response in one frame: status 200, no headers, no body (RFC 9113 6.2).
fn empty_response(stream: StreamId) -> [u8; 10] {
    let mut frame = [0, 0, 1, 1, 5, 0, 0, 0, 0, 0x88];
    let id = u32::try_from(stream.0).unwrap_or(0);
    frame[5..9].copy_from_slice(&id.to_be_bytes());
    frame
}

/// Bypasses TLS and the wire core, which sends nothing invalid.
fn raw(conn: &Conn<Jobs>, bytes: &[u8]) {
    // SAFETY: the peer's own descriptor and a buffer that outlives the call. That a few bytes do not fit
    // would need a client that has not read what came before.
    unsafe { libc::send(conn.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
}
