//! Bytes to send.

use std::io::IoSlice;

use bytes::Bytes;

use crate::BufferPool;
use crate::buffer::SendBuffer;

use super::frame::{FrameHeader, FrameType, flag};

/// The send buffer. `END_STREAM` can still be set on its last frame, and the bytes that the peer has caused are counted.
#[derive(Debug, Default)]
pub(super) struct Output {
    buffer: SendBuffer,
    /// The last frame of DATA or HEADERS: its stream and offset.
    last_frame: Option<(u32, usize)>,
    /// Upper bound of the bytes that the peer has caused.
    induced_bytes: usize,
}

impl Output {
    #[inline]
    pub fn pending(&self) -> usize {
        self.buffer.pending()
    }

    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.buffer.slices(out)
    }

    #[inline]
    pub fn induced_bytes(&self) -> usize {
        self.induced_bytes
    }

    /// Resets the count of bytes that the peer has caused: it did not cause the output so far.
    pub fn forget_induced(&mut self) {
        self.induced_bytes = 0;
    }

    #[inline]
    pub fn sent(&mut self, n: usize) {
        self.buffer.sent(n);
        if n > 0 {
            self.last_frame = None;
        }
        self.induced_bytes = self.induced_bytes.min(self.buffer.pending());
    }

    pub fn clear(&mut self) {
        self.buffer.clear();
        self.last_frame = None;
    }

    pub fn prepare(&mut self, buffers: &mut BufferPool) {
        self.buffer.prepare(buffers);
    }

    pub fn release(&mut self, buffers: &mut BufferPool, kept: usize) {
        self.buffer.release(buffers, kept);
    }

    /// Writes frames that the program has caused.
    #[inline]
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.buffer.fill(write);
    }

    /// Writes frames that the peer has caused.
    #[inline]
    pub fn push_induced(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.induced_bytes += self.buffer.fill(write);
    }

    /// Writes a head. Returns its offset and its length.
    #[inline]
    pub fn push_head(
        &mut self,
        id: u32,
        end: bool,
        is_induced: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> (usize, usize) {
        let start = self.buffer.end();
        let written = self.buffer.fill(write);
        self.last_frame = (!end).then_some((id, start));
        if is_induced {
            self.induced_bytes += written;
        }
        (start, written)
    }

    /// The bytes from that offset on.
    #[inline]
    pub fn from(&self, at: usize) -> &[u8] {
        self.buffer.from(at)
    }

    /// Writes the header of a DATA frame of `len` bytes.
    #[inline]
    pub fn begin_data(&mut self, id: u32, len: usize, end: bool) {
        self.last_frame = (!end).then_some((id, self.buffer.end()));
        let header = FrameHeader {
            len: len as u32,
            frame_type: FrameType::Data,
            flags: if end { flag::END_STREAM } else { 0 },
            stream: id,
        };
        self.buffer.push(&header.bytes());
    }

    #[inline]
    pub fn push_data(&mut self, data: &[u8]) {
        self.buffer.push(data);
    }

    pub fn push_shared(&mut self, data: Bytes) {
        self.buffer.push_shared(data);
    }

    /// Appends a piece of a larger buffer.
    pub fn push_piece(&mut self, data: Bytes) {
        self.buffer.push_piece(data);
    }

    /// Sets `END_STREAM` on the last frame, if it is one of that stream.
    pub fn end_last_frame(&mut self, id: u32) -> bool {
        let Some((_, header)) = self.last_frame.filter(|&(stream, _)| stream == id) else {
            return false;
        };
        self.last_frame = None;
        // Type and flags follow the three bytes of the length.
        if let Some(flags) = self.buffer.byte_mut(header + 4) {
            *flags |= flag::END_STREAM;
        }
        true
    }
}
