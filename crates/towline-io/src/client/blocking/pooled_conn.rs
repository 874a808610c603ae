//! One connection as the pool holds it, and as calls get it.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::h1_conn::Line;
use super::h2_conn::Shared;
use crate::client::connection_info::ConnectionFacts;
use crate::client::dial::DialTimings;
use crate::client::pool::SlotId;
use crate::conn::Peer;

/// The name of a connection in the pool.
#[derive(Clone)]
pub(super) struct Cable {
    pub(super) fd: RawFd,
    pub(super) facts: Arc<ConnectionFacts>,
    pub(super) wire: Wire,
}

#[derive(Clone)]
pub(super) enum Wire {
    /// HTTP/1: one call at a time.
    Line(Arc<Mutex<Line>>),
    /// HTTP/2: many.
    Shared(Arc<Shared>),
}

impl Cable {
    /// `slot`: its place in the pool.
    pub(super) fn new(
        peer: Peer<()>,
        slot: SlotId,
        timings: DialTimings,
        generation: u64,
        now: Instant,
    ) -> io::Result<Self> {
        Ok(Self {
            fd: peer.as_raw_fd(),
            facts: Arc::new(ConnectionFacts::of(&peer, timings)),
            wire: if peer.is_shared() {
                Wire::Shared(Arc::new(Shared::new(peer, slot, generation, now)?))
            } else {
                let line = Line::new(peer, generation, now)?;
                Wire::Line(Arc::new(Mutex::new(line)))
            },
        })
    }

    /// How many calls it takes at once, as far as is known.
    pub(super) fn capacity(&self) -> u32 {
        match &self.wire {
            Wire::Line(_) => 1,
            Wire::Shared(shared) => shared.limit(),
        }
    }

    /// All the descriptors that it holds open.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> {
        let more = match &self.wire {
            Wire::Line(_) => None,
            Wire::Shared(shared) => Some(shared.bell_fds()),
        };
        std::iter::once(self.fd).chain(more.into_iter().flatten())
    }
}

pub(super) fn open(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}
