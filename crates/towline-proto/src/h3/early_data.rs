//! Requests in early data (0-RTT), which an attacker may have recorded and sent again (RFC 9114 10.9, RFC 8470).
//!
//! ```text
//!  server                  ┌─ safe method, no body ─────► Head, with the field `early-data: 1`
//!  request, before the ────┤
//!  handshake is complete   └─ other ─ FrameState::Held ─► handshake complete ─► Head
//!
//!  client                  ┌─ safe method, no body ─────► sent
//!  request, before the ────┤
//!  handshake is complete   └─ other ─ waits_for_handshake ─► handshake complete ─► sent
//! ```
//!
//! A request that is held costs its client nothing: a client without early data would send it at the same time. So the
//! server waits (RFC 8470 3) instead of responding 425, for which clients that have a body must send it twice.

use bytes::Bytes;

use crate::StreamId;
use crate::field_compression::DecodedFields;
use crate::multiplexed::streams::StreamKey;

use super::Connection;
use super::stream::{FrameState, RecvState, RequestId};

/// Early data of a connection; the counts are those of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EarlyData {
    /// The handshake is not complete.
    pub(super) is_open: bool,
    /// The connection began with early data.
    pub(crate) was_open: bool,
    /// Requests delivered before the handshake was complete.
    pub delivered: u32,
    /// Requests held until it was complete.
    pub held: u32,
}

impl Connection {
    pub fn begin_early_data(&mut self) {
        self.early_data.is_open = true;
        self.early_data.was_open = true;
    }

    /// Each end has proved that it is there: nothing is held any more.
    pub fn end_early_data(&mut self) {
        if !std::mem::take(&mut self.early_data.is_open) {
            return;
        }
        for key in self.core.stream_keys() {
            let stream = self.core.stream_mut(key);
            if stream.own.input.state == FrameState::Held {
                self.mark_ready(key);
            } else if std::mem::take(&mut stream.own.waits_for_handshake) {
                self.update_send_queue(key);
            }
        }
    }

    /// Client: the server has refused the early data, and QUIC sends it again.
    pub fn refuse_early_data(&mut self) {
        for key in self.core.stream_keys() {
            self.core.stream_mut(key).own.is_early = false;
        }
        self.end_early_data();
    }

    pub fn was_sent_early(&self, id: StreamId) -> bool {
        let key = self.core.find(RequestId(id.0));
        key.is_some_and(|key| self.core.stream(key).own.is_early)
    }

    pub fn early_data(&self) -> EarlyData {
        self.early_data
    }

    /// Whether the request whose head was decoded last must wait for the handshake.
    pub(super) fn must_wait(&self, key: StreamKey, decoded: DecodedFields) -> bool {
        self.core.is_server()
            && self.early_data.is_open
            && decoded == DecodedFields::All
            && self.core.stream(key).exchange.recv_state == RecvState::Head
            && !(self.core.head_decoder().is_safe_request() && self.is_at_end(key))
    }

    /// Keeps a request until the handshake is complete.
    pub(super) fn hold(&mut self, key: StreamKey, section: &Bytes) {
        let stream = self.core.stream_mut(key);
        stream.own.input.hold(section);
        if !std::mem::replace(&mut stream.own.was_held, true) {
            self.early_data.held += 1;
        }
    }

    /// Shows the program that a request came in early data.
    pub(super) fn mark_early(&mut self) {
        if self.early_data.is_open {
            self.early_data.delivered += 1;
            self.core.head_decoder_mut().mark_early();
        }
    }
}
