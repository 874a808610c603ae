//! Client `WebSockets` as both front ends see them: configuration, handshake, and the results of receiving and sending.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use rustls::crypto::ring;
use towline_proto::HeadRef;
use towline_proto::ws::handshake::{Agreement, Offer};
use towline_proto::ws::{self, Kind, SendError, deflate};

use super::request::{CallError, RequestText};

/// Maximum bytes of a message that are read before the program requests it.
pub(super) const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Maximum bytes kept of a response that rejects a WebSocket: enough for an error page, and at most one
/// flow-control window.
pub(super) const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Configuration of a WebSocket.
#[derive(Clone, Debug)]
pub struct WebSocketConfig {
    /// Subprotocols to offer, in order of preference.
    pub protocols: Vec<Vec<u8>>,
    /// permessage-deflate parameters to offer; `None` offers no compression.
    pub deflate: Option<deflate::Config>,
    pub limits: Arc<ws::Limits>,
}

/// How a WebSocket ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WsClosed {
    /// Code of RFC 6455 7.4.1, including 1005 (close frame without a code) and 1006 (no close frame).
    pub code: u16,
    pub reason: String,
    /// The rule that was violated, if the WebSocket did not end with a regular close.
    pub rule: Option<&'static str>,
}

/// Result of receiving a message.
#[derive(Debug)]
pub enum WsReceived<T> {
    Message(T),
    /// No message yet: [`CallEvent::Readable`](super::CallEvent::Readable) follows.
    Pending,
    /// No further messages follow.
    Closed(WsClosed),
    /// A timeout expired, or the connection failed.
    Failed(Box<CallError>),
}

/// Reason why nothing was sent.
#[derive(Debug)]
pub enum WsSendError {
    /// No room: wait for [`CallEvent::Writable`](super::CallEvent::Writable).
    NoRoom,
    Closed(WsClosed),
    Failed(Box<CallError>),
    /// The program violated the protocol, for example by its close code.
    Misuse(SendError),
}

/// A message or a ping to send.
#[derive(Clone, Debug)]
pub enum Outgoing<'a> {
    /// Text must be valid UTF-8; the caller guarantees it.
    Message(Kind, Bytes),
    Ping(&'a [u8]),
}

/// The handshake request of a WebSocket on one connection.
#[derive(Debug)]
pub(super) struct UpgradeRequest {
    offer: Offer,
    /// RFC 8441: the stream, not the connection, becomes the WebSocket.
    extended: bool,
}

impl UpgradeRequest {
    /// HTTP/1.1 upgrade (RFC 6455 4.1). `nonce` is 16 random bytes.
    pub(super) fn upgrade(config: &WebSocketConfig, nonce: [u8; 16]) -> Self {
        Self {
            offer: Offer::new(nonce, &protocols(config), config.deflate),
            extended: false,
        }
    }

    /// Extended CONNECT on HTTP/2 (RFC 8441 5).
    pub(super) fn extended(config: &WebSocketConfig) -> Self {
        Self {
            offer: Offer::extended(&protocols(config), config.deflate),
            extended: true,
        }
    }

    /// Returns the request with the headers of the handshake.
    pub(super) fn request(&self, text: &RequestText) -> RequestText {
        let mut request = if self.extended {
            let mut request = RequestText::new(b"CONNECT", text.target());
            request.push(b":protocol", b"websocket");
            for field in text.fields() {
                request.push(field.name, field.value);
            }
            request
        } else {
            text.clone()
        };
        for (name, value) in self.offer.fields() {
            request.push(name, &value);
        }
        request
    }

    /// Checks a final head. `None`: an ordinary response. `Err`: the server accepted but violated this rule.
    pub(super) fn check_response(
        &self,
        head: &HeadRef<'_>,
    ) -> Option<Result<Agreement, &'static str>> {
        let grants = if self.extended {
            (200..=299).contains(&head.status())
        } else {
            head.status() == 101
        };
        grants.then(|| self.offer.verify(head))
    }
}

fn protocols(config: &WebSocketConfig) -> Vec<&[u8]> {
    config.protocols.iter().map(Vec::as_slice).collect()
}

/// Creates the buffers, compressors and masks shared by the `WebSockets` of one client. Masks must be unpredictable
/// (RFC 6455 10.3).
pub(super) fn shared() -> io::Result<ws::Scratch> {
    let mut seed = [0; 32];
    let rng = ring::default_provider().secure_random;
    rng.fill(&mut seed)
        .map_err(|_| io::Error::other("the system's random number generator failed"))?;
    Ok(ws::Scratch::new(seed))
}
