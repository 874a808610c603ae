//! Ends of streams and of the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::body::Method;
use crate::error::CloseReason;
use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::refusals::Refused;
use crate::multiplexed::streams::StreamKey;
use crate::{
    ConnectionError, ErrorCode, PeerClose, QuicCommand, Refusal, Side, StreamError, StreamId,
};

use super::qpack::cancel_stream;
use super::rules::{self, Fault};
use super::stream::{EndStream, RecvSide, RecvState, SendSide, SendState, Tunnel};
use super::{ANY_REQUEST, Connection, GoAwayState, Loss, Phase};

impl Connection {
    // Streams.

    /// Adds a pending event of a stream.
    pub(super) fn notify(&mut self, key: StreamKey, event: u8) {
        let stream = self.streams.get_mut(key);
        stream.exchange.pending.set(event);
        if !std::mem::replace(&mut stream.has_events, true) {
            self.eventful.push_back(key);
        }
    }

    /// Closes the stream if both directions and the program are done with it.
    pub(super) fn check_closed(&mut self, key: StreamKey) {
        let stream = self.streams.get(key);
        let is_sent = stream.outbox.end == EndStream::Sent;
        if !is_sent || !stream.exchange.is_complete(self.side) || stream.is_closed {
            return;
        }
        let exchange = &stream.exchange;
        let is_uploading = self.side == Side::Server
            && stream.recv_side == RecvSide::Open
            && exchange.recv_state == RecvState::Body
            && !exchange.awaits_continue
            && exchange.method != Method::Connect;
        if !is_uploading {
            self.stop_discarding(key);
        } else if stream.discard_until.is_none() {
            self.discard_request(key);
        }
    }

    /// Skips what the client still sends of its request: the response is complete.
    fn discard_request(&mut self, key: StreamKey) {
        let until = self.now + self.discard_timeout();
        self.cancel_sections(self.streams.get(key).id.0);
        self.unmark_ready(key);
        self.forget_input(key);
        let stream = self.streams.get_mut(key);
        stream.inbox.clear();
        stream.discard_until = Some(until);
        self.watch_body(key);
        self.list_readable(key, 0);
    }

    /// Time for the rest of a request that is skipped.
    fn discard_timeout(&self) -> Duration {
        if self.closing {
            self.limits.drain_idle_timeout
        } else {
            self.limits.discard_timeout
        }
    }

    /// The rest of the request is not waited for any longer (RFC 9114 4.1).
    pub(super) fn stop_discarding(&mut self, key: StreamKey) {
        self.streams.get_mut(key).discard_until = None;
        self.stop_receiving(key, ErrorCode::H3_NO_ERROR);
        self.mark_closed(key);
    }

    /// A server that stops leaves less time to requests that are skipped.
    fn shorten_discarding(&mut self) {
        let latest = self.now + self.discard_timeout();
        for key in self.streams.iter() {
            if let Some(until) = &mut self.streams.get_mut(key).discard_until {
                *until = latest.min(*until);
                self.timers.streams = Some(self.now);
            }
        }
    }

    /// Marks a stream as closed: its slot is freed on the next call of `next_event`.
    pub(super) fn mark_closed(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if !std::mem::replace(&mut stream.is_closed, true) {
            self.closed.push(key);
            self.watch_idleness();
        }
    }

    /// The program is done with a failed stream; a response of our own may still be sent.
    pub(super) fn release_failed(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if !stream.wants_to_send() {
            return self.mark_closed(key);
        }
        stream.is_announced = false;
        stream.exchange.send_state = SendState::Complete;
    }

    /// Frees the slots of closed streams.
    pub(super) fn remove_closed(&mut self) {
        while let Some(key) = self.closed.pop() {
            if self.streams.get(key).has_events {
                self.eventful.retain(|other| *other != key);
            }
            self.unmark_ready(key);
            self.forget_input(key);
            self.clear_outbox(key);
            self.streams.remove(key);
        }
    }

    /// Removes a stream from the lists of those that receive.
    fn forget_input(&mut self, key: StreamKey) {
        self.blocked.retain(|other| *other != key);
        let stream = self.streams.get_mut(key);
        stream.input.clear();
        if std::mem::take(&mut stream.is_listed) {
            let id = stream.id.0;
            self.readable.retain(|&other| other != id);
        }
    }

    /// Fails a stream for the program. It gets an event, unless it is done with the stream or never knew it.
    fn fail(&mut self, key: StreamKey, error: StreamError) {
        self.forget_input(key);
        let stream = self.streams.get_mut(key);
        let is_used = stream.exchange.fail(self.side);
        stream.inbox.clear();
        stream.head_since = None;
        stream.recv_timer.stop();
        if is_used && stream.is_announced {
            stream.exchange.failure = Some(error);
            return self.notify(key, PendingEvents::FAILED);
        }
        self.release_failed(key);
    }

    /// Abandons both directions of the QUIC stream.
    fn stop_both(&mut self, key: StreamKey, code: ErrorCode) {
        self.stop_sending(key, code);
        self.stop_receiving(key, code);
    }

    /// Abandons sending, unless the end was sent.
    fn stop_sending(&mut self, key: StreamKey, code: ErrorCode) {
        self.clear_outbox(key);
        let stream = self.streams.get_mut(key);
        stream.send_timer.stop();
        stream.outbox.end = EndStream::Sent;
        if stream.send_side == SendSide::Open {
            stream.send_side = SendSide::Reset;
            let (id, code) = (stream.id.0, code.0);
            self.commands.push_back(QuicCommand::Reset { id, code });
        }
    }

    /// Abandons reading, unless the end was received.
    pub(super) fn stop_receiving(&mut self, key: StreamKey, code: ErrorCode) {
        let stream = self.streams.get_mut(key);
        let id = stream.id.0;
        let is_parsed = stream.input.held() == 0;
        match stream.recv_side {
            RecvSide::Open => {
                stream.recv_side = RecvSide::Stopped;
                let code = code.0;
                self.commands
                    .push_back(QuicCommand::StopSending { id, code });
            }
            // Field sections that were received are not decoded.
            RecvSide::Ended if !is_parsed => {}
            RecvSide::Ended | RecvSide::Stopped => return,
        }
        self.cancel_sections(id);
        self.forget_input(key);
    }

    /// Tells the peer that no more field sections of a stream are decoded (RFC 9204 4.4.2).
    fn cancel_sections(&mut self, id: u64) {
        if self.limits.http3.qpack_table_bytes > 0 {
            cancel_stream(id, &mut self.acknowledgements);
        }
    }

    /// Resets a stream after a violation or a timeout. `Err`: the rate limit of resets is exceeded.
    pub(super) fn reset_stream(&mut self, key: StreamKey, fault: Fault) -> Result<(), Fault> {
        let stream = self.streams.get(key);
        let refused = if stream.is_announced {
            Refused::Stream(StreamId(stream.id.0), fault.reason)
        } else {
            Refused::Head(fault.reason)
        };
        self.record_refusal(refused, 0, fault.rule);
        // Before the stream fails: the connection may end with its last stream.
        let charged = self.charge_reset();
        self.stop_both(key, fault.code);
        self.fail(key, fault.stream_error());
        charged
    }

    /// Fails a stream for the program after a response of our own, which is still sent.
    pub(super) fn fail_after_response(
        &mut self,
        key: StreamKey,
        status: u16,
        fault: Fault,
    ) -> Result<(), Fault> {
        let id = self.id_of(key);
        self.record_refusal(Refused::Stream(id, fault.reason), status, fault.rule);
        let charged = self.charge_reset();
        self.stop_receiving(key, fault.code);
        self.fail(key, fault.stream_error());
        charged
    }

    /// Rejects a new stream of the peer without opening it.
    pub(super) fn reject_stream(&mut self, id: u64, fault: Fault) {
        self.head_decoder.clear();
        self.record_refusal(Refused::Head(fault.reason), 0, fault.rule);
        let code = fault.code.0;
        self.commands.push_back(QuicCommand::Reset { id, code });
        self.commands
            .push_back(QuicCommand::StopSending { id, code });
        self.cancel_sections(id);
    }

    /// Resets by either side are charged to one bucket, as over HTTP/2 (CVE-2023-44487, CVE-2025-8671). A server cannot
    /// attack its client in this way, since the client opens the streams.
    pub(super) fn charge_reset(&mut self) -> Result<(), Fault> {
        let limit = self.limits.http3.resets;
        if self.side == Side::Client || self.resets.take(limit, self.now) {
            Ok(())
        } else {
            Err(rules::RESETS)
        }
    }

    /// The peer has reset its direction of a stream.
    pub(super) fn reset_by_peer(&mut self, key: StreamKey, code: u64) -> Result<(), Fault> {
        let stream = self.streams.get_mut(key);
        if stream.recv_side != RecvSide::Open {
            return Ok(());
        }
        stream.recv_side = RecvSide::Stopped;
        let id = stream.id.0;
        self.cancel_sections(id);
        self.forget_input(key);
        let charged = self.charge_reset();
        let is_over = matches!(
            self.streams.get(key).exchange.recv_state,
            RecvState::Ended | RecvState::Done | RecvState::Failed
        );
        if !is_over {
            self.stop_both(key, ErrorCode::H3_REQUEST_CANCELLED);
            self.fail(key, self.error_of(code));
        }
        charged
    }

    /// The error of a stream that the peer has reset with this code.
    fn error_of(&self, code: u64) -> StreamError {
        match ErrorCode(code) {
            ErrorCode::H3_REQUEST_REJECTED if self.side == Side::Client => {
                StreamError::Refused(rules::BY_REJECTION)
            }
            // The code requires that the request is sent again, so it was not processed.
            ErrorCode::H3_VERSION_FALLBACK if self.side == Side::Client => {
                StreamError::Http1Required {
                    unprocessed: true,
                    code: rules::VERSION_FALLBACK,
                }
            }
            code => StreamError::ResetByPeer(code),
        }
    }

    /// The peer wants no more of a stream.
    pub(super) fn stopped_by_peer(&mut self, key: StreamKey, code: u64) -> Result<(), Fault> {
        let stream = self.streams.get(key);
        match stream.send_side {
            SendSide::Open => {}
            SendSide::Ended => {
                self.one_acknowledged();
                return Ok(());
            }
            SendSide::Reset => return Ok(()),
        }
        let is_unprocessed = matches!(
            ErrorCode(code),
            ErrorCode::H3_REQUEST_REJECTED | ErrorCode::H3_VERSION_FALLBACK
        );
        if self.side == Side::Client && !is_unprocessed {
            // The rest of the request is not needed; there may be a response (RFC 9114 4.1).
            self.stop_sending(key, ErrorCode::H3_REQUEST_CANCELLED);
            self.discard_body(key);
            return Ok(());
        }
        let charged = self.charge_reset();
        self.stop_both(key, ErrorCode::H3_REQUEST_CANCELLED);
        self.fail(key, self.error_of(code));
        charged
    }

    /// Discards everything that the program still writes.
    fn discard_body(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if matches!(
            stream.exchange.send_state,
            SendState::Body(_) | SendState::Head
        ) {
            stream.exchange.send_state = SendState::Discard;
            stream.exchange.pending.take(PendingEvents::WRITER_WAITS);
            self.notify(key, PendingEvents::WRITABLE);
        }
        self.check_closed(key);
    }

    /// Resets a stream for the program, or releases one that has failed.
    pub fn reset(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if stream.is_closed || self.side == Side::Client && stream.exchange.is_complete(self.side) {
            // Closed, or as soon as the rest of the request has been sent.
            return;
        }
        if stream.has_failed() {
            return self.release_failed(key);
        }
        if stream.exchange.send_state == SendState::Complete
            && stream.exchange.tunnel == Tunnel::Open
        {
            // As after a response: what was sent is complete, and the rest is not needed.
            stream.exchange.tunnel = Tunnel::None;
            stream.exchange.recv_state = RecvState::Done;
            self.stop_receiving(key, ErrorCode::H3_NO_ERROR);
            return self.check_closed(key);
        }
        let code = match self.side {
            Side::Client => ErrorCode::H3_REQUEST_CANCELLED,
            Side::Server => ErrorCode::H3_INTERNAL_ERROR,
        };
        self.stop_both(key, code);
        self.fail(key, StreamError::Reset);
        self.mark_closed(key);
    }

    // The connection.

    /// The peer has acknowledged a whole stream, or does not want it.
    pub(super) fn one_acknowledged(&mut self) {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
        self.check_acknowledged();
    }

    /// The peer acknowledges what was sent: closing waits longer, because QUIC discards the rest.
    pub fn transport_progressed(&mut self, now: Instant) {
        self.set_now(now);
        if let Phase::Closing { progress, .. } = &mut self.phase {
            *progress = now;
        }
    }

    /// Closes when all is acknowledged.
    fn check_acknowledged(&mut self) {
        if matches!(self.phase, Phase::Closing { .. }) && self.unacknowledged == 0 {
            self.finish_closing();
        }
    }

    /// Gives QUIC the order to close.
    pub(super) fn finish_closing(&mut self) {
        self.phase = Phase::Closed;
        let code = ErrorCode::H3_NO_ERROR.0;
        self.commands
            .push_back(QuicCommand::Close { code, reason: "" });
    }

    /// Handles the peer's GOAWAY: requests from `first` on are not processed.
    pub(super) fn on_peer_go_away(&mut self, first: u64) {
        self.peer_go_away = Some(first);
        self.conn_events.going_away = Some(first);
        for key in self.streams.iter() {
            let stream = self.streams.get(key);
            if stream.id.0 >= first && !stream.has_failed() && !stream.is_closed {
                self.stop_both(key, ErrorCode::H3_REQUEST_CANCELLED);
                self.fail(key, StreamError::Refused(rules::BY_GOAWAY));
            }
        }
        self.close_if_drained();
    }

    /// As `close`: GOAWAY needs no idle time, because the peer knows which of its requests were processed.
    pub fn drain(&mut self, now: Instant) {
        self.set_now(now);
        self.close();
    }

    pub fn close(&mut self) {
        if self.phase != Phase::Open || std::mem::replace(&mut self.closing, true) {
            return;
        }
        self.shorten_discarding();
        match (self.side, self.timers.idle.closing()) {
            (Side::Client, _) => {
                if self.is_busy() {
                    // No push is accepted.
                    self.write_go_away(0);
                }
                self.go_away = GoAwayState::Final(0);
                self.close_if_drained();
            }
            (Side::Server, Some(closing)) => self.timers.idle = closing,
            (Side::Server, None) if self.peer_requests.next() == 0 => self.announce_go_away_later(),
            (Side::Server, None) => self.announce_go_away(),
        }
    }

    /// Leaves time for a first request, as over HTTP/2.
    pub(super) fn announce_go_away_later(&mut self) {
        self.timers.go_away_at = Some(self.now + self.limits.http3.go_away_delay);
    }

    /// Announces GOAWAY: the final one follows when requests that are on their way have arrived (RFC 9114 5.2).
    pub(super) fn announce_go_away(&mut self) {
        if self.go_away != GoAwayState::None {
            return;
        }
        self.go_away = GoAwayState::Announced;
        self.timers.go_away_at = Some(self.now + self.limits.http3.go_away_delay);
        self.write_go_away(ANY_REQUEST);
    }

    /// Sends the final GOAWAY: later requests are rejected. The connection stays for them for a while, since the peer
    /// may have sent them before it knew.
    pub(super) fn send_final_go_away(&mut self) {
        let first = self.peer_requests.next();
        self.go_away = GoAwayState::Final(first);
        self.timers.go_away_at = Some(self.now + self.limits.http3.go_away_delay);
        self.write_go_away(first);
    }

    /// Closes the connection if GOAWAY was exchanged and no stream is open.
    pub(super) fn close_if_drained(&mut self) {
        let is_going_away = match self.go_away {
            GoAwayState::Final(_) => self.timers.go_away_at.is_none(),
            GoAwayState::None | GoAwayState::Announced => false,
        };
        let is_left = is_going_away || self.peer_go_away.is_some();
        if is_left && !self.is_busy() && self.phase == Phase::Open {
            self.close_gracefully(rules::DONE);
        }
    }

    /// Orderly end: QUIC closes when the peer has acknowledged everything.
    pub(super) fn close_gracefully(&mut self, error: ConnectionError) {
        if self.phase != Phase::Open {
            return;
        }
        let longest = self.limits.body_timeout;
        self.phase = Phase::Closing {
            progress: self.now,
            until: longest.map(|longest| self.now + longest),
        };
        self.fail_streams(Loss { error, close: None });
        if self.side == Side::Client {
            // Responses are here, so that nothing that was sent is needed.
            return self.finish_closing();
        }
        self.check_acknowledged();
    }

    /// Keeps what the program's logs need of a fault of the client.
    #[cold]
    pub(super) fn record_refusal(&mut self, refused: Refused, status: u16, rule: &'static str) {
        if self.side == Side::Server {
            self.refusals
                .record(refused, status, rule, &self.head_decoder);
        }
    }

    pub fn has_refusals(&self) -> bool {
        !self.refusals.is_empty()
    }

    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusals.take()
    }

    /// The fault that has ended the stream `id`: its status (0: no response was sent) and its rule.
    pub fn refusal_of(&self, id: StreamId) -> Option<(u16, CloseReason, &'static str)> {
        self.streams.get(self.find(id).ok()?).exchange.refusal()
    }

    /// Ends the connection after a violation or a timeout.
    #[cold]
    pub(super) fn fail_connection(&mut self, fault: Fault) {
        if self.phase != Phase::Open {
            return;
        }
        if fault.code != ErrorCode::H3_NO_ERROR {
            self.record_refusal(Refused::Connection(fault.reason), 0, fault.rule);
        }
        self.end_connection(fault.error());
        self.commands.clear();
        self.commands.push_back(QuicCommand::Close {
            code: fault.code.0,
            reason: fault.rule,
        });
    }

    /// QUIC has closed. Streams of which it still has bytes can be read to their end: a server closes when all that it
    /// has sent is acknowledged, not when it is read.
    pub(super) fn lose_connection(&mut self, loss: Loss) {
        if self.lost.is_some() {
            return;
        }
        self.lost = Some(Box::new(loss));
        self.timers.stop();
        self.check_lost();
    }

    /// Ends a lost connection when nothing more can be read from QUIC.
    pub(super) fn check_lost(&mut self) {
        if self.lost.is_none() || self.phase != Phase::Open {
            return;
        }
        let mut streams = self.streams.iter();
        let is_read = streams.all(|key| {
            let stream = self.streams.get(key);
            stream.is_closed || !(stream.is_readable || stream.is_ready)
        });
        if is_read && let Some(loss) = self.lost.take() {
            self.end(*loss);
        }
    }

    pub(super) fn end_connection(&mut self, error: ConnectionError) {
        self.end(Loss { error, close: None });
    }

    /// Nothing more is sent or received.
    fn end(&mut self, loss: Loss) {
        let was_open = self.phase == Phase::Open;
        self.phase = Phase::Closed;
        if was_open {
            self.fail_streams(loss);
        }
        self.own_streams.clear();
    }

    /// Fails every incomplete stream.
    fn fail_streams(&mut self, loss: Loss) {
        let error = Arc::clone(self.error.get_or_insert_with(|| Arc::new(loss.error)));
        let is_early = self.side == Side::Client && self.early_data.is_open;
        let peer_close = loss.close.filter(PeerClose::is_error);
        let failure = match peer_close {
            Some(close) if self.side == Side::Client => StreamError::ClosedByPeer {
                unprocessed: false,
                close: Arc::new(close),
            },
            _ => StreamError::Connection(error),
        };
        for key in self.streams.iter() {
            let stream = self.streams.get(key);
            if stream.is_closed || stream.has_failed() {
                continue;
            }
            self.clear_outbox(key);
            let stream = self.streams.get_mut(key);
            stream.send_side = SendSide::Reset;
            stream.outbox.end = EndStream::Sent;
            let has_response = matches!(
                stream.exchange.recv_state,
                RecvState::Ended | RecvState::Done
            );
            if self.side == Side::Client && has_response {
                self.discard_body(key);
            } else if is_early {
                // What was sent is safe, so that it may be sent again.
                self.fail(key, StreamError::Refused(rules::IN_EARLY_DATA));
            } else {
                self.fail(key, failure.clone());
            }
        }
        self.timers.stop();
        self.readable.clear();
        self.conn_events.closed = true;
    }
}
