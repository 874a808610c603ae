//! Turns the events of connections into events of their calls.

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{Event, StreamError};

use super::call::{Call, Upload};
use super::{CallEvent, CallId, ClientDriver, Stage};
use crate::client::call_error::{self, FailureContext};
use crate::client::conn_ext::{announced_idle_time, trailers_of};
use crate::client::connection_log::{self, ConnectionEvent};
use crate::client::request::{CallError, CallErrorKind, CallPhase};
use crate::client::retry_policy::{self, RetryContext};
use crate::conn::id::ConnId;

impl ClientDriver {
    /// Handles the events of a ready connection.
    pub(super) fn on_ready(&mut self, conn: ConnId) {
        let now = self.engine.clock();
        let Some(peer) = self.engine.conn(conn) else {
            return;
        };
        if peer.is_shared() {
            self.h2_events_of = Some(conn);
            return;
        }
        let Some(id) = peer.state.call else {
            return self.on_idle_ready(conn);
        };
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return;
        };
        call.times.progress = now;
        let mut failure = None;
        let mut is_complete = false;
        let mut got_continue = false;
        let mut violation = None;
        while let Some(peer) = self.engine.conn(conn)
            && let Some(event) = peer.proto.next_event()
        {
            let event = match event {
                Event::Head { head, end, .. } => {
                    // A success instead of 100 (Continue): the server takes the body all the same.
                    got_continue = true;
                    violation = call.handle_head(&head, now).err();
                    if let Some(http3) = &self.dial.http3 {
                        http3.observe(&call.request.route, &head, now);
                    }
                    // A server announces the same with every response.
                    if !call.reused
                        && let (Some(most), Some(slot)) =
                            (announced_idle_time(&head), peer.state.slot)
                    {
                        self.pool.limit_idle(slot, most);
                    }
                    call.head = Some(head.to_owned_head());
                    call.times.head = Some(now);
                    is_complete = end;
                    CallEvent::Head { end }
                }
                Event::Informational { head, .. } => {
                    got_continue |= head.status() == 100;
                    CallEvent::Informational(head.to_owned_head())
                }
                // The WebSocket is driven below; its reads report the failure.
                Event::Readable(_) | Event::Failed(..) if call.open_websocket().is_some() => {
                    continue;
                }
                Event::Readable(_) => {
                    call.reader_waits = false;
                    CallEvent::Readable
                }
                Event::Writable(_) if call.upload != Upload::Done => CallEvent::Writable,
                Event::Switched { .. } => {
                    call.upload = Upload::Tunnel;
                    CallEvent::Switched
                }
                Event::Failed(_, error @ StreamError::Connection(_)) => {
                    failure = Some(error);
                    continue;
                }
                Event::Writable(_)
                | Event::Failed(..)
                | Event::HalfClosed(_)
                | Event::GoingAway { .. }
                | Event::Closed(_) => continue,
            };
            self.events.push_back((id, event));
        }
        let is_websocket = call.open_websocket().is_some();
        if let Some(rule) = violation {
            self.events.retain(|(call, _)| *call != id);
            self.reject_upgrade(id, rule);
        } else if is_websocket {
            if let Some(peer) = self.engine.conn(conn) {
                peer.keep_open = true;
            }
            self.drive_websocket(id);
        } else if is_complete && !self.is_sending(id) {
            // The response is complete: a failure behind it does not matter.
            self.complete(id);
        } else if let Some(error) = failure {
            self.on_exchange_failed(id, &error);
        } else if got_continue {
            self.release_body(id);
        } else if self.call(id).is_some_and(Call::is_read) {
            // Sends the rest of a file, too.
            self.flush_touched();
            self.wake_at_end(id);
        }
    }

    /// Handles the readiness of an idle connection, which means its end.
    fn on_idle_ready(&mut self, conn: ConnId) {
        let Some(peer) = self.engine.conn(conn) else {
            return;
        };
        while peer.proto.next_event().is_some() {}
        if !peer.proto.is_reusable()
            && let Some(slot) = peer.state.slot
        {
            self.pool.remove(slot);
            self.engine.close(conn);
            self.run_pool_actions();
        }
    }

    /// Handles a failed exchange: sends the request again if allowed, else fails the call.
    pub(super) fn on_exchange_failed(&mut self, id: CallId, why: &StreamError) {
        let Some(call) = self.call(id) else {
            return;
        };
        let Some(handle) = call.handle() else {
            return;
        };
        if call.is_read() {
            // The response is complete: the rest of the request is not needed.
            return self.give_up_upload(id);
        }
        let failure_context = self.failure_context(id);
        let protocols = self.dial.protocols;
        let Some(call) = self.call(id) else {
            return;
        };
        let phase = call.phase(failure_context.bytes_sent);
        let error = failure_context
            .with_context(call_error::stream_failure(why, phase), why.is_unprocessed());
        let retry_context = RetryContext {
            reused: call.reused,
            response_started: call.has_head() || error.bytes_received > 0,
            unprocessed: false,
            calm: false,
            resends: call.resends,
        };
        let retry_context = retry_context.failed(why, protocols);
        // With an external pool, requests are sent again by the program.
        let again = !self.closed
            && !self.has_external_pool
            && retry_context.is_some_and(|retry_context| {
                retry_policy::may_resend(&call.request, &call.options, retry_context)
            });
        if let Some(call) = self.call_mut(id) {
            call.retry_context = retry_context;
            if retry_policy::wants_http1(why, protocols) {
                call.request.route = Arc::new(call.request.route.over_http1());
            }
        }
        self.remove(handle);
        let pause = retry_context.map_or(Duration::ZERO, RetryContext::pause);
        if again && pause > Duration::ZERO {
            self.rest(id, pause);
        } else if again {
            self.resend(id);
        } else {
            self.fail(id, error);
        }
        self.run_pool_actions();
    }

    /// Sends the request again after a pause.
    fn rest(&mut self, id: CallId, pause: Duration) {
        let until = self.now() + pause;
        if let Some(call) = self.call_mut(id) {
            call.stage = Stage::Resting(until);
        }
        self.schedule_deadline(id);
    }

    pub(super) fn resend(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.call_mut(id) else {
            return;
        };
        call.resends += 1;
        call.stage = Stage::Over;
        if let Some(info) = &call.info {
            connection_log::record(ConnectionEvent::Resent, info);
        }
        if let Err(error) = self.find_connection(id, true, now) {
            self.fail(id, error);
        }
    }

    /// Fails a call whose server granted the WebSocket but violated `rule`.
    pub(super) fn reject_upgrade(&mut self, id: CallId, rule: &'static str) {
        let error = CallError::new(CallErrorKind::RemoteProtocol, CallPhase::Head, rule);
        let error = self.with_context(id, error);
        if let Some(handle) = self.call(id).and_then(Call::handle) {
            self.remove(handle);
        }
        self.fail(id, error);
        self.run_pool_actions();
    }

    /// Adds `retryable`, bytes and reuse of the call's exchange to an error.
    pub(super) fn with_context(&mut self, id: CallId, error: CallError) -> CallError {
        self.failure_context(id).with_context(error, false)
    }

    /// Input of the decision about `retryable` for a call; the bytes are 0 without a connection.
    pub(super) fn failure_context(&mut self, id: CallId) -> FailureContext {
        let Some(call) = self.calls.get(id.index as usize) else {
            return FailureContext::default();
        };
        let mut failure_context = call.failure_context();
        if let Some(handle) = call.handle()
            && let Some(peer) = self.engine.conn(handle.conn)
        {
            (failure_context.bytes_sent, failure_context.bytes_received) =
                match peer.stream_stats(handle.stream) {
                    Some(stats) => (stats.sent, stats.received),
                    None => (
                        peer.traffic.sent - call.before.sent,
                        peer.traffic.received - call.before.received,
                    ),
                };
        }
        failure_context
    }

    /// Fails a call. Its connection, if any, has been released or removed already.
    pub(super) fn fail(&mut self, id: CallId, error: CallError) {
        let now = self.now();
        let Some(call) = self.call_mut(id) else {
            return;
        };
        call.end(now);
        let error = Box::new(error.through(&call.request.route));
        call.error = Some(error.clone());
        self.push_event(id, CallEvent::Failed(error));
    }

    /// Completes a call whose response has been read: releases its connection.
    pub(super) fn complete(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return;
        };
        let Some(handle) = call.handle() else {
            return;
        };
        call.end(now);
        if let Some(peer) = self.engine.conn(handle.conn)
            && let Ok(body) = peer.proto.stream(handle.stream)
        {
            call.trailers = trailers_of(&body);
        }
        self.release(handle, now);
        self.run_pool_actions();
    }

    /// Completes a call whose response has been read, without the rest of its request.
    pub(super) fn give_up_upload(&mut self, id: CallId) {
        self.complete(id);
        self.push_event(id, CallEvent::Readable);
    }
}
