//! Connections that the engine opens: the descriptors of each dial are in the engine's poll, and an
//! established connection is added to the connection table.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry};
use slab::Slab;

use crate::client::{Dial, DialError, Established, Progress, Watch};
use crate::conn::Conn;
use crate::conn::config::ConnConfig;
use crate::conn::id::{ConnId, Source};
use crate::engine::Engine;
use crate::engine::timers::TimerQueue;

/// Identifies one dial of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DialId(ConnId);

/// Outcome of a dial.
pub struct DialOutcome {
    /// The tag given to [`Engine::dial`].
    pub tag: u64,
    pub result: Result<Box<Established>, DialError>,
}

struct PendingDial {
    generation: u32,
    dial: Dial,
    tag: u64,
    /// Descriptors registered in the poll.
    watches: Vec<Watch>,
    scheduled_at: Option<Instant>,
}

/// The dials of an engine. Empty in a server, where it costs two comparisons per turn.
#[derive(Default)]
pub(crate) struct PendingDials {
    slab: Slab<PendingDial>,
    ready: Vec<usize>,
    timers: TimerQueue,
    outcomes: VecDeque<DialOutcome>,
    generation: u32,
    /// Buffer of `fds`, reused.
    scratch: Vec<Watch>,
}

impl PendingDials {
    pub(crate) fn on_ready(&mut self, index: usize) {
        self.ready.push(index);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Advances the dials that are ready or due.
    pub(crate) fn advance(&mut self, registry: &Registry, now: Instant) {
        while let Some((at, id)) = self.timers.pop_due(now) {
            let Some(pending) = self.slab.get_mut(id.index()) else {
                continue;
            };
            if pending.scheduled_at == Some(at) && id == ConnId::new(id.index(), pending.generation)
            {
                pending.scheduled_at = None;
                self.ready.push(id.index());
            }
        }
        while let Some(index) = self.ready.pop() {
            self.advance_one(index, registry, now);
        }
    }

    fn advance_one(&mut self, index: usize, registry: &Registry, now: Instant) {
        let Some(pending) = self.slab.get_mut(index) else {
            return;
        };
        let result = match pending.dial.advance(now) {
            Progress::Pending => {
                self.scratch.clear();
                pending.dial.fds(&mut self.scratch);
                watch(registry, index, &pending.watches, &self.scratch);
                std::mem::swap(&mut pending.watches, &mut self.scratch);
                if let Some(deadline) = pending.dial.deadline() {
                    let id = ConnId::new(index, pending.generation);
                    (self.timers).schedule(id, &mut pending.scheduled_at, deadline);
                }
                return;
            }
            Progress::Done(established) => Ok(established),
            Progress::Failed(error) => Err(error),
        };
        let tag = self.slab.remove(index).tag;
        self.outcomes.push_back(DialOutcome { tag, result });
    }
}

/// Changes the registrations from `before` to `after`. A closed descriptor has left the poll by itself;
/// its number may have been reused for another socket, which `serial` distinguishes.
fn watch(registry: &Registry, index: usize, before: &[Watch], after: &[Watch]) {
    let token = Source::Dial(index).token();
    for old in before {
        if !after.iter().any(|new| new.fd == old.fd) {
            // The error of a closed descriptor does not matter.
            let _ = registry.deregister(&mut SourceFd(&old.fd));
        }
    }
    for new in after.iter().filter(|new| !before.contains(new)) {
        let interest = match (new.readable, new.writable) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (false, true) => Interest::WRITABLE,
            _ => Interest::READABLE,
        };
        // If this fails, the dial ends by its deadline.
        let _ = registry
            .register(&mut SourceFd(&new.fd), token, interest)
            .or_else(|_| registry.reregister(&mut SourceFd(&new.fd), token, interest));
    }
}

impl<S: Default> Engine<S> {
    /// Starts a dial. `next_dial_outcome` returns its outcome with `tag`, possibly at once.
    pub fn dial(&mut self, dial: Dial, tag: u64) -> DialId {
        let now = self.now();
        let pending_dials = &mut self.pending_dials;
        pending_dials.generation = ConnId::next_generation(pending_dials.generation);
        let generation = pending_dials.generation;
        let index = pending_dials.slab.insert(PendingDial {
            generation,
            dial,
            tag,
            watches: Vec::new(),
            scheduled_at: None,
        });
        pending_dials.advance_one(index, self.poller.registry(), now);
        if !self.turn.is_running() {
            self.set_timer(now);
        }
        DialId(ConnId::new(index, generation))
    }

    /// Cancels a dial and frees its resources. It has no outcome.
    pub fn cancel_dial(&mut self, id: DialId) {
        let index = id.0.index();
        let found = self.pending_dials.slab.get(index);
        if found.is_some_and(|pending| ConnId::new(index, pending.generation) == id.0) {
            self.pending_dials.slab.remove(index);
        }
    }

    /// Returns the outcome of the next dial that has ended.
    pub fn next_dial_outcome(&mut self) -> Option<DialOutcome> {
        self.pending_dials.outcomes.pop_front()
    }

    /// Adds an established client connection, with the limits and the meter of `service`.
    pub fn add_established(
        &mut self,
        established: Established,
        service: &Arc<ConnConfig>,
    ) -> io::Result<ConnId> {
        let now = self.now();
        let id = self.table.next_id();
        let fd = established.transport.fd();
        let registry = self.poller.registry();
        // The dial has usually registered it already, with the token of the dial.
        registry
            .reregister(&mut SourceFd(&fd), id.token(), Interest::READABLE)
            .or_else(|_| registry.register(&mut SourceFd(&fd), id.token(), Interest::READABLE))?;
        let mut conn = Conn::from_dial(id, established, service, now);
        // No poll reports bytes that TLS has decrypted already.
        let may_hold_bytes = conn.is_tls();
        conn.input.readable = may_hold_bytes;
        if let Some(deadline) = conn.proto.deadline() {
            conn.timers.schedule(&mut self.timers, id, deadline);
        }
        self.table.insert(Box::new(conn));
        if may_hold_bytes {
            self.enqueue(id);
        }
        Ok(id)
    }

    /// Makes the engine's descriptor readable at `at` at the latest.
    pub fn wake_at(&mut self, at: Instant) {
        if self.alarm.wake_at(at) && !self.turn.is_running() {
            let now = self.now();
            self.set_timer(now);
        }
    }

    /// Closes a connection now, over TLS with `close_notify`.
    pub fn close(&mut self, id: ConnId) {
        let now = self.now();
        self.close_now(id, now);
    }
}
