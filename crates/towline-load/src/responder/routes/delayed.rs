//! Queue of delayed responses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
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
    heap: BinaryHeap<Reverse<Entry>>,
    pushed: u64,
}

struct Entry {
    at: Instant,
    /// Orders entries of the same time.
    number: u64,
    id: ConnId,
    due: Due,
}

impl Delayed {
    pub fn push(&mut self, at: Instant, id: ConnId, due: Due) {
        self.pushed += 1;
        let number = self.pushed;
        self.heap.push(Reverse(Entry {
            at,
            number,
            id,
            due,
        }));
    }

    /// When the next entry is due.
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes an entry that is due by `now`.
    pub fn due(&mut self, now: Instant) -> Option<(Instant, ConnId, Due)> {
        self.next().filter(|at| *at <= now)?;
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.at, entry.id, entry.due))
    }
}

impl Entry {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}
