//! Datagrams and packets on the way: a heap by the time of their arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::shaper::Passage;

/// Bytes on the way in both directions; over it datagrams are lost, as in a full router.
const MAX_HELD_BYTES: usize = 64 * 1024 * 1024;

/// Datagrams of a network.
pub struct Transit<T> {
    /// By time, then by number: what arrives at the same time keeps its order.
    in_flight: BinaryHeap<Reverse<(Instant, u64, T)>>,
    held_bytes: usize,
    sent: u64,
}

impl<T: AsRef<[u8]> + Clone + Ord> Transit<T> {
    pub fn new() -> Self {
        Self {
            in_flight: BinaryHeap::new(),
            held_bytes: 0,
            sent: 0,
        }
    }

    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Time of the next arrival.
    pub fn next_due(&self) -> Option<Instant> {
        self.in_flight.peek().map(|Reverse((due, ..))| *due)
    }

    /// Puts a datagram on the way, once or twice.
    pub fn send(&mut self, datagram: T, passage: Passage) {
        let bytes = datagram.as_ref().len();
        for copy in std::iter::repeat_n(datagram, passage.copies) {
            if self.held_bytes + bytes > MAX_HELD_BYTES {
                return;
            }
            self.held_bytes += bytes;
            self.sent += 1;
            self.in_flight.push(Reverse((passage.due, self.sent, copy)));
        }
    }

    /// The next datagram that has arrived at `now`.
    pub fn next_arrived(&mut self, now: Instant) -> Option<T> {
        self.next_due().filter(|due| *due <= now)?;
        let Reverse((_, _, datagram)) = self.in_flight.pop()?;
        self.held_bytes -= datagram.as_ref().len();
        Some(datagram)
    }
}
