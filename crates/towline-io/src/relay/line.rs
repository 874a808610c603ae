//! What one connection has on its way in one direction, in order and bounded.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

/// What arrives at the other end.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    Data(Bytes),
    Fin,
    Reset,
}

#[derive(Default)]
pub struct Line {
    pieces: VecDeque<(Instant, Arrival)>,
    held_bytes: usize,
    /// Nothing comes behind an end.
    ended: bool,
    /// A timer is set for this time.
    pub armed: Option<Instant>,
}

impl Line {
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The end has arrived.
    pub fn is_over(&self) -> bool {
        self.ended && self.pieces.is_empty()
    }

    /// Nothing overtakes: what would arrive earlier than the piece before arrives with it.
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

    /// When the next piece arrives.
    pub fn next(&self) -> Option<Instant> {
        self.pieces.front().map(|(due, _)| *due)
    }

    pub fn front(&mut self, now: Instant) -> Option<&mut Arrival> {
        let (due, arrival) = self.pieces.front_mut()?;
        (*due <= now).then_some(arrival)
    }

    /// So many bytes of the first piece are written; whether that was all of it.
    pub fn written(&mut self, bytes: usize) {
        self.held_bytes -= bytes;
        if let Some((_, Arrival::Data(data))) = self.pieces.front_mut() {
            let _ = data.split_to(bytes);
            if data.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// The first piece, an end, has been passed on.
    pub fn passed(&mut self) {
        self.pieces.pop_front();
    }

    /// Its reader is gone: what is on its way goes nowhere.
    pub fn cut(&mut self) {
        self.pieces.clear();
        self.held_bytes = 0;
        self.ended = true;
    }
}
