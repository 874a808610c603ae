//! A connection that carries many calls at once (HTTP/2). A call that ends ends its stream; the connection
//! goes on, and ends with its last call when it has been retired.
//!
//! ```text
//!  adopted ─greet─► calls begin and are put back ──GOAWAY, end of input, silence──► retired ─last─► closed
//! ```

use std::time::Instant;

use towline_proto::StreamId;

use super::call::{StreamHandle, Upload};
use super::{CallEvent, CallId, ClientDriver};
use crate::client::conn_ext::ConnEvent;
use crate::client::pool::Lease;
use crate::client::request::CallError;
use crate::conn::Conn;
use crate::conn::id::ConnId;
use crate::conn::stream_map::StreamMap;

/// State of a shared connection.
#[derive(Default)]
pub(super) struct H2State {
    calls: StreamMap<CallId>,
    /// They are to become `WebSockets`, once the server has said whether it allows that.
    awaiting_settings: Vec<CallId>,
    /// When something was received last, and how much that was with everything before.
    heard: Option<Instant>,
    received: u64,
}

impl H2State {
    pub(super) fn begin(&mut self, stream: StreamId, call: CallId) {
        self.calls.insert(stream, call);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.awaiting_settings.is_empty()
    }

    pub(super) fn take_awaiting_settings(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.awaiting_settings)
    }

    pub(super) fn send_preface(&mut self, call: CallId) {
        self.awaiting_settings.push(call);
    }
}

impl ClientDriver {
    /// Takes events of a shared connection until one of them is for the front end, which acts on it before the
    /// next is taken: what it reads then need not be copied.
    pub(super) fn on_h2_ready(&mut self, conn: ConnId) {
        let now = self.engine.clock();
        while self.events.is_empty() {
            let Some(peer) = self.engine.conn(conn) else {
                self.h2_events_of = None;
                return;
            };
            let Conn {
                proto: wire, state, ..
            } = peer;
            let Some(event) = wire.next_event() else {
                return self.driven(conn, now);
            };
            match ConnEvent::of(event) {
                Some((stream, news)) => {
                    if let Some(&id) = state.h2.calls.get(stream) {
                        self.on_stream_event(id, news, now);
                    }
                }
                None => self.ends(conn),
            }
        }
    }

    /// No further call is to begin on it. It closes with its last one.
    fn ends(&mut self, conn: ConnId) {
        self.fail_awaiting_settings(conn);
        if let Some(slot) = self.engine.conn(conn).and_then(|peer| peer.state.slot) {
            self.pool.retire(slot);
            self.run_pool_actions();
        }
    }

    fn on_stream_event(&mut self, id: CallId, news: ConnEvent, now: Instant) {
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return;
        };
        call.times.progress = now;
        match news {
            ConnEvent::Head { head, end } => {
                // Whoever answers without having asked for the body does not want it.
                call.held = None;
                if let Err(rule) = call.recv_events(&head.view(), now) {
                    return self.reject_upgrade(id, rule);
                }
                call.head = Some(head);
                call.has_head = true;
                call.times.head = Some(now);
                self.events.push_back((id, CallEvent::Head { end }));
                if end {
                    self.complete(id);
                }
            }
            ConnEvent::Interim(head) => {
                let is_wanted = head.view().status() == 100;
                self.events.push_back((id, CallEvent::Informational(head)));
                if is_wanted {
                    self.release_body(id);
                }
            }
            ConnEvent::Readable | ConnEvent::Failed(_) if call.conversation().is_some() => {
                self.drive_websocket(id);
            }
            ConnEvent::Readable => {
                call.reader_waits = false;
                self.events.push_back((id, CallEvent::Readable));
            }
            ConnEvent::Writable => {
                let talks = call.conversation().is_some();
                if call.upload == Upload::Open {
                    self.events.push_back((id, CallEvent::Writable));
                }
                if talks {
                    self.drive_websocket(id);
                }
            }
            ConnEvent::Switched => {
                call.upload = Upload::Open;
                let talks = call.conversation().is_some();
                self.events.push_back((id, CallEvent::Switched));
                if talks {
                    self.drive_websocket(id);
                }
            }
            ConnEvent::Failed(error) => self.on_exchange_failed(id, &error),
        }
    }

    /// All its events have been taken.
    fn driven(&mut self, conn: ConnId, now: Instant) {
        self.h2_events_of = None;
        if self.touched != Some(conn) {
            self.flush_touched();
            self.touched = Some(conn);
        }
        let Some(peer) = self.engine.conn(conn) else {
            return;
        };
        let received = peer.traffic.received;
        let h2 = &mut peer.state.h2;
        if std::mem::replace(&mut h2.received, received) != received {
            h2.heard = Some(now);
        }
        // The peer's settings may have changed it.
        let room = peer.proto.stream_capacity() as u32;
        let has_settings = peer.proto.extended_connect().is_some();
        let awaiting_settings = if has_settings {
            peer.state.h2.take_awaiting_settings()
        } else {
            Vec::new()
        };
        if let Some(slot) = peer.state.slot {
            let leases = self.pool.leases(slot);
            self.pool.set_capacity(slot, leases + room);
            self.run_pool_actions();
        }
        for id in awaiting_settings {
            self.start_awaiting_settings(id, now);
        }
    }

    /// A connection has been made: how many calls it takes at once.
    pub(super) fn send_preface(&mut self, conn: ConnId) -> u32 {
        let now = self.now();
        let Some(peer) = self.engine.conn(conn).filter(|peer| peer.is_shared()) else {
            return 1;
        };
        peer.state.h2.heard = Some(now);
        let room = peer.proto.stream_capacity() as u32;
        // Its preface leaves, with the first request where one waits.
        self.schedule_flush(conn);
        room
    }

    /// The connection takes fewer calls than it did: this one waits on, in front of the others.
    pub(super) fn on_stream_limit(
        &mut self,
        id: CallId,
        lease: &Lease<ConnId>,
        now: Instant,
    ) -> Result<(), CallError> {
        let others = self.pool.leases(lease.slot).saturating_sub(1);
        self.pool.set_capacity(lease.slot, others);
        self.pool.release(lease.slot, now);
        self.find_connection(id, true, now)
    }

    /// An exchange is over, whole or not; the connection goes on.
    pub(super) fn put_back(&mut self, handle: StreamHandle, now: Instant) {
        let StreamHandle { conn, slot, stream } = handle;
        let Some(peer) = self.engine.conn(conn) else {
            return self.pool.remove(slot);
        };
        peer.state.h2.calls.remove(stream);
        peer.keep_open = !peer.state.h2.is_idle();
        if let Ok(mut body) = peer.proto.stream(stream) {
            // Without effect when both directions are complete.
            body.reset();
        }
        let room = peer.proto.stream_capacity() as u32;
        let others = self.pool.leases(slot).saturating_sub(1);
        self.schedule_flush(conn);
        self.pool.set_capacity(slot, others + room);
        self.pool.release(slot, now);
    }

    /// A call has timed out that had waited since `since`. When nothing at all has come meanwhile, the
    /// connection is as dead as the call, and none is to follow it there.
    pub(super) fn mark_suspect(&mut self, handle: StreamHandle, since: Instant) {
        let heard = self.engine.conn(handle.conn).and_then(|peer| {
            let is_shared = peer.is_shared();
            peer.state.h2.heard.filter(|_| is_shared)
        });
        if heard.is_some_and(|heard| heard <= since) {
            self.pool.retire(handle.slot);
        }
    }

    /// The pool has done with a connection that carries nothing.
    pub(super) fn close_conn(&mut self, conn: ConnId) {
        let now = self.now();
        if let Some(peer) = self.engine.conn(conn).filter(|peer| peer.is_shared()) {
            peer.take_leave(now);
        }
        self.engine.close(conn);
    }
}
