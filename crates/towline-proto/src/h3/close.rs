//! Ends of streams and of the connection.

use std::sync::Arc;
use std::time::Instant;

use crate::body::Method;
use crate::error::DONE;
use crate::multiplexed::refusals::Refused;
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Lifecycle, Timing};
use crate::pending_events::PendingEvents;
use crate::{ConnectionError, ErrorCode, PeerClose, QuicCommand, Side, StreamError, StreamId};

use super::rules::{self, Fault};
use super::stream::{EndStream, RecvSide, RecvState, SendSide, SendState};
use super::{ANY_REQUEST, Connection, GoAwayState, Loss, Phase};

impl Connection {
    // Streams.

    /// Skips what the client still sends of its request: the response is complete.
    fn discard_request(&mut self, key: StreamKey) {
        let until = self.discard_until();
        self.cancel_sections(self.core.stream(key).id.0);
        self.unmark_ready(key);
        self.forget_input(key);
        let stream = self.core.stream_mut(key);
        stream.inbox.clear();
        stream.discard_until = Some(until);
        self.watch_body(key);
        self.list_readable(key, 0);
    }

    /// Frees the slots of closed streams.
    pub(super) fn remove_closed(&mut self) {
        while let Some(key) = self.core.take_closed() {
            self.unmark_ready(key);
            self.forget_input(key);
            self.core.remove_stream(key);
        }
    }

    /// Removes a stream from the lists of those that receive.
    fn forget_input(&mut self, key: StreamKey) {
        self.blocked.retain(|other| *other != key);
        let stream = self.core.stream_mut(key);
        stream.own.input.clear();
        if std::mem::take(&mut stream.own.is_listed) {
            let id = stream.id.0;
            self.core.own_mut().readable.retain(|&other| other != id);
        }
    }

    /// Fails a stream for the program. It gets an event, unless it is done with the stream or never knew it.
    fn fail(&mut self, key: StreamKey, error: StreamError) {
        self.forget_input(key);
        let side = self.core.side();
        let stream = self.core.stream_mut(key);
        let is_used = stream.exchange.fail(side);
        stream.inbox.clear();
        stream.own.head_since = None;
        stream.recv_timer.stop();
        if is_used && stream.own.is_announced {
            stream.exchange.failure = Some(error);
            return self.core.notify(key, PendingEvents::FAILED);
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
        let stream = self.core.stream_mut(key);
        stream.send_timer.stop();
        stream.outbox.end = EndStream::Sent;
        if stream.own.send_side == SendSide::Open {
            stream.own.send_side = SendSide::Reset;
            let (id, code) = (stream.id.0, code.0);
            self.commands.push_back(QuicCommand::Reset { id, code });
        }
    }

    /// Abandons reading, unless the end was received.
    pub(super) fn stop_receiving(&mut self, key: StreamKey, code: ErrorCode) {
        let stream = self.core.stream_mut(key);
        let id = stream.id.0;
        let is_parsed = stream.own.input.held() == 0;
        match stream.own.recv_side {
            RecvSide::Open => {
                stream.own.recv_side = RecvSide::Stopped;
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
        if self.core.limits().http3.qpack_table_bytes > 0 {
            self.acknowledgements.cancel(id);
        }
    }

    /// Fails a stream for the program after a response of our own, which is still sent.
    pub(super) fn fail_after_response(
        &mut self,
        key: StreamKey,
        status: u16,
        fault: Fault,
    ) -> Result<(), Fault> {
        let id = self.core.id_of(key);
        self.core
            .record_refusal(Refused::Stream(id, fault.reason), status, fault.rule);
        let charged = self.core.charge_reset();
        self.stop_receiving(key, fault.code);
        self.fail(key, fault.stream_error());
        charged
    }

    /// Rejects a new stream of the peer without opening it.
    pub(super) fn reject_stream(&mut self, id: u64, fault: Fault) {
        self.core.head_decoder_mut().clear();
        self.core
            .record_refusal(Refused::Head(fault.reason), 0, fault.rule);
        let code = fault.code.0;
        self.commands.push_back(QuicCommand::Reset { id, code });
        self.commands
            .push_back(QuicCommand::StopSending { id, code });
        self.cancel_sections(id);
    }

    /// The peer has reset its direction of a stream.
    pub(super) fn reset_by_peer(&mut self, key: StreamKey, code: u64) -> Result<(), Fault> {
        let stream = self.core.stream_mut(key);
        if stream.own.recv_side != RecvSide::Open {
            return Ok(());
        }
        stream.own.recv_side = RecvSide::Stopped;
        let id = stream.id.0;
        self.cancel_sections(id);
        self.forget_input(key);
        let charged = self.core.charge_reset();
        let is_over = matches!(
            self.core.stream(key).exchange.recv_state,
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
            ErrorCode::H3_REQUEST_REJECTED if self.core.is_client() => {
                StreamError::Refused(rules::BY_REJECTION)
            }
            // The code requires that the request is sent again, so it was not processed.
            ErrorCode::H3_VERSION_FALLBACK if self.core.is_client() => StreamError::Http1Required {
                unprocessed: true,
                code: rules::VERSION_FALLBACK,
            },
            code => StreamError::ResetByPeer(code),
        }
    }

    /// The peer wants no more of a stream.
    pub(super) fn stopped_by_peer(&mut self, key: StreamKey, code: u64) -> Result<(), Fault> {
        let stream = self.core.stream(key);
        match stream.own.send_side {
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
        if self.core.is_client() && !is_unprocessed {
            // The rest of the request is not needed; there may be a response (RFC 9114 4.1).
            self.stop_sending(key, ErrorCode::H3_REQUEST_CANCELLED);
            self.discard_writes(key);
            return Ok(());
        }
        let charged = self.core.charge_reset();
        self.stop_both(key, ErrorCode::H3_REQUEST_CANCELLED);
        self.fail(key, self.error_of(code));
        charged
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
        self.go_away.peer = Some(first);
        self.core.set_going_away(StreamId(first.saturating_sub(4)));
        for key in self.core.stream_keys() {
            let stream = self.core.stream(key);
            if stream.id.0 >= first && !stream.has_failed() && !stream.is_closed() {
                self.stop_both(key, ErrorCode::H3_REQUEST_CANCELLED);
                self.fail(key, StreamError::Refused(rules::BY_GOAWAY));
            }
        }
        self.close_if_drained();
    }

    /// Sends the final GOAWAY: later requests are rejected. The connection stays for them for a while, since the peer
    /// may have sent them before it knew.
    pub(super) fn send_final_go_away(&mut self) {
        let first = self.peer_requests.next();
        self.go_away.own = GoAwayState::Final(first);
        let at = self.core.now() + self.core.limits().http3.go_away_delay;
        self.core.timers_mut().set_go_away_at(Some(at));
        self.write_go_away(first);
    }

    /// QUIC has closed. Streams of which it still has bytes can be read to their end: a server closes when all that it
    /// has sent is acknowledged, not when it is read.
    pub(super) fn lose_connection(&mut self, loss: Loss) {
        if self.lost.is_some() {
            return;
        }
        self.lost = Some(Box::new(loss));
        self.core.timers_mut().stop();
        self.check_lost();
    }

    /// Ends a lost connection when nothing more can be read from QUIC.
    pub(super) fn check_lost(&mut self) {
        if self.lost.is_none() || self.phase != Phase::Open {
            return;
        }
        let mut streams = self.core.stream_keys();
        let is_read = streams.all(|key| {
            let stream = self.core.stream(key);
            stream.is_closed() || !(stream.own.is_readable || stream.own.is_ready)
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
        let error = self.core.end(loss.error);
        let is_early = self.core.is_client() && self.early_data.is_open;
        let peer_close = loss.close.filter(PeerClose::is_error);
        let failure = match peer_close {
            Some(close) if self.core.is_client() => StreamError::ClosedByPeer {
                unprocessed: false,
                close: Arc::new(close),
            },
            _ => StreamError::Connection(error),
        };
        for key in self.core.stream_keys() {
            let stream = self.core.stream(key);
            if stream.is_closed() || stream.has_failed() {
                continue;
            }
            self.clear_outbox(key);
            let stream = self.core.stream_mut(key);
            stream.own.send_side = SendSide::Reset;
            stream.outbox.end = EndStream::Sent;
            let has_response = matches!(
                stream.exchange.recv_state,
                RecvState::Ended | RecvState::Done
            );
            if self.core.is_client() && has_response {
                self.discard_writes(key);
            } else if is_early {
                // A request in early data is safe, so the client may send it again.
                self.fail(key, StreamError::Refused(rules::IN_EARLY_DATA));
            } else {
                self.fail(key, failure.clone());
            }
        }
        self.core.own_mut().readable.clear();
        self.core.set_ended();
    }
}

impl Lifecycle for Connection {
    fn on_complete(&mut self, key: StreamKey) {
        let stream = self.core.stream(key);
        let exchange = &stream.exchange;
        let is_uploading = self.core.is_server()
            && stream.own.recv_side == RecvSide::Open
            && exchange.recv_state == RecvState::Body
            && !exchange.awaits_continue
            && exchange.method != Method::Connect;
        if !is_uploading {
            self.stop_discarding(key);
        } else if stream.discard_until.is_none() {
            self.discard_request(key);
        }
    }

    fn release_failed(&mut self, key: StreamKey) {
        let stream = self.core.stream_mut(key);
        if !stream.wants_to_send() {
            return self.mark_closed(key);
        }
        stream.own.is_announced = false;
        stream.exchange.send_state = SendState::Complete;
    }

    fn stop_discarding(&mut self, key: StreamKey) {
        self.core.stream_mut(key).discard_until = None;
        self.stop_receiving(key, ErrorCode::H3_NO_ERROR);
        self.mark_closed(key);
    }

    fn reset_stream(&mut self, key: StreamKey, fault: Fault) -> Result<(), Fault> {
        let stream = self.core.stream(key);
        let refused = if stream.own.is_announced {
            Refused::Stream(StreamId(stream.id.0), fault.reason)
        } else {
            Refused::Head(fault.reason)
        };
        self.core.record_refusal(refused, 0, fault.rule);
        // Before the stream fails: the connection may end with its last stream.
        let charged = self.core.charge_reset();
        self.stop_both(key, fault.code);
        self.fail(key, fault.stream_error());
        charged
    }

    fn leave_tunnel(&mut self, key: StreamKey) {
        self.core.stream_mut(key).exchange.recv_state = RecvState::Done;
        self.stop_receiving(key, ErrorCode::H3_NO_ERROR);
    }

    fn reset_open(&mut self, key: StreamKey) {
        if self.core.stream(key).has_failed() {
            return self.release_failed(key);
        }
        let code = match self.core.side() {
            Side::Client => ErrorCode::H3_REQUEST_CANCELLED,
            Side::Server => ErrorCode::H3_INTERNAL_ERROR,
        };
        self.stop_both(key, code);
        self.fail(key, StreamError::Reset);
        self.mark_closed(key);
    }

    fn leave(&mut self) {
        if self.core.is_busy() {
            // No push is accepted.
            self.write_go_away(0);
        }
        self.go_away.own = GoAwayState::Final(0);
        self.close_if_drained();
    }

    fn has_requests(&self) -> bool {
        self.peer_requests.next() != 0
    }

    fn announce_go_away(&mut self) {
        self.go_away.own = GoAwayState::Announced;
        let at = self.core.now() + self.core.limits().http3.go_away_delay;
        self.core.timers_mut().set_go_away_at(Some(at));
        self.write_go_away(ANY_REQUEST);
    }

    fn close_if_drained(&mut self) {
        let is_going_away = match self.go_away.own {
            GoAwayState::Final(_) => self.core.timers().go_away_at().is_none(),
            GoAwayState::None | GoAwayState::Announced => false,
        };
        let is_left = is_going_away || self.go_away.peer.is_some();
        if is_left && !self.core.is_busy() && self.phase == Phase::Open {
            self.close_gracefully(DONE);
        }
    }

    fn close_gracefully(&mut self, error: ConnectionError) {
        if self.phase != Phase::Open {
            return;
        }
        let longest = self.core.limits().body_timeout;
        self.phase = Phase::Closing {
            progress: self.core.now(),
            until: longest.map(|longest| self.core.now() + longest),
        };
        self.fail_streams(Loss { error, close: None });
        if self.core.is_client() {
            // Responses are here, so that nothing that was sent is needed.
            return self.finish_closing();
        }
        self.check_acknowledged();
    }

    fn end_for(&mut self, fault: Fault) {
        self.end_connection(fault.error());
        self.commands.clear();
        self.commands.push_back(QuicCommand::Close {
            code: fault.code.0,
            reason: fault.rule,
        });
    }
}
