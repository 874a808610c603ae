//! Bytes of a response body that were taken from a shared connection and not yet read by the program.

use crate::client::conn_ext::Trailer;

#[derive(Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    /// Bytes that the program has read.
    taken: usize,
    /// Bytes that the program has requested.
    pub(super) wanted: usize,
    /// Trailers of a body that was taken to its end.
    pub(super) trailers: Vec<Trailer>,
}

impl ReadBuffer {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn push(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// Passes up to `max` bytes to `sink`. `None`: the buffer is empty, and `max` bytes are wanted.
    pub(super) fn take<T>(&mut self, max: usize, sink: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if self.is_empty() {
            self.wanted = max;
            return None;
        }
        let end = self.bytes.len().min(self.taken.saturating_add(max));
        let value = sink(&self.bytes[self.taken..end]);
        self.taken = end;
        if self.is_empty() {
            self.bytes.clear();
            self.taken = 0;
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_bytes_are_taken_in_pieces() {
        let mut buffer = ReadBuffer::default();
        assert_eq!(buffer.take(7, <[u8]>::to_vec), None);
        assert_eq!(buffer.wanted, 7);
        buffer.push(b"hello");
        assert_eq!(buffer.take(2, <[u8]>::to_vec), Some(b"he".to_vec()));
        buffer.push(b" you");
        assert_eq!(buffer.len(), 7);
        let all = buffer.take(usize::MAX, <[u8]>::to_vec);
        assert_eq!(all, Some(b"llo you".to_vec()));
        assert!(buffer.is_empty());
    }
}
