//! Gets a connection for each call and writes its request; carries out the actions of the pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::UserError;

use super::call::{StreamHandle, Upload};
use super::websocket_state::WsCall;
use super::{Call, CallEvent, CallId, ClientDriver, ConnState, FlushPolicy, Stage};
use crate::client::acquire_timer::AcquireTimer;
use crate::client::call_error;
use crate::client::conn_ext::{EXPECT_CONTINUE_TIMEOUT, duplicate, write_body, write_request};
use crate::client::connection_info::ConnectionInfo;
use crate::client::connection_log::CloseRecord;
use crate::client::dial::{Dial, DialError, Established};
use crate::client::pool::{Action, Lease, OriginId, SlotId};
use crate::client::request::{CallError, CallOptions, OutgoingRequest};
use crate::client::retry_policy::{self, RetryContext};
use crate::client::route::Route;
use crate::client::websocket::WebSocketConfig;
use crate::conn::id::ConnId;

/// An idle connection is checked with one read before use if the last turn was longer ago than this.
const MAX_UNPOLLED: Duration = Duration::from_millis(1);

impl ClientDriver {
    /// Starts a call. If a connection is available, its request is written now. `Err`: the request is malformed,
    /// the pool's queue is full, or the client is closed.
    pub fn begin(
        &mut self,
        request: OutgoingRequest,
        options: CallOptions,
    ) -> Result<CallId, Box<CallError>> {
        self.begin_with(request, options, None)
    }

    /// Starts a call that requests a WebSocket: `request` is a GET without the headers of the handshake. If the
    /// server accepts, [`is_websocket`](Self::is_websocket) is true from the head on.
    pub fn begin_websocket(
        &mut self,
        mut request: OutgoingRequest,
        options: CallOptions,
        config: WebSocketConfig,
    ) -> Result<CallId, Box<CallError>> {
        let websocket = self.prepare_websocket(config)?;
        let now = self.now();
        self.dial.choose_transport(&mut request, now);
        if !self.dial.may_share(&request.route) {
            request.route = request.route.for_websocket();
        }
        self.begin_with(request, options, Some(websocket))
    }

    fn begin_with(
        &mut self,
        request: OutgoingRequest,
        options: CallOptions,
        websocket: Option<Box<WsCall>>,
    ) -> Result<CallId, Box<CallError>> {
        if self.closed {
            return Err(Box::new(CallError::closed()));
        }
        self.dial.check_protocols(&request)?;
        let now = self.now();
        let mut request = request;
        self.dial.choose_transport(&mut request, now);
        let id = self.add_call(request, options, websocket, now);
        let started = self.find_connection(id, false, now);
        self.run_pool_actions();
        match started {
            Ok(()) => Ok(id),
            Err(error) => {
                self.calls.try_remove(id.index as usize);
                Err(Box::new(error))
            }
        }
    }

    /// Adds a call without a connection.
    pub(super) fn add_call(
        &mut self,
        request: OutgoingRequest,
        options: CallOptions,
        websocket: Option<Box<WsCall>>,
        now: Instant,
    ) -> CallId {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let mut call = Call::new(generation, request, options, now);
        call.websocket = websocket;
        CallId {
            index: self.calls.insert(call) as u32,
            generation,
        }
    }

    /// Starts a call on a free connection, or queues it in the pool.
    pub(super) fn find_connection(
        &mut self,
        id: CallId,
        urgent: bool,
        now: Instant,
    ) -> Result<(), CallError> {
        let Some(call) = self.calls.get(id.index as usize) else {
            return Ok(());
        };
        let route = &call.request.route;
        let origin = self.pool.origin(route, self.dial.expected_capacity(route));
        // A request that cannot be sent again needs a connection that is known to be open.
        let retry_context = RetryContext {
            reused: true,
            response_started: false,
            unprocessed: false,
            calm: false,
            resends: call.resends,
        };
        // If no turn has run for a while (the loop was busy or stopped), unsolicited bytes may have arrived on an
        // idle connection: they would be read as the response to this call.
        let unpolled = now.saturating_duration_since(self.engine.clock()) > MAX_UNPOLLED;
        let checks = urgent
            || unpolled
            || !retry_policy::may_resend(&call.request, &call.options, retry_context);
        while let Some(lease) = self.pool.acquire(origin, now) {
            if (checks || !lease.reused) && !self.is_alive(lease.conn, now) {
                self.pool.remove(lease.slot);
                self.engine.close(lease.conn);
                continue;
            }
            return self.start(id, &lease, now);
        }
        match self.pool.wait(origin, id, urgent) {
            Ok(waiter) => {
                if let Some(call) = self.call_mut(id) {
                    call.stage = Stage::Waiting(waiter);
                    call.acquire_timer.await_free(now);
                }
                self.schedule_deadline(id);
                Ok(())
            }
            Err(_) => Err(call_error::queue_full()),
        }
    }

    /// Receives from an idle connection and returns whether it is still usable.
    fn is_alive(&mut self, conn: ConnId, now: Instant) -> bool {
        let (peer, buffers) = self.engine.conn_and_buffers(conn);
        let Some(peer) = peer else {
            return false;
        };
        if !peer.state.h2.is_idle() {
            // The failure of a connection in use is reported by an event.
            return true;
        }
        peer.input.readable = true;
        peer.receive(buffers, now);
        let is_alive = peer.proto.is_reusable() && peer.input.broken.is_none();
        if peer.is_shared() {
            // The events of the dial are handled in the next turn.
            self.engine.requeue(conn);
        }
        is_alive
    }

    /// Writes the request of a call on the leased connection.
    pub(super) fn start(
        &mut self,
        id: CallId,
        lease: &Lease<ConnId>,
        now: Instant,
    ) -> Result<(), CallError> {
        if !self.calls.contains(id.index as usize) {
            self.pool.release(lease.slot, now);
            return Ok(());
        }
        let Some(peer) = self.engine.conn(lease.conn) else {
            self.pool.remove(lease.slot);
            return self.find_connection(id, true, now);
        };
        let is_shared = peer.is_shared();
        // Input before the request is not the response to it.
        if !is_shared && (!lease.reused || peer.input.readable) && !self.is_alive(lease.conn, now) {
            return self.leave_spoiled(id, lease, now);
        }
        let (Some(call), Some(peer)) = (
            self.calls.get_mut(id.index as usize),
            self.engine.conn(lease.conn),
        ) else {
            return Ok(());
        };
        if is_shared && call.websocket.is_some() {
            match peer.proto.extended_connect() {
                Some(true) => {}
                Some(false) => return self.start_over_http1(id, lease, now),
                None => {
                    peer.state.h2.await_settings(id);
                    peer.keep_open = true;
                    call.stage = Stage::AwaitingSettings(*lease);
                    call.times.progress = now;
                    self.schedule_deadline(id);
                    return Ok(());
                }
            }
        }
        let written = match &mut call.websocket {
            Some(websocket) => websocket.write_request(peer, &call.request, self.sockets.as_mut()),
            None => write_request(peer, &call.request),
        };
        let stream = match written {
            Ok(stream) => stream,
            Err(UserError::NotIdle) if is_shared => return self.on_stream_limit(id, lease, now),
            Err(error) => {
                call.stage = Stage::Over;
                self.release_lease(lease, now);
                return Err(CallError::local(error));
            }
        };
        if is_shared {
            peer.state.h2.begin(stream, id);
            peer.keep_open = true;
        } else {
            peer.state.call = Some(id);
        }
        call.times.dial = peer.state.dial.take().or(call.times.dial);
        call.times.started = Some(now);
        call.times.progress = now;
        call.before = peer.traffic;
        call.reused = lease.reused;
        call.info.clone_from(&peer.state.info);
        call.stage = Stage::Active(StreamHandle {
            conn: lease.conn,
            slot: lease.slot,
            stream,
        });
        call.continue_deadline =
            (call.request.awaits_continue()).then(|| now + EXPECT_CONTINUE_TIMEOUT);
        if call.request.body.is_streamed() {
            call.upload = Upload::Open;
            if call.continue_deadline.is_none() {
                self.push_event(id, CallEvent::Writable);
            }
        }
        self.schedule_deadline(id);
        self.schedule_flush(lease.conn);
        Ok(())
    }

    /// Gives up an HTTP/1 connection whose server has sent something, or has closed it, before the request. Another one
    /// is used, unless it was opened for this call: the server does so each time.
    fn leave_spoiled(
        &mut self,
        id: CallId,
        lease: &Lease<ConnId>,
        now: Instant,
    ) -> Result<(), CallError> {
        let peer = self.engine.conn(lease.conn);
        let error = peer.map(|peer| call_error::before_request(peer.proto.error()));
        self.pool.remove(lease.slot);
        self.engine.close(lease.conn);
        match (error, self.call_mut(id)) {
            (Some(error), Some(call)) if !lease.reused => {
                call.stage = Stage::Over;
                Err(error)
            }
            _ => self.find_connection(id, true, now),
        }
    }

    /// Sends a body that waited for 100 (Continue), which has arrived or has timed out (RFC 9110 10.1.1).
    pub(super) fn release_body(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return;
        };
        let Some(handle) = call.handle() else {
            return;
        };
        let StreamHandle { conn, stream, .. } = handle;
        if call.continue_deadline.take().is_none() {
            return;
        }
        call.times.progress = now;
        if call.upload == Upload::Open {
            self.push_event(id, CallEvent::Writable);
        } else if let Some(peer) = self.engine.conn(conn)
            && let Err(error) = duplicate(&call.request.body)
                .map_err(|_| UserError::StreamFailed)
                .and_then(|file| write_body(peer, stream, &call.request.body, file))
        {
            // The body cannot be read: the request cannot be completed.
            self.remove(handle);
            self.fail(id, CallError::local(error));
            return self.run_pool_actions();
        }
        self.schedule_deadline(id);
        self.schedule_flush(conn);
    }

    /// Sends the pending output of a connection, now or with the next flush.
    pub(super) fn schedule_flush(&mut self, conn: ConnId) {
        if self.h2_events_of == Some(conn) {
            // Flushed after the last of its events.
            return;
        }
        let waits = match self.flush {
            FlushPolicy::Immediate => false,
            FlushPolicy::TurnEnd => self.in_turn,
            FlushPolicy::Manual => true,
        };
        if self.touched == Some(conn) {
            // Flushed here or with the others; `touched` need not do it again.
            self.touched = None;
        }
        if waits {
            self.engine.release(conn);
            if let Some(peer) = self.engine.conn(conn)
                && !std::mem::replace(&mut peer.state.unflushed, true)
            {
                self.unflushed.push(conn);
            }
        } else {
            self.engine.flush_and_rearm(conn);
        }
    }

    /// Releases the connection of a completed exchange to the pool, or closes it if it cannot be used again.
    pub(super) fn release(&mut self, handle: StreamHandle, now: Instant) {
        let StreamHandle { conn, slot, .. } = handle;
        let reusable = match self.engine.conn(conn) {
            Some(peer) if peer.is_shared() => return self.release_stream(handle, now),
            Some(peer) => {
                peer.state.call = None;
                peer.proto.is_reusable() && !peer.is_sending_files()
            }
            None => false,
        };
        if reusable {
            self.pool.release(slot, now);
        } else {
            self.pool.remove(slot);
            self.engine.close(conn);
        }
    }

    /// Ends an exchange that cannot be completed: resets its HTTP/2 stream, or closes the HTTP/1 connection.
    pub(super) fn remove(&mut self, handle: StreamHandle) {
        let StreamHandle { conn, slot, .. } = handle;
        if self.engine.conn(conn).is_some_and(|peer| peer.is_shared()) {
            let now = self.now();
            return self.release_stream(handle, now);
        }
        self.pool.remove(slot);
        self.engine.close(conn);
    }

    /// Releases a connection on which no request was written.
    pub(super) fn release_lease(&mut self, lease: &Lease<ConnId>, now: Instant) {
        let peer = self.engine.conn(lease.conn);
        if peer.is_some_and(|peer| peer.is_shared() || peer.proto.is_reusable()) {
            self.pool.release(lease.slot, now);
        } else {
            self.pool.remove(lease.slot);
            self.engine.close(lease.conn);
        }
    }

    /// Carries out the queued actions of the pool.
    pub(super) fn run_pool_actions(&mut self) {
        while let Some(action) = self.pool.next_action() {
            match action {
                Action::Dial(slot, origin) => self.open(slot, origin),
                Action::CancelDial(slot) => {
                    if let Some(dial) = self.dials.remove(&slot) {
                        self.engine.cancel_dial(dial);
                    }
                }
                Action::Assign(lease, call) => {
                    let now = self.now();
                    if let Err(error) = self.start(call, &lease, now) {
                        self.fail(call, error);
                    }
                }
                Action::Close(conn) => self.close_conn(conn),
                Action::AwaitDial(call) => self.update_timer(call, AcquireTimer::await_dial),
                Action::AwaitFree(call) => self.update_timer(call, AcquireTimer::await_free),
            }
        }
    }

    /// Switches the acquire timer of a waiting call.
    fn update_timer(&mut self, id: CallId, turn: fn(&mut AcquireTimer, Instant)) {
        let now = self.now();
        if let Some(call) = self.call_mut(id)
            && matches!(call.stage, Stage::Waiting(_))
        {
            turn(&mut call.acquire_timer, now);
            self.schedule_deadline(id);
        }
    }

    // Dialling.

    fn open(&mut self, slot: SlotId, origin: OriginId) {
        let Some(route) = self.pool.key(origin) else {
            return;
        };
        let now = self.now();
        let dial = Dial::start(Arc::clone(route), &self.dial, now);
        self.begin_dial(slot, dial);
        if !self.in_turn {
            self.take_dial_outcomes();
        }
    }

    /// Registers a dial, with the deadline of the call that it is for.
    fn begin_dial(&mut self, slot: SlotId, mut dial: Dial) {
        let first = self.pool.dialled_for(slot).copied();
        if let Some(call) = first.and_then(|first| self.call(first)) {
            let bound = call.acquire_timer.bound(&call.options.timeouts);
            dial.set_deadline(bound.map(|(at, _)| at));
        }
        let id = self.engine.dial(dial, slot.as_u64());
        self.dials.insert(slot, id);
    }

    /// Handles finished dials; true if there were any.
    pub(super) fn take_dial_outcomes(&mut self) -> bool {
        let mut any = false;
        while let Some(dialled) = self.engine.next_dial_outcome() {
            any = true;
            let slot = SlotId::from_u64(dialled.tag);
            self.dials.remove(&slot);
            match dialled.result {
                Ok(established) => self.insert_dialled(slot, *established),
                Err(error) => self.dial_failed(slot, &error),
            }
        }
        if any {
            self.run_pool_actions();
        }
        any
    }

    fn insert_dialled(&mut self, slot: SlotId, established: Established) {
        let timings = established.timings;
        match self.engine.add_established(established, &self.conn_config) {
            Ok(conn) => {
                if let Some(peer) = self.engine.conn(conn) {
                    let info = Arc::new(ConnectionInfo::of(peer, timings));
                    peer.state = ConnState {
                        slot: Some(slot),
                        dial: Some(timings),
                        _close_record: Some(CloseRecord::new(&info)),
                        info: Some(info),
                        ..ConnState::default()
                    };
                }
                let capacity = self.send_preface(conn);
                self.pool.dialled(slot, conn, capacity, self.engine.now());
            }
            Err(error) => {
                let error = DialError::registration(&error);
                self.dial_failed(slot, &error);
            }
        }
    }

    fn dial_failed(&mut self, slot: SlotId, error: &DialError) {
        let error = CallError::dial(error);
        if self.redial(slot, &error) {
            return;
        }
        if let Some((waiter, &id)) = self.pool.dial_failed(slot) {
            self.pool.cancel(waiter);
            self.fail(id, error);
        }
    }

    /// Dials again after a pause, if allowed. The dial keeps its slot in the pool.
    fn redial(&mut self, slot: SlotId, error: &CallError) -> bool {
        let now = self.now();
        let Some(id) = self.pool.dialled_for(slot).copied() else {
            return false;
        };
        let Some(call) = self.call_mut(id) else {
            return false;
        };
        call.failed_dials = call.failed_dials.saturating_add(1);
        if !retry_policy::may_redial(&call.options, error, call.failed_dials) {
            return false;
        }
        let at = now
            + call
                .options
                .backoff
                .pause(call.failed_dials, retry_policy::random_u32());
        call.acquire_timer.retry(at);
        let route = Arc::clone(&call.request.route);
        let mut dial = Dial::start(route, &self.dial, now);
        dial.rest_until(at);
        self.begin_dial(slot, dial);
        self.schedule_deadline(id);
        true
    }

    /// Opens connections in advance, up to `n` for this route.
    pub fn prewarm(&mut self, route: &Arc<Route>, n: usize) {
        let origin = self.pool.origin(route, self.dial.expected_capacity(route));
        self.pool.prewarm(origin, n);
        self.run_pool_actions();
    }
}
