//! Received bytes. Body bytes stay in the receive buffer until the next call of `next_event`, for the program to read.

use crate::BufferPool;
use crate::buffer::{RecvBudget, RecvBuffer};
use crate::multiplexed::streams::StreamKey;

/// Bytes of the transport that are not parsed, and the last body bytes that were.
#[derive(Debug, Default)]
pub(super) struct Input {
    buffer: RecvBuffer,
    /// Number of unread bytes when the last frame was found incomplete.
    scanned_bytes: usize,
    chunk: Option<DataChunk>,
}

/// Body bytes in the receive buffer.
#[derive(Debug, Clone, Copy)]
struct DataChunk {
    to: StreamKey,
    at: usize,
    len: usize,
}

impl Input {
    pub fn of(buffer: RecvBuffer) -> Self {
        Self {
            buffer,
            ..Self::default()
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    #[inline]
    pub fn unread(&self) -> &[u8] {
        self.buffer.unread()
    }

    pub fn has_space(&self, budget: RecvBudget) -> bool {
        self.buffer.has_space(budget)
    }

    #[inline]
    pub fn space(&mut self, buffers: &mut BufferPool, budget: RecvBudget) -> &mut [u8] {
        self.buffer.space(buffers, budget)
    }

    #[inline]
    pub fn received(&mut self, n: usize) {
        self.buffer.received(n);
    }

    pub fn clear(&mut self) {
        self.buffer.clear();
    }

    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.buffer.release(buffers, false);
    }

    /// Marks bytes as read and returns their offset.
    #[inline]
    pub fn consume(&mut self, n: usize) -> usize {
        self.scanned_bytes = 0;
        self.buffer.consume(n)
    }

    /// Bytes consumed earlier, until more are received.
    #[inline]
    pub fn consumed(&self, at: usize, n: usize) -> &[u8] {
        self.buffer.consumed(at, n)
    }

    /// The next frame is not complete.
    #[inline]
    pub fn set_scanned(&mut self) {
        self.scanned_bytes = self.buffer.len();
    }

    /// Whether bytes were received since then.
    #[inline]
    pub fn has_unscanned(&self) -> bool {
        self.buffer.len() > self.scanned_bytes
    }

    /// Keeps `len` consumed bytes at offset `at` for the program.
    #[inline]
    pub fn keep_chunk(&mut self, to: StreamKey, at: usize, len: usize) {
        self.chunk = Some(DataChunk { to, at, len });
    }

    /// Body bytes of a stream that were kept.
    #[inline]
    pub fn chunk_len(&self, of: StreamKey) -> usize {
        let chunk = self.chunk.filter(|chunk| chunk.to == of);
        chunk.map_or(0, |chunk| chunk.len)
    }

    /// Reads `n` kept bytes.
    #[inline]
    pub fn read_chunk(&mut self, n: usize) -> &[u8] {
        let Some(chunk) = &mut self.chunk else {
            return &[];
        };
        let from = chunk.at;
        chunk.at += n;
        chunk.len -= n;
        if chunk.len == 0 {
            self.chunk = None;
        }
        self.buffer.consumed(from, n)
    }

    /// Takes all kept bytes, and their stream.
    #[inline]
    pub fn take_chunk(&mut self) -> Option<(StreamKey, &[u8])> {
        let DataChunk { to, at, len } = self.chunk.take()?;
        Some((to, self.buffer.consumed(at, len)))
    }

    /// The program needs no more of a stream.
    #[inline]
    pub fn forget_chunk(&mut self, of: StreamKey) {
        if self.chunk.is_some_and(|chunk| chunk.to == of) {
            self.chunk = None;
        }
    }
}
