//! The client side of a WebSocket, shared by the load generator and the agent's single requests.
//!
//! ```text
//! Handshake::begin ─► request ─► the head of the response ─► Handshake::end ─► WebSocket ─► send
//! ```

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::ws::deflate;
use towline_proto::ws::handshake::Offer;
use towline_proto::ws::{self, Scratch, WebSocket};
use towline_proto::{BodySize, Connection, Field, HeadRef, RequestHead, StreamMut, UserError};

use crate::stats::Failure;
use crate::target::{Messages, Target};

/// Headers that a target cannot set: the handshake sets them.
pub(crate) const OWN_FIELDS: [&str; 5] = [
    "Upgrade",
    "Connection",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Extensions",
];

/// Messages up to this size are copied, so that payload and frame head are sent in one piece.
const SHORT_BYTES: usize = 16 * 1024;

/// A handshake in progress.
pub(crate) struct Handshake {
    offer: Offer,
    deflate: Option<deflate::Config>,
}

/// The reason why a handshake failed.
pub(crate) struct WsRefused {
    pub(crate) failure: Failure,
    /// The status of a response other than 101.
    pub(crate) status: Option<u16>,
    pub(crate) rule: String,
}

/// The reason why an open WebSocket ended.
pub(crate) struct WsFailure {
    pub(crate) failure: Failure,
    pub(crate) rule: String,
    /// The code of the server's close frame.
    pub(crate) code: Option<u16>,
}

impl WsFailure {
    /// A protocol violation by the server.
    pub(crate) fn protocol_violation(rule: &str) -> Self {
        Self {
            failure: Failure::Protocol,
            rule: rule.into(),
            code: None,
        }
    }

    /// `None`: the event does not end the WebSocket.
    pub(crate) fn of(event: &ws::Event<'_>) -> Option<Self> {
        match event {
            ws::Event::Close { code, reason } => Some(Self {
                failure: Failure::Reset,
                rule: format!("the server closed the WebSocket: {code} {reason}"),
                code: Some(*code),
            }),
            // No close frame was received (RFC 6455 7.1.5).
            ws::Event::Failed(violation) if violation.code == 1006 => Some(Self {
                failure: Failure::Reset,
                ..Self::protocol_violation(violation.rule)
            }),
            ws::Event::Failed(violation) => Some(Self::protocol_violation(violation.rule)),
            _ => None,
        }
    }
}

impl Handshake {
    /// Sends the handshake for `target` on a new connection.
    pub(crate) fn begin(
        conn: &mut Connection,
        target: &Target,
        shared: &mut Scratch,
    ) -> Result<Self, UserError> {
        let is_protocols = |name: &[u8]| name.eq_ignore_ascii_case(b"Sec-WebSocket-Protocol");
        let fields = target.whole_fields();
        let named = fields.iter().filter(|(name, _)| is_protocols(name));
        let protocols: Vec<&[u8]> = named
            .flat_map(|(_, value)| value.split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .collect();
        let deflate = (target.messages)
            .filter(|messages| messages.deflate)
            .map(|_| deflate::Config::client());
        let offer = Offer::new(shared.nonce(), &protocols, deflate);
        let own = offer.fields();
        let given = fields.iter().filter(|(name, _)| !is_protocols(name));
        let given = given.map(|(name, value)| Field { name, value });
        let own = own.iter().map(|(name, value)| Field { name, value });
        let head = RequestHead {
            method: target.method.as_bytes(),
            target: target.path.as_bytes(),
            fields: &given.chain(own).collect::<Vec<_>>(),
        };
        conn.request(&head, BodySize::Empty)?;
        Ok(Self { offer, deflate })
    }

    /// Verifies the final response.
    pub(crate) fn end(
        &self,
        head: &HeadRef<'_>,
        limits: &Arc<ws::Limits>,
        now: Instant,
    ) -> Result<WebSocket, WsRefused> {
        let refusal = |failure, rule: String| WsRefused {
            failure,
            status: None,
            rule,
        };
        if head.status() != 101 {
            return Err(WsRefused {
                status: Some(head.status()),
                ..refusal(
                    Failure::Status,
                    format!("the WebSocket was refused with status {}", head.status()),
                )
            });
        }
        let agreed = self.offer.verify(head);
        let agreed = agreed.map_err(|rule| refusal(Failure::Protocol, rule.into()))?;
        let deflate = agreed.deflate.zip(self.deflate);
        if self.deflate.is_some() && deflate.is_none() {
            let rule = "the server does not agree on permessage-deflate";
            return Err(refusal(Failure::Content, rule.into()));
        }
        let limits = Arc::clone(limits);
        Ok(WebSocket::new(
            towline_proto::Side::Client,
            limits,
            deflate,
            now,
        ))
    }
}

/// Limits of a WebSocket with messages of up to `longest` bytes. No pings: the load keeps it alive.
pub(crate) fn limits(longest: usize) -> Arc<ws::Limits> {
    let usual = ws::Limits::default();
    Arc::new(ws::Limits {
        max_message_bytes: usual.max_message_bytes.max(longest),
        max_fragments_bytes: usual.max_fragments_bytes.max(longest),
        ping_interval: None,
        ping_timeout: None,
        ..usual
    })
}

/// Writes a message; `scratch` is empty before and after. Returns false if the WebSocket or its stream
/// is ending, which its events report.
pub(crate) fn send(
    socket: &mut WebSocket,
    mut stream: StreamMut<'_>,
    message: &Bytes,
    messages: Messages,
    (shared, scratch): (&mut Scratch, &mut Vec<u8>),
) -> bool {
    if message.len() <= SHORT_BYTES {
        let framed = socket.send(messages.kind, message, true, shared, scratch);
        let is_sent = framed.is_ok() && stream.write(scratch).is_ok();
        scratch.clear();
        return is_sent;
    }
    let Ok(frame) = socket.frame(messages.kind, message.clone(), true, shared) else {
        return false;
    };
    stream.write(frame.head.as_bytes()).is_ok() && stream.write_shared(frame.payload).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use towline_proto::ws::handshake::Request;
    use towline_proto::{BufferPool, Event, Limits, ResponseHead};

    use super::*;

    /// Passes all output of one end to the other.
    fn pass(from: &mut Connection, to: &mut Connection) {
        let (now, buffers) = (Instant::now(), &mut BufferPool::new(16 * 1024, 1));
        let mut slices = [IoSlice::new(&[]); 8];
        let count = from.send_slices(&mut slices);
        let bytes: Vec<u8> = slices[..count]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        to.recv_space(buffers)[..bytes.len()].copy_from_slice(&bytes);
        to.received(now, bytes.len());
        from.sent(now, bytes.len());
    }

    /// The failure class when the client offers, and the server grants, compression or not.
    fn granted(asks: bool, grants: bool) -> Result<(), &'static str> {
        let now = Instant::now();
        let mut client = Connection::client(Arc::new(Limits::client()), now);
        let mut server = Connection::server(Arc::new(Limits::server()), now);
        let mut target = Target::get("ws://a/").unwrap();
        target.messages.as_mut().unwrap().deflate = asks;
        let shared = &mut Scratch::new([1; 32]);
        let handshake = Handshake::begin(&mut client, &target, shared).unwrap();
        pass(&mut client, &mut server);
        let Some(Event::Head { stream, head, .. }) = server.next_event() else {
            panic!("no request");
        };
        let config = grants.then(deflate::Config::server);
        let accepted = Request::read(head).unwrap().accept(None, config.as_ref());
        let fields = accepted.fields.iter();
        let fields: Vec<_> = fields.map(|(name, value)| Field { name, value }).collect();
        let head = ResponseHead {
            status: accepted.status,
            reason: b"",
            fields: &fields,
        };
        server.respond(stream, &head, BodySize::Empty).unwrap();
        pass(&mut server, &mut client);
        let Some(Event::Head { head, .. }) = client.next_event() else {
            panic!("no answer");
        };
        match handshake.end(&head, &limits(0), now) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(refusal.failure.name()),
        }
    }

    #[test]
    fn requested_compression_is_required() {
        assert_eq!(granted(true, true), Ok(()));
        assert_eq!(granted(true, false), Err("content"));
        assert_eq!(granted(false, true), Ok(()), "a server never imposes it");
    }
}
