//! Queue of delayed responses.

use std::collections::BTreeMap;
use std::time::Instant;

use towline_io::ConnId;
use towline_proto::StreamId;

use super::request::PendingRequest;

/// An action that is due on a connection.
pub enum Due {
    Response(Box<PendingRequest>),
    /// The next server-sent event.
    Event(StreamId),
}

#[derive(Default)]
pub struct Delayed {
    /// By time, then by number: actions that are due at the same time keep their order.
    queue: BTreeMap<(Instant, u64), (ConnId, Due)>,
    pushed: u64,
}

impl Delayed {
    pub fn push(&mut self, at: Instant, id: ConnId, due: Due) {
        self.pushed += 1;
        self.queue.insert((at, self.pushed), (id, due));
    }

    /// When the next entry is due.
    pub fn next(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes an entry that is due by `now`.
    pub fn due(&mut self, now: Instant) -> Option<(Instant, ConnId, Due)> {
        self.next().filter(|at| *at <= now)?;
        let ((at, _), (id, due)) = self.queue.pop_first()?;
        Some((at, id, due))
    }
}
