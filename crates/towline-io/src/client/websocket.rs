//! WebSocket types common to the asynchronous and the blocking client.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use rustls::crypto::ring;
use towline_proto::HeadRef;
use towline_proto::ws::handshake::{Agreement, Offer};
use towline_proto::ws::{self, Kind, SendError, deflate};

use super::request::{CallError, RequestText};

/// Bytes read ahead of a message before the program receives.
pub(super) const AHEAD_BYTES: usize = 64 * 1024;

/// The most that is kept of the content with which a server refuses a WebSocket: enough for any page that says
/// why, and no more than one window holds.
pub(super) const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Configuration of a WebSocket.
#[derive(Clone, Debug)]
pub struct WebSocketConfig {
    /// The subprotocols that it speaks, the best first.
    pub protocols: Vec<Vec<u8>>,
    /// permessage-deflate parameters to offer; `None`: no offer.
    pub deflate: Option<deflate::Config>,
    pub limits: Arc<ws::Limits>,
}

/// How a WebSocket has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WsClosed {
    /// Of RFC 6455 7.4.1, with 1005 (the close frame had none) and 1006 (there was no close frame).
    pub code: u16,
    pub reason: String,
    /// The broken rule, unless the close was regular.
    pub rule: Option<&'static str>,
}

/// Outcome of receiving a message.
#[derive(Debug)]
pub enum WsReceived<T> {
    Message(T),
    /// Nothing yet: [`CallEvent::Readable`](super::CallEvent::Readable) follows.
    Pending,
    /// There will be no more.
    Closed(WsClosed),
    /// The connection ran out of time.
    Failed(Box<CallError>),
}

/// Why nothing was sent.
#[derive(Debug)]
pub enum WsSendError {
    /// Wait for [`CallEvent::Writable`](super::CallEvent::Writable).
    NoRoom,
    Closed(WsClosed),
    Failed(Box<CallError>),
    /// The program's mistake.
    Mistake(SendError),
}

/// An outgoing message.
#[derive(Clone, Debug)]
pub enum Outgoing<'a> {
    /// Text is UTF-8: that is the program's word.
    Message(Kind, Bytes),
    Ping(&'a [u8]),
}

/// A WebSocket that has been asked for on a connection.
#[derive(Debug)]
pub(super) struct UpgradeRequest {
    offer: Offer,
    /// RFC 8441: the stream, and not the connection, becomes the WebSocket.
    extended: bool,
}

impl UpgradeRequest {
    /// RFC 6455 4.1. `nonce` is sixteen bytes of chance.
    pub(super) fn upgrade(config: &WebSocketConfig, nonce: [u8; 16]) -> Self {
        Self {
            offer: Offer::new(nonce, &protocols(config), config.deflate),
            extended: false,
        }
    }

    /// RFC 8441 5.
    pub(super) fn extended(config: &WebSocketConfig) -> Self {
        Self {
            offer: Offer::extended(&protocols(config), config.deflate),
            extended: true,
        }
    }

    /// The request with the handshake's fields.
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

    /// Checks a final response head. `None`: an ordinary response. `Err`: the rule that the accepted upgrade breaks.
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

/// Buffers, compressors and masks for the `WebSockets` of one caller. A client's masks must not be foreseeable.
pub(super) fn shared() -> io::Result<ws::Scratch> {
    let mut seed = [0; 32];
    let chance = ring::default_provider().secure_random;
    chance
        .fill(&mut seed)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(ws::Scratch::new(seed))
}
