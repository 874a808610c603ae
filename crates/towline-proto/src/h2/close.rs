//! Ends of streams and of the connection.

use std::sync::Arc;
use std::time::Instant;

use crate::body::Method;
use crate::error::{DONE, aborted};
use crate::multiplexed::refusals::Refused;
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Lifecycle, Multiplexed, Timing};
use crate::pending_events::PendingEvents;
use crate::{ConnectionError, ErrorCode, PeerClose, StreamError, StreamId};

use super::frame;
use super::rules::{self, Fault};
use super::stream::{EndStream, RecvState, SendState};
use super::timers;
use super::{Connection, GoAwayState, PeerGoAway, Phase, settings};

/// The last stream of a GOAWAY that only announces the end (RFC 9113 6.8).
const ANY_STREAM: u32 = 0x7fff_ffff;

impl Connection {
    // Streams.

    /// Skips what the client still sends of its request: the response is complete.
    pub(super) fn discard_body(&mut self, key: StreamKey, is_released: bool) {
        let n = self.buffered(key) as u32;
        self.input.forget_chunk(key);
        let until = self.discard_until();
        let stream = self.core.stream_mut(key);
        stream.inbox.clear();
        stream.discard_until = Some(until);
        stream.own.is_released = is_released;
        self.release_capacity(key, n);
        self.watch_body(key);
    }

    /// The rest of a skipped request has come.
    pub(super) fn discarded(&mut self, key: StreamKey) {
        // curl 7.88 notices only with the next frame that the stream has ended. It may have sent nothing but the end.
        let credit = self.recv_window.release_all();
        self.write_control(|out| match credit {
            Some(increment) => frame::window_update(out, 0, increment),
            None => frame::ping(out, 0, timers::SKIPPED_PING),
        });
        let stream = self.core.stream_mut(key);
        stream.recv_timer.stop();
        if stream.exchange.recv_state == RecvState::Body {
            stream.exchange.recv_state = RecvState::Ended;
        }
        if stream.take_discard() {
            self.mark_closed(key);
        }
    }

    /// Frees the slots of closed streams.
    pub(super) fn remove_closed(&mut self) {
        while let Some(key) = self.core.take_closed() {
            self.input.forget_chunk(key);
            self.core.remove_stream(key);
        }
    }

    /// Fails a stream. The program gets an event, unless it is done with the stream.
    pub(super) fn fail(&mut self, key: StreamKey, error: StreamError) {
        self.core.unqueue(key);
        self.input.forget_chunk(key);
        self.core.clear_outbox(key);
        let side = self.core.side();
        let stream = self.core.stream_mut(key);
        let had_failed = stream.has_failed();
        let is_used = stream.exchange.fail(side);
        stream.inbox.clear();
        stream.recv_timer.stop();
        stream.send_timer.stop();
        if stream.take_discard() || !is_used {
            return self.mark_closed(key);
        }
        if had_failed {
            return;
        }
        stream.exchange.failure = Some(error);
        self.core.notify(key, PendingEvents::FAILED);
    }

    /// Resets a stream that was never opened.
    pub(super) fn reset_unopened(&mut self, id: u32, fault: Fault) -> Result<(), Fault> {
        self.write_control(|out| frame::reset(out, id, fault.code));
        self.remember_reset(id);
        self.core.charge_reset()
    }

    /// Remembers a stream that we reset. Until the peer receives the reset, it may use the rest of its
    /// window.
    pub(super) fn remember_reset(&mut self, id: u32) {
        let window = match self.core.find(id) {
            Some(key) => self.core.stream(key).own.recv_window.left(),
            None => u64::from(self.stream_window),
        };
        // The peer may have applied our setting, with its acknowledgement on the way.
        let more = match self.timers.settings {
            Some(_) => {
                settings::stream_window(self.core.limits()).saturating_sub(self.stream_window)
            }
            None => 0,
        };
        self.resets.local.add(id, window + u64::from(more));
    }

    pub(super) fn reset_by_peer(&mut self, key: StreamKey, code: ErrorCode) {
        let stream = self.core.stream_mut(key);
        let has_response = matches!(
            stream.exchange.recv_state,
            RecvState::Ended | RecvState::Done
        );
        if self.core.is_client() && has_response && code == ErrorCode::NO_ERROR {
            // The response is complete and the rest of the request not needed (RFC 9113 8.1).
            return self.stop_sending(key);
        }
        let error = match code {
            ErrorCode::REFUSED_STREAM if self.core.is_client() => {
                StreamError::Refused(rules::BY_REFUSED_STREAM)
            }
            // The code requires that the request is sent again, so it was not processed.
            ErrorCode::HTTP_1_1_REQUIRED if self.core.is_client() => rules::http1_required(true),
            code => StreamError::ResetByPeer(code),
        };
        self.fail(key, error);
    }

    /// Discards everything that the program still writes.
    fn stop_sending(&mut self, key: StreamKey) {
        self.core.unqueue(key);
        self.core.clear_outbox(key);
        let stream = self.core.stream_mut(key);
        stream.outbox.end = EndStream::Sent;
        stream.send_timer.stop();
        self.discard_writes(key);
    }

    // The connection.

    pub fn received_abort(&mut self, now: Instant, rule: &'static str) {
        self.set_now(now);
        self.eof = true;
        if self.phase == Phase::Open {
            self.start_closing(aborted(rule));
        }
        self.output.clear();
        self.phase = Phase::Closed { abort: false };
    }

    /// Handles the end of input, after everything before it was parsed.
    pub(super) fn on_input_end(&mut self) {
        self.timers.eof_seen = true;
        let is_whole = self.input.is_empty() && self.partial_block.stream == 0;
        if !self.core.is_busy() {
            return if is_whole {
                self.close_gracefully(DONE);
            } else {
                self.start_closing(rules::TRUNCATED);
            };
        }
        if self.core.is_client() {
            return self.start_closing(rules::TRUNCATED);
        }
        // Complete requests still get their responses.
        let error = Arc::new(rules::TRUNCATED);
        for key in self.core.stream_keys() {
            let stream = self.core.stream(key);
            if stream.is_closed() || stream.has_failed() {
                continue;
            }
            if stream.exchange.recv_state == RecvState::Body {
                self.fail(key, StreamError::Connection(Arc::clone(&error)));
            } else if self.lacks_credit(key) {
                self.reset_without_credit(key);
            } else if stream.exchange.send_state != SendState::Complete {
                self.core.notify(key, PendingEvents::HALF_CLOSED);
            }
        }
    }

    /// Whether more bytes are queued than the windows allow, after the end of input, which means that they
    /// never open.
    pub(super) fn lacks_credit(&self, key: StreamKey) -> bool {
        let stream = self.core.stream(key);
        let window = stream.own.send_window.bytes().min(self.send_window.bytes());
        self.timers.eof_seen && stream.outbox.len() > window
    }

    /// Resets a stream whose body cannot be completed. A program that has finished it is notified too.
    pub(super) fn reset_without_credit(&mut self, key: StreamKey) {
        let id = self.core.stream(key).id;
        self.write_control(|out| frame::reset(out, id, ErrorCode::CANCEL));
        self.fail(key, StreamError::Connection(Arc::new(rules::NO_CREDIT)));
    }

    /// Handles the peer's GOAWAY.
    pub(super) fn on_peer_go_away(&mut self, last: u32, close: PeerClose) {
        let go_away = match self.go_away.peer.take() {
            Some(before) if before.close.is_error() => PeerGoAway {
                last: before.last.min(last),
                ..*before
            },
            before => PeerGoAway {
                last: before.map_or(last, |before| before.last.min(last)),
                close: Arc::new(close),
            },
        };
        let last = go_away.last;
        if self.core.is_client() {
            self.core.set_going_away(StreamId(u64::from(last)));
            let error = if go_away.wants_http1() {
                rules::http1_required(true)
            } else {
                StreamError::ClosedByPeer {
                    unprocessed: true,
                    close: Arc::clone(&go_away.close),
                }
            };
            for key in self.core.stream_keys() {
                let stream = self.core.stream(key);
                if stream.id > last && !stream.has_failed() && !stream.is_closed() {
                    self.fail(key, error.clone());
                }
            }
        }
        self.go_away.peer = Some(Box::new(go_away));
        self.close_if_drained();
    }

    /// Handles the acknowledgement of the announcement: the final GOAWAY follows after a delay.
    pub(super) fn go_away_acknowledged(&mut self) {
        self.go_away.own = GoAwayState::Acknowledged;
        let delayed = self.core.now() + self.core.limits().http2.go_away_delay;
        let at = self.core.timers().go_away_at();
        let at = at.map(|latest| latest.min(delayed));
        self.core.timers_mut().set_go_away_at(at);
    }

    /// Sends the final GOAWAY: requests that were on their way have arrived, and no more are processed.
    pub(super) fn send_final_go_away(&mut self) {
        self.core.timers_mut().set_go_away_at(None);
        let last = self.ids.last_peer();
        self.go_away.own = GoAwayState::Final(last);
        self.write_control(|out| frame::go_away(out, last, ErrorCode::NO_ERROR, ""));
        self.close_if_drained();
    }

    /// Closes by reset: queued bytes are lost.
    pub(super) fn abort(&mut self, error: ConnectionError) {
        if self.phase == Phase::Open {
            self.start_closing(error);
        }
        self.output.clear();
        self.phase = Phase::Closed { abort: true };
    }

    /// Fails every incomplete stream and stops reading.
    fn start_closing(&mut self, error: ConnectionError) {
        self.stash();
        self.phase = Phase::Closing {
            since: self.core.now(),
            lingered: 0,
        };
        let error = self.core.end(error);
        let go_away = self
            .go_away
            .peer
            .clone()
            .filter(|go_away| self.core.is_client() && go_away.close.is_error());
        for key in self.core.stream_keys() {
            let stream = self.core.stream(key);
            if stream.is_closed() || stream.has_failed() {
                continue;
            }
            let has_response = matches!(
                stream.exchange.recv_state,
                RecvState::Ended | RecvState::Done
            );
            if self.core.is_client() && has_response {
                self.stop_sending(key);
                continue;
            }
            let awaits_head = stream.exchange.recv_state == RecvState::Head;
            let error = match &go_away {
                Some(go_away) if go_away.wants_http1() && awaits_head => {
                    rules::http1_required(false)
                }
                Some(go_away) => StreamError::ClosedByPeer {
                    unprocessed: false,
                    close: Arc::clone(&go_away.close),
                },
                None => StreamError::Connection(Arc::clone(&error)),
            };
            self.fail(key, error);
        }
        self.timers.stop();
        self.input.clear();
        self.core.set_ended();
    }
}

impl Lifecycle for Connection {
    fn on_complete(&mut self, key: StreamKey) {
        let stream = self.core.stream(key);
        let exchange = &stream.exchange;
        if exchange.recv_state != RecvState::Body {
            self.mark_closed(key);
        } else if exchange.method == Method::Connect || exchange.awaits_continue {
            // The client waits, or has been told that the tunnel is over.
            self.stop_discarding(key);
        } else if stream.discard_until.is_none() {
            self.discard_body(key, true);
        }
    }

    #[inline]
    fn on_busy(&mut self) {
        self.timers.wait_later();
        self.timers.unsent_responses = 0;
    }

    #[inline]
    fn on_idle(&mut self) {
        self.timers.unsent_responses = self.output.pending();
    }

    fn release_failed(&mut self, key: StreamKey) {
        self.mark_closed(key);
    }

    fn stop_discarding(&mut self, key: StreamKey) {
        let stream = self.core.stream_mut(key);
        let id = stream.id;
        stream.recv_timer.stop();
        let is_released = stream.discard_until.is_none() || stream.take_discard();
        self.write_control(|out| frame::reset(out, id, ErrorCode::NO_ERROR));
        self.remember_reset(id);
        if is_released {
            self.mark_closed(key);
        }
    }

    fn reset_stream(&mut self, key: StreamKey, fault: Fault) -> Result<(), Fault> {
        let (id, stream) = (self.core.stream(key).id, self.core.id_of(key));
        self.core
            .record_refusal(Refused::Stream(stream, fault.reason), 0, fault.rule);
        // Sent first: the connection may end with its last stream.
        let charged = self.reset_unopened(id, fault);
        self.fail(key, fault.stream_error());
        charged
    }

    fn leave_tunnel(&mut self, _key: StreamKey) {}

    fn reset_open(&mut self, key: StreamKey) {
        let is_client = self.core.is_client();
        let stream = self.core.stream_mut(key);
        if stream.discard_until.is_some() {
            stream.own.is_released = true;
            return;
        }
        if !stream.has_failed() {
            let id = stream.id;
            let code = if is_client {
                ErrorCode::CANCEL
            } else {
                ErrorCode::INTERNAL_ERROR
            };
            if self.is_open() {
                self.output.push(|out| frame::reset(out, id, code));
                self.remember_reset(id);
            }
            self.fail(key, StreamError::Reset);
        }
        self.mark_closed(key);
    }

    fn leave(&mut self) {
        self.write_control(|out| frame::go_away(out, 0, ErrorCode::NO_ERROR, ""));
        self.go_away.own = GoAwayState::Final(0);
        self.close_if_drained();
    }

    fn has_requests(&self) -> bool {
        self.ids.last_peer() != 0
    }

    fn announce_go_away(&mut self) {
        self.go_away.own = GoAwayState::Announced;
        let at = self.core.now() + self.core.limits().first_request_timeout;
        self.core.timers_mut().set_go_away_at(Some(at));
        self.write_control(|out| {
            frame::go_away(out, ANY_STREAM, ErrorCode::NO_ERROR, "");
            frame::ping(out, 0, timers::GO_AWAY_PING);
        });
    }

    fn close_if_drained(&mut self) {
        let is_going_away = matches!(self.go_away.own, GoAwayState::Final(_))
            || self.go_away.peer.is_some()
            || self.timers.eof_seen;
        if is_going_away && !self.core.is_busy() && self.phase == Phase::Open {
            self.close_gracefully(DONE);
        }
    }

    fn close_gracefully(&mut self, error: ConnectionError) {
        if self.phase == Phase::Open && !matches!(self.go_away.own, GoAwayState::Final(_)) {
            let last = self.ids.last_peer();
            self.write_control(|out| frame::go_away(out, last, ErrorCode::NO_ERROR, ""));
        }
        self.start_closing(error);
    }

    fn end_for(&mut self, fault: Fault) {
        let last = self.ids.last_peer();
        self.write_control(|out| frame::go_away(out, last, fault.code, fault.rule));
        self.start_closing(fault.error());
    }
}
