//! The WebSocket echo, over HTTP/1.1 and HTTP/2 (RFC 8441).

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use bytes::Bytes;
use towline_io::Conn;
use towline_proto::ws::handshake::{Request, is_upgrade};
use towline_proto::ws::{Event, Kind, Limits, ReadAhead, Scratch, Status, WebSocket, deflate};
use towline_proto::{
    BodySize, Field, HeadRef, ResponseHead, Side, StreamId, StreamMut, UserError, Version,
};

use super::behaviour::{Fault, InjectedFaults};
use super::catalogue;
use super::job::{Echo, Job, Jobs};
use super::request::{Route, UpgradeRequest};
use super::responses::SERVER;

/// The route of a WebSocket request; 404 if it is not a handshake.
pub fn route(head: &HeadRef<'_>) -> Route {
    let request = match (head.version(), head.protocol()) {
        (Version::Http11, _) if is_upgrade(head) => Request::read(*head),
        (Version::Http2, Some(b"websocket")) => Request::read_extended(*head),
        _ => return Route::Fixed(&catalogue::NOT_FOUND),
    };
    match request {
        Ok(request) => Route::Socket(Box::new(UpgradeRequest {
            accepted: request.accept(None, Some(&deflate::Config::server())),
            faults: None,
        })),
        Err(refusal) => Route::WsRefused(Box::new(refusal)),
    }
}

pub fn open(
    conn: &mut Conn<Jobs>,
    stream: StreamId,
    upgrade: UpgradeRequest,
    means: (&mut Scratch, &mut InjectedFaults),
) -> Result<(), UserError> {
    let UpgradeRequest { accepted, faults } = upgrade;
    let own = accepted.fields.iter();
    let own = own.map(|(name, value)| Field { name, value });
    let head = ResponseHead {
        status: accepted.status,
        reason: b"",
        fields: &own.chain([SERVER]).collect::<Vec<_>>(),
    };
    conn.proto.respond(stream, &head, BodySize::Empty)?;
    let deflate = accepted.deflate.zip(Some(deflate::Config::server()));
    let socket = WebSocket::new(Side::Server, limits(), deflate, Instant::now());
    let echo = Box::new(Echo { socket, faults });
    conn.state.insert(stream, Job::Socket(echo));
    resume_body(conn, stream, means);
    Ok(())
}

/// No pings: they would affect the measurement of the client.
fn limits() -> Arc<Limits> {
    static LIMITS: LazyLock<Arc<Limits>> = LazyLock::new(|| {
        Arc::new(Limits {
            ping_interval: None,
            ping_timeout: None,
            ..Limits::default()
        })
    });
    Arc::clone(&LIMITS)
}

/// Echoes received messages as flow control allows.
pub fn resume_body(
    conn: &mut Conn<Jobs>,
    id: StreamId,
    (shared, injected): (&mut Scratch, &mut InjectedFaults),
) {
    let (Ok(mut stream), Some(Job::Socket(echo))) = (conn.proto.stream(id), conn.state.get_mut(id))
    else {
        return;
    };
    let now = Instant::now();
    while stream.send_capacity() > 0 {
        let ahead = echo.socket.read_ahead(&mut stream, now, shared, usize::MAX);
        if ahead != ReadAhead::Event {
            break;
        }
        let Some(Event::Message { kind, .. }) = echo.socket.next_event() else {
            continue;
        };
        let message = Bytes::from(echo.socket.take_message().unwrap_or_default());
        injected.requests += 1;
        let fault = (echo.faults).filter(|(_, share)| injected.faults.sample(*share));
        let sent = match fault {
            None => send(&mut echo.socket, &mut stream, kind, message, shared),
            Some((fault, _)) => echo.err(&mut stream, fault, (kind, message), shared),
        };
        if !sent {
            break;
        }
    }
    // An error means that the stream has failed, which reading reports.
    let _ = echo.socket.flush(&mut stream, shared);
    if echo.socket.status() == Status::Finished {
        let _ = stream.finish();
        stream.reset();
        conn.state.remove(id);
    }
}

/// Returns false if nothing more can be sent.
fn send(
    socket: &mut WebSocket,
    stream: &mut StreamMut<'_>,
    kind: Kind,
    message: Bytes,
    shared: &mut Scratch,
) -> bool {
    let Ok(frame) = socket.frame(kind, message, true, shared) else {
        return false;
    };
    stream.write(frame.head.as_bytes()).is_ok() && stream.write_shared(frame.payload).is_ok()
}

impl Echo {
    /// Sends a faulty echo of a message.
    fn err(
        &mut self,
        stream: &mut StreamMut<'_>,
        fault: Fault,
        (kind, message): (Kind, Bytes),
        shared: &mut Scratch,
    ) -> bool {
        let socket = &mut self.socket;
        let mut bytes = message.to_vec();
        match fault {
            Fault::OneByte => {
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
            }
            Fault::Short => drop(bytes.pop()),
            Fault::Long => bytes.push(b'x'),
            Fault::Kind => {
                let other = match kind {
                    Kind::Text => Kind::Binary,
                    Kind::Binary => Kind::Text,
                };
                return send(socket, stream, other, message, shared);
            }
            Fault::Twice => {
                return send(socket, stream, kind, message.clone(), shared)
                    && send(socket, stream, kind, message, shared);
            }
            Fault::Truncated => {
                let Ok(frame) = socket.frame(kind, message, true, shared) else {
                    return false;
                };
                let half = frame.payload.slice(..frame.payload.len() / 2);
                let _ = stream.write(frame.head.as_bytes());
                let _ = stream.write_shared(half);
                let _ = stream.finish();
                return false;
            }
            Fault::EarlyClose => {
                let _ = socket.close(Instant::now(), 1011, "as planned");
                return false;
            }
            Fault::Garbage => {
                // A reserved opcode (RFC 6455 5.2).
                let _ = stream.write(b"\x83\x00");
                return true;
            }
            Fault::Early | Fault::Hang => return true,
        }
        send(socket, stream, kind, bytes.into(), shared)
    }
}
