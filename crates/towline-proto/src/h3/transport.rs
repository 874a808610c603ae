//! The interface to QUIC: streams to read, bytes to send, orders.

use std::time::Instant;

use bytes::Bytes;

use crate::error::aborted;
use crate::multiplexed::{Lifecycle, Timing};
use crate::{
    ConnectionError, ErrorCode, PeerClose, QuicClose, QuicCommand, StreamRecv, StreamSend,
};

use super::opened::Order;
use super::rules::{self, Fault};
use super::stream::{RecvSide, RequestId};
use super::unidirectional::{DECODER, ENCODER, PeerStream};
use super::{Connection, Loss, Phase};

/// Bytes of a unidirectional stream that are read at once.
const MAX_RECV_BYTES: usize = 16 * 1024;

/// Number of a stream, by its two low bits (RFC 9000 2.1).
const CLIENT_BIDIRECTIONAL: u64 = 0;
const SERVER_BIDIRECTIONAL: u64 = 1;

impl Connection {
    // From QUIC.

    pub fn stream_readable(&mut self, now: Instant, id: u64) {
        self.set_now(now);
        if self.phase != Phase::Open {
            return;
        }
        let result = match id % 4 {
            CLIENT_BIDIRECTIONAL => self.request_readable(id),
            SERVER_BIDIRECTIONAL if self.core.is_client() => Err(rules::SERVER_BIDI),
            SERVER_BIDIRECTIONAL => Ok(()),
            _ => self.unidirectional_readable(id),
        };
        if let Err(fault) = result {
            self.fail_connection(fault);
        }
    }

    fn unidirectional_readable(&mut self, id: u64) -> Result<(), Fault> {
        let is_own = (id % 4 == 2) == (self.core.is_client());
        if is_own {
            return Ok(());
        }
        let mut streams = self.peer_streams.iter();
        let place = match streams.position(|stream| stream.id == id) {
            Some(place) => place,
            None => match self.peer_unidirectional.see(id) {
                Order::First => {
                    self.peer_streams.push(PeerStream::new(id));
                    self.peer_streams.len() - 1
                }
                // The type of the stream is unknown, and reading was abandoned.
                Order::Before => return Ok(()),
                Order::Impossible => return Err(rules::STREAM_ID),
            },
        };
        let stream = &mut self.peer_streams[place];
        if !std::mem::replace(&mut stream.is_listed, true) {
            // Before requests, which may need what they say.
            self.core.own_mut().readable.push_front(id);
        }
        Ok(())
    }

    fn request_readable(&mut self, id: u64) -> Result<(), Fault> {
        if let Some(key) = self.core.find(RequestId(id)) {
            self.core.stream_mut(key).own.is_readable = true;
            self.list_readable(key, 0);
            return Ok(());
        }
        if self.core.is_client() {
            return Ok(());
        }
        match self.peer_requests.see(id) {
            Order::First => self.begin_request_stream(id),
            Order::Before => Ok(()),
            Order::Impossible => Err(rules::STREAM_ID),
        }
    }

    pub fn next_stream_recv(&mut self) -> Option<StreamRecv> {
        while let Some(&id) = self.core.own_mut().readable.front() {
            let max_bytes = match self.core.find(RequestId(id)) {
                Some(key) => self.room(key),
                None if id % 4 >= 2 => MAX_RECV_BYTES,
                None => 0,
            };
            if max_bytes > 0 {
                return Some(StreamRecv { id, max_bytes });
            }
            self.unlist_front();
        }
        None
    }

    fn unlist_front(&mut self) {
        if let Some(id) = self.core.own_mut().readable.pop_front() {
            self.set_listed(id, false);
        }
    }

    fn set_listed(&mut self, id: u64, is_listed: bool) {
        if let Some(key) = self.core.find(RequestId(id)) {
            self.core.stream_mut(key).own.is_listed = is_listed;
        } else if let Some(place) = self.peer_stream(id) {
            self.peer_streams[place].is_listed = is_listed;
        }
    }

    fn peer_stream(&self, id: u64) -> Option<usize> {
        self.peer_streams.iter().position(|stream| stream.id == id)
    }

    /// Removes a stream from those that QUIC has bytes of.
    fn unlist(&mut self, id: u64) {
        if self.core.own_mut().readable.front() == Some(&id) {
            self.unlist_front();
        } else {
            self.core.own_mut().readable.retain(|&other| other != id);
            self.set_listed(id, false);
        }
    }

    pub fn stream_received(&mut self, now: Instant, id: u64, data: Bytes) {
        self.set_now(now);
        if self.phase != Phase::Open || data.is_empty() {
            return;
        }
        self.core.set_response_started(true);
        if let Some(key) = self.core.find(RequestId(id)) {
            let stream = self.core.stream_mut(key);
            if stream.own.recv_side != RecvSide::Open {
                return;
            }
            stream.stats.received += data.len() as u64;
            if stream.discard_until.is_some() {
                stream.recv_timer.advance(now, data.len());
                return;
            }
            stream.own.input.push(data);
            self.mark_ready(key);
        } else if let Some(place) = self.peer_stream(id)
            && let Err(fault) = self.receive_on_peer_stream(place, &data)
        {
            self.fail_connection(fault);
        }
    }

    pub fn stream_end(&mut self, now: Instant, id: u64) {
        self.set_now(now);
        self.unlist(id);
        if self.phase != Phase::Open {
            return;
        }
        if let Some(key) = self.core.find(RequestId(id)) {
            let stream = self.core.stream_mut(key);
            stream.own.is_readable = false;
            if stream.own.recv_side == RecvSide::Open {
                stream.own.recv_side = RecvSide::Ended;
                if stream.discard_until.is_some() {
                    return self.stop_discarding(key);
                }
                self.mark_ready(key);
            }
        } else if let Some(place) = self.peer_stream(id)
            && let Err(fault) = self.end_peer_stream(place)
        {
            self.fail_connection(fault);
        }
    }

    pub fn stream_reset_received(&mut self, now: Instant, id: u64, code: u64) {
        self.set_now(now);
        self.unlist(id);
        if self.phase != Phase::Open {
            return;
        }
        let result = if let Some(key) = self.core.find(RequestId(id)) {
            self.core.stream_mut(key).own.is_readable = false;
            self.reset_by_peer(key, code)
        } else if let Some(place) = self.peer_stream(id) {
            self.end_peer_stream(place)
        } else {
            Ok(())
        };
        if let Err(fault) = result {
            self.fail_connection(fault);
        }
    }

    pub fn stream_drained(&mut self, id: u64) {
        self.unlist(id);
        if let Some(key) = self.core.find(RequestId(id)) {
            self.core.stream_mut(key).own.is_readable = false;
        }
        self.check_lost();
    }

    pub fn stream_stop_received(&mut self, now: Instant, id: u64, code: u64) {
        self.set_now(now);
        if self.phase != Phase::Open {
            return self.one_acknowledged();
        }
        let result = if let Some(key) = self.core.find(RequestId(id)) {
            self.stopped_by_peer(key, code)
        } else if self.own_streams.has(id) {
            Err(rules::CRITICAL_STREAM)
        } else {
            self.one_acknowledged();
            Ok(())
        };
        if let Err(fault) = result {
            self.fail_connection(fault);
        }
    }

    pub fn set_stream_credit(&mut self, now: Instant, bidi_available: u64) {
        self.set_now(now);
        self.own_requests.set_credit(bidi_available);
    }

    pub fn quic_closed(&mut self, now: Instant, close: &QuicClose) {
        self.set_now(now);
        if self.phase == Phase::Closed {
            return;
        }
        let mut peer_close = None;
        let error = match close {
            QuicClose::ByApplication { code, reason } => {
                peer_close = Some(PeerClose::new(ErrorCode(*code), reason, false));
                closed_with(*code)
            }
            QuicClose::ByTransport(rule) => aborted(rule),
            QuicClose::IdleTimeout => rules::QUIC_IDLE,
        };
        self.commands.clear();
        if self.core.is_client() && self.phase == Phase::Open {
            // The program can still read the bytes that have arrived.
            return self.lose_connection(Loss {
                error,
                close: peer_close,
            });
        }
        self.end_connection(error);
    }

    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        self.quic_closed(now, &QuicClose::ByTransport(rule));
    }

    // To QUIC.

    pub fn next_quic_command(&mut self) -> Option<QuicCommand> {
        self.commands.pop_front()
    }

    pub fn next_stream_send(&mut self) -> Option<StreamSend> {
        if self.phase == Phase::Closed || self.lost.is_some() {
            return None;
        }
        self.collect_instructions();
        if self.own_streams.unsent_bytes() > self.core.limits().http3.max_queued_bytes {
            self.fail_connection(rules::UNREAD);
            return None;
        }
        let send = match self.own_streams.next_send() {
            Some(send) => send,
            None => self.next_request_send()?,
        };
        self.offered = (send.id, send.data.len());
        Some(send)
    }

    /// Moves what QPACK has to say to our streams.
    fn collect_instructions(&mut self) {
        if self.encoder.has_unsent() {
            let unsent = self.encoder.take_unsent();
            self.own_streams.outbox(ENCODER).push(&unsent);
        }
        if self.acknowledgements.is_due(&self.decoder) {
            let acknowledgements = self.acknowledgements.take(&mut self.decoder);
            self.own_streams.outbox(DECODER).push(&acknowledgements);
        }
    }

    /// Whether there is an order or a byte for QUIC.
    pub(super) fn has_output(&self) -> bool {
        if self.phase == Phase::Closed || self.lost.is_some() {
            return !self.commands.is_empty();
        }
        !self.commands.is_empty()
            || self.core.has_queued()
            || self.own_streams.has_output()
            || self.encoder.has_unsent()
            || self.acknowledgements.is_due(&self.decoder)
    }

    pub fn stream_sent(&mut self, now: Instant, id: u64, n: usize, end: bool) {
        self.set_now(now);
        let is_blocked = self.offered.0 == id && n < self.offered.1;
        if self.own_streams.sent(id, n, is_blocked) {
            return;
        }
        if let Some(key) = self.core.find(RequestId(id)) {
            self.request_sent(key, n, end);
        }
    }

    pub fn stream_writable(&mut self, now: Instant, id: u64) {
        self.set_now(now);
        if let Some(key) = self.core.find(RequestId(id)) {
            self.core.stream_mut(key).own.is_send_blocked = false;
            self.update_send_queue(key);
        } else {
            self.own_streams.writable(id);
        }
    }

    pub fn stream_acknowledged(&mut self, now: Instant, id: u64) {
        self.set_now(now);
        if !self.own_streams.has(id) {
            self.one_acknowledged();
        }
    }
}

/// How the peer has closed. Unknown codes are as `H3_NO_ERROR` (RFC 9114 8).
fn closed_with(code: u64) -> ConnectionError {
    match code {
        0x101..=0x110 | 0x200..=0x202 => rules::REFUSED_BY_PEER,
        _ => rules::BY_PEER,
    }
}
