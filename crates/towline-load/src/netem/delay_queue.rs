//! The data in flight of one connection in one direction, in order and bounded.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

/// A piece as it arrives at the other end.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    Data(Bytes),
    Fin,
    Reset,
}

/// Pieces with the time at which each arrives.
#[derive(Default)]
pub struct DelayQueue {
    pieces: VecDeque<(Instant, Arrival)>,
    held_bytes: usize,
    /// A FIN or reset is queued, or has been delivered; nothing is queued after it.
    ended: bool,
    /// Time for which a timer is set.
    pub armed: Option<Instant>,
}

impl DelayQueue {
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the end has been delivered.
    pub fn is_over(&self) -> bool {
        self.ended && self.pieces.is_empty()
    }

    /// Queues a piece. Order is kept: a piece that is due before its predecessor arrives with it.
    pub fn push(&mut self, due: Instant, arrival: Arrival) {
        if self.ended {
            return;
        }
        let due = self.pieces.back().map_or(due, |(last, _)| due.max(*last));
        match &arrival {
            Arrival::Data(bytes) => self.held_bytes += bytes.len(),
            Arrival::Fin | Arrival::Reset => self.ended = true,
        }
        self.pieces.push_back((due, arrival));
    }

    /// Time at which the next piece arrives.
    pub fn next(&self) -> Option<Instant> {
        self.pieces.front().map(|(due, _)| *due)
    }

    pub fn front(&mut self, now: Instant) -> Option<&mut Arrival> {
        let (due, arrival) = self.pieces.front_mut()?;
        (*due <= now).then_some(arrival)
    }

    /// Removes `bytes` from the first piece, and the piece itself when nothing is left of it.
    pub fn written(&mut self, bytes: usize) {
        self.held_bytes -= bytes;
        if let Some((_, Arrival::Data(data))) = self.pieces.front_mut() {
            let _ = data.split_to(bytes);
            if data.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// Removes the first piece, which is a FIN that has been delivered.
    pub fn pop_end(&mut self) {
        self.pieces.pop_front();
    }

    /// Drops everything in flight because the receiving side has closed.
    pub fn cut(&mut self) {
        self.pieces.clear();
        self.held_bytes = 0;
        self.ended = true;
    }
}
