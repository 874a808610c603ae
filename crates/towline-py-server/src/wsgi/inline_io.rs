//! The engine of the thread that also runs the application: which request is next, and when responses are sent.
use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use towline_io::{Conn, ConnId, Engine};
use towline_proto::StreamId;

use super::control::{MAX_WAIT, ServerControl};
use super::request::{ConnState, Request, RequestReader};
use crate::eager_flush::EagerFlush;
use crate::gather::Gathered;

/// Pipelined requests of one connection before the next connection is serviced, within the time limit of a
/// service; their responses are flushed together.
const REQUESTS_PER_SERVICE: usize = 16;

/// A response of this size is sent at once: to copy it costs more than a wake-up, and less while it is in the cache.
const LARGE_BYTES: usize = 16 * 1024;

pub struct InlineIo {
    pub engine: Engine<ConnState>,
    current: Option<ConnId>,
    /// Connections that became readable while an application call waited for its own connection.
    deferred: VecDeque<ConnId>,
    pub reader: RequestReader,
    /// Requests of the current connection in this service,
    requests: usize,
    /// which began then.
    service_began: Instant,
    /// Connections whose responses wait for those of the other connections of the turn.
    served: Gathered,
    eager_flush: EagerFlush,
}

impl InlineIo {
    pub fn new(engine: Engine<ConnState>, reader: RequestReader) -> Self {
        Self {
            service_began: engine.clock(),
            engine,
            current: None,
            deferred: VecDeque::new(),
            reader,
            requests: 0,
            served: Gathered::default(),
            eager_flush: EagerFlush::default(),
        }
    }

    /// The next request of any connection; `None` when this turn has no more.
    pub fn next_request(&mut self) -> Option<Request> {
        loop {
            if let Some(id) = self.current {
                let is_over = self.requests == REQUESTS_PER_SERVICE
                    || (self.requests > 0 && self.has_more(id) && self.engine.is_service_over());
                if is_over {
                    self.engine.requeue(id);
                } else if let Some(peer) = self.engine.conn(id)
                    && let Some(request) = self.reader.next_request(peer)
                {
                    self.requests += 1;
                    return Some(request);
                }
                self.finish_service(id);
            }
            self.current = Some(self.next_ready()?);
            self.service_began = self.engine.clock();
        }
    }

    /// Whether there is work on a connection without more input.
    fn has_more(&mut self, id: ConnId) -> bool {
        let peer = self.engine.conn(id);
        peer.is_some_and(|peer| peer.proto.has_events() || !peer.state.ready.is_empty())
    }

    fn finish_service(&mut self, id: ConnId) {
        self.requests = 0;
        let now = self.engine.clock();
        self.eager_flush.expire(now);
        self.eager_flush.record(self.service_began, now);
        let waits = self.may_wait();
        self.current = None;
        self.engine.release(id);
        if self.served.add(id, now) || !waits {
            self.flush_served();
        }
    }

    /// Whether the responses of the current connection may wait for those of other connections.
    pub fn may_wait(&mut self) -> bool {
        let is_alone = !self.engine.has_ready() && !self.has_deferred();
        if is_alone || self.eager_flush.is_on() {
            return false;
        }
        let peer = self.peer();
        peer.is_some_and(|conn| conn.proto.pending_bytes() < LARGE_BYTES)
    }

    /// Flushes all connections: the application goes on and may take any time, or the thread waits.
    pub fn flush(&mut self) {
        self.engine.refresh_clock();
        self.flush_served();
        if let Some(id) = self.current {
            self.engine.flush_and_rearm(id);
        }
    }

    fn flush_served(&mut self) {
        let mut served = self.served.take();
        for id in served.drain(..) {
            self.engine.flush_and_rearm(id);
        }
        self.served.recycle(served);
    }

    pub fn end_turn(&mut self) {
        self.flush_served();
        self.engine.turn_end();
    }

    pub fn peer(&mut self) -> Option<&mut Conn<ConnState>> {
        self.engine.conn(self.current?)
    }

    pub fn process_events(&mut self, stream: Option<StreamId>) -> bool {
        let peer = self.current.and_then(|id| self.engine.conn(id));
        peer.is_none_or(|peer| self.reader.process_events(peer, stream))
    }

    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    fn next_ready(&mut self) -> Option<ConnId> {
        while let Some(id) = self.deferred.pop_front() {
            if let Some(peer) = self.engine.conn(id) {
                peer.state.deferred = false;
                return Some(id);
            }
        }
        self.engine.next_ready()
    }

    /// Runs one turn of the engine during an application call.
    pub fn run_turn(&mut self, control: &ServerControl) -> io::Result<()> {
        self.flush();
        control.apply_commands(&mut self.engine);
        self.engine.turn_start(Some(MAX_WAIT))?;
        while let Some(id) = self.engine.next_ready() {
            if self.current == Some(id) {
                continue;
            }
            if let Some(peer) = self.engine.conn(id) {
                // Bodies are received meanwhile, and a slow client keeps its place.
                self.reader.process_events(peer, None);
                if !peer.state.ready.is_empty()
                    && !std::mem::replace(&mut peer.state.deferred, true)
                {
                    self.deferred.push_back(id);
                }
            }
            self.engine.flush_and_rearm(id);
        }
        self.engine.turn_end();
        Ok(())
    }
}
