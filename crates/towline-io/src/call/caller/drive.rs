//! What happens on connections becomes the events of their calls.

use std::sync::Arc;

use towline_proto::{ConnectionError, Event, StreamError};

use super::call::{Carrier, Upload};
use super::{CallEvent, CallId, Caller, Stage};
use crate::call::request::CallError;
use crate::call::rules::{self, Standing};
use crate::id::ConnId;

impl Caller {
    /// Takes the events of a connection that is ready.
    pub(super) fn drive(&mut self, conn: ConnId) {
        let now = self.engine.clock();
        let Some(id) = self.engine.peer(conn).map(|peer| peer.state.call) else {
            return;
        };
        let Some(id) = id else {
            return self.drive_idle(conn);
        };
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return;
        };
        call.clock.progress = now;
        let mut failure = None;
        let mut is_whole = false;
        let mut is_wanted = false;
        while let Some(peer) = self.engine.peer(conn)
            && let Some(event) = peer.conn.next_event()
        {
            let event = match event {
                Event::Head { head, end, .. } => {
                    // Whoever answers without having asked for the body does not want it.
                    call.held = None;
                    call.head = Some(head.to_kept());
                    call.has_head = true;
                    call.clock.head = Some(now);
                    is_whole = end;
                    CallEvent::Head { end }
                }
                Event::Informational { head, .. } => {
                    is_wanted |= head.status() == 100;
                    CallEvent::Informational(head.to_kept())
                }
                Event::Readable(_) => {
                    call.reader_waits = false;
                    CallEvent::Readable
                }
                Event::Writable(_) if call.upload == Upload::Open => CallEvent::Writable,
                Event::Switched { .. } => {
                    call.upload = Upload::Open;
                    CallEvent::Switched
                }
                Event::Failed(_, StreamError::Connection(error)) => {
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
        if is_whole {
            // Whatever else it was, it came after the response.
            self.complete(id);
        } else if let Some(error) = failure {
            self.broke(id, &error);
        } else if is_wanted {
            self.release_body(id);
        }
    }

    /// A connection that carries nothing is ready only to end.
    fn drive_idle(&mut self, conn: ConnId) {
        let Some(peer) = self.engine.peer(conn) else {
            return;
        };
        while peer.conn.next_event().is_some() {}
        if !peer.conn.is_reusable()
            && let Some(slot) = peer.state.slot
        {
            self.pool.remove(slot);
            self.engine.hang_up(conn);
            self.act();
        }
    }

    /// The connection of a call has failed it: once more, or the end.
    pub(super) fn broke(&mut self, id: CallId, error: &Arc<ConnectionError>) {
        let Some(call) = self.call(id) else {
            return;
        };
        let Some(Carrier { conn, slot, .. }) = call.carrier() else {
            return;
        };
        let error = self.describe(id, rules::failure(error, call.phase(false)));
        let Some(call) = self.call(id) else {
            return;
        };
        let standing = Standing {
            reused: call.reused,
            response_started: call.has_head || error.bytes_received > 0,
            resends: call.resends,
        };
        let again = !self.closed && rules::may_resend(&call.prepared, &call.options, standing);
        self.pool.remove(slot);
        self.engine.hang_up(conn);
        if again {
            self.resend(id);
        } else {
            self.fail(id, error);
        }
        self.act();
    }

    fn resend(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.call_mut(id) else {
            return;
        };
        call.resends += 1;
        call.stage = Stage::Over;
        if let Err(error) = self.find_connection(id, true, now) {
            self.fail(id, error);
        }
    }

    /// Adds what the connection knows to an error.
    pub(super) fn describe(&mut self, id: CallId, mut error: CallError) -> CallError {
        let Some(call) = self.calls.get(id.index as usize) else {
            return error;
        };
        if let Some(carrier) = call.carrier()
            && let Some(peer) = self.engine.peer(carrier.conn)
        {
            error.bytes_sent = peer.traffic.sent - call.before.sent;
            error.bytes_received = peer.traffic.received - call.before.received;
            error.reused = call.reused;
        }
        let prepared = &call.prepared;
        error.retryable = prepared.body.is_replayable()
            && (prepared.idempotent || error.bytes_sent == 0)
            && !call.has_head;
        error
    }

    /// Ends a call whose connection, if it had one, has been seen to.
    pub(super) fn fail(&mut self, id: CallId, error: CallError) {
        let now = self.now();
        let Some(call) = self.call_mut(id) else {
            return;
        };
        call.stage = Stage::Over;
        call.upload = Upload::Done;
        call.clock.over = Some(now);
        let error = Box::new(error);
        call.error = Some(error.clone());
        self.tell(id, CallEvent::Failed(error));
    }

    /// The whole response is here and read: the connection goes back.
    pub(super) fn complete(&mut self, id: CallId) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return;
        };
        let Some(Carrier { conn, slot, stream }) = call.carrier() else {
            return;
        };
        call.stage = Stage::Over;
        call.upload = Upload::Done;
        call.clock.over = Some(now);
        if let Some(peer) = self.engine.peer(conn)
            && let Ok(body) = peer.conn.stream(stream)
        {
            let trailers = body.trailers();
            if trailers.len() > 0 {
                let owned = trailers.map(|field| (field.name.to_vec(), field.value.to_vec()));
                call.trailers = owned.collect();
            }
        }
        self.give_back(slot, conn, now);
        self.act();
    }
}
