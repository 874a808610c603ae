//! Bytes of a stream: received ones that the program has not read, and written ones that were not sent.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use super::states::EndStream;

/// A buffer that grew beyond this is not kept for the next stream.
const MAX_IDLE_BYTES: usize = 64 * 1024;
/// An idle connection keeps no buffer that is larger.
const MAX_RESTING_BYTES: usize = 4 * 1024;

/// Received bytes that the program did not read immediately.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
}

impl Inbox {
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub fn push(&mut self, data: &[u8]) {
        if self.is_empty() {
            self.clear();
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(data);
    }

    /// Takes up to `max` bytes. They stay in place until more is pushed.
    pub fn take(&mut self, max: usize) -> &[u8] {
        let from = self.start;
        self.start = self.bytes.len().min(from.saturating_add(max));
        &self.bytes[from..self.start]
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        if self.bytes.capacity() > MAX_IDLE_BYTES {
            self.bytes = Vec::new();
        }
    }

    /// Frees a large buffer of a free slot.
    pub fn shrink(&mut self) {
        if self.bytes.capacity() > MAX_RESTING_BYTES {
            *self = Self::default();
        }
    }
}

/// Body bytes of the program.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    Copied(&'a [u8]),
    Shared(Bytes),
}

impl Data<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Copied(data) => data.len(),
            Self::Shared(data) => data.len(),
        }
    }
}

/// Bytes to send that wait for a window, for space in the send buffer or for their turn.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Bytes>,
    /// Small pieces that were copied, after the others.
    tail: BytesMut,
    bytes: usize,
    pub end: EndStream,
}

impl Outbox {
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub fn push(&mut self, data: &[u8]) {
        self.tail.extend_from_slice(data);
        self.bytes += data.len();
    }

    pub fn push_shared(&mut self, data: Bytes) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.bytes += data.len();
        self.pieces.push_back(data);
    }

    pub fn push_data(&mut self, data: Data<'_>) {
        match data {
            Data::Copied(data) => self.push(data),
            Data::Shared(data) => self.push_shared(data),
        }
    }

    /// Appends bytes that `write` puts into the buffer of copied ones.
    pub fn append(&mut self, write: impl FnOnce(&mut BytesMut)) -> usize {
        let before = self.tail.len();
        write(&mut self.tail);
        let n = self.tail.len() - before;
        self.bytes += n;
        n
    }

    /// The next piece, of up to `max` bytes; it stays queued until it is [advanced](Self::advance) over.
    pub fn peek(&mut self, max: usize) -> Bytes {
        if self.pieces.is_empty() && !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        match self.pieces.front() {
            Some(front) if front.len() > max => front.slice(..max),
            Some(front) => front.clone(),
            None => Bytes::new(),
        }
    }

    /// Removes `n` bytes of the piece that `peek` has returned.
    pub fn advance(&mut self, n: usize) {
        let Some(front) = self.pieces.front_mut() else {
            return;
        };
        let n = n.min(front.len());
        front.advance(n);
        self.bytes -= n;
        if front.is_empty() {
            self.pieces.pop_front();
        }
    }

    /// Takes the next piece, of up to `max` bytes.
    pub fn take(&mut self, max: usize) -> Bytes {
        let piece = match self.pieces.front_mut() {
            Some(front) if front.len() > max => {
                let piece = front.slice(..max);
                front.advance(max);
                piece
            }
            Some(_) => self.pieces.pop_front().unwrap_or_default(),
            None => self.tail.split_to(max.min(self.tail.len())).freeze(),
        };
        self.bytes -= piece.len();
        piece
    }

    pub fn clear(&mut self) {
        self.pieces.clear();
        self.tail.clear();
        self.bytes = 0;
    }

    /// Frees the buffers while nothing is in them.
    pub fn release(&mut self) {
        if self.is_empty() && self.pieces.capacity() + self.tail.capacity() > 0 {
            *self = Self::default();
        }
    }

    /// Frees a large buffer of a free slot.
    pub fn shrink(&mut self) {
        if self.tail.capacity() > MAX_RESTING_BYTES {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_in_order_at_every_size() {
        for size in 1..12 {
            let mut outbox = Outbox::default();
            outbox.push(b"ab");
            outbox.push(b"c");
            outbox.push_shared(Bytes::from_static(b"defgh"));
            outbox.push(b"ij");
            let mut seen = Vec::new();
            while !outbox.is_empty() {
                let piece = outbox.take(size);
                assert!(!piece.is_empty() && piece.len() <= size);
                seen.extend_from_slice(&piece);
                assert_eq!(seen.len() + outbox.len(), 10);
            }
            assert_eq!(seen, b"abcdefghij");
        }
    }

    #[test]
    fn pieces_stay_until_they_are_advanced_over() {
        for size in 1..12 {
            let mut outbox = Outbox::default();
            outbox.push(b"ab");
            outbox.push_shared(Bytes::from_static(b"defgh"));
            outbox.append(|tail| tail.extend_from_slice(b"ij"));
            let mut seen = Vec::new();
            while !outbox.is_empty() {
                let piece = outbox.peek(size);
                assert_eq!(piece, outbox.peek(size));
                let n = piece.len().div_ceil(2);
                seen.extend_from_slice(&piece[..n]);
                outbox.advance(n);
                assert_eq!(seen.len() + outbox.len(), 9);
            }
            assert_eq!(seen, b"abdefghij");
        }
    }

    #[test]
    fn an_inbox_returns_the_pushed_bytes() {
        let mut inbox = Inbox::default();
        let mut seen = Vec::new();
        for round in 0..50_u8 {
            inbox.push(&[round; 7]);
            seen.extend_from_slice(inbox.take(5));
        }
        while !inbox.is_empty() {
            seen.extend_from_slice(inbox.take(100));
        }
        let expected: Vec<u8> = (0..50).flat_map(|round| [round; 7]).collect();
        assert_eq!(seen, expected);
    }
}
