//! Receive buffers, send buffers and their pool.

use std::any::Any;
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::Protocol;
use crate::h1::HeadParser;
use crate::head::FieldSpan;

/// Unread bytes up to this number move to a buffer of their own when the connection is idle.
const MAX_RESIDUE_BYTES: usize = 4096;
/// Shared bytes up to this size are copied after the head: one slice costs the kernel less than two.
const MAX_COPY_BYTES: usize = 16 * 1024;
/// Pieces of a large body that is cut into frames are copied up to this size.
const MAX_COPY_PIECE_BYTES: usize = 4 * 1024;
/// Send buffers larger than this are not kept for reuse.
const MAX_IDLE_SEND_BYTES: usize = 128 * 1024;
/// Unused receive buffers kept at most: connections release theirs before the flush, so few are in use at once.
const MAX_IDLE_RECV: usize = 16;
/// Minimum free space worth a system call: below it, space is made first.
const MIN_READ_BYTES: usize = 8 * 1024;

/// A pool of receive and send buffers, one per I/O thread. A connection holds a receive buffer only while it has
/// unread bytes, so thousands of idle connections cost little.
#[derive(Debug)]
pub struct BufferPool {
    buffer_bytes: usize,
    max_idle: usize,
    recv_buffers: Vec<Buffer>,
    send_buffers: Vec<Vec<u8>>,
    /// Storage of idle connections, for each protocol.
    storage: [Vec<Box<dyn Any + Send + Sync>>; 3],
}

impl BufferPool {
    /// Creates a pool of buffers of `buffer_bytes` (64 KiB is right) that keeps at most `max_idle` unused
    /// ones.
    pub fn new(buffer_bytes: usize, max_idle: usize) -> Self {
        Self {
            buffer_bytes,
            max_idle,
            recv_buffers: Vec::new(),
            send_buffers: Vec::new(),
            storage: [const { Vec::new() }; 3],
        }
    }

    fn take(&mut self) -> Buffer {
        self.recv_buffers
            .pop()
            .unwrap_or_else(|| Buffer::of_size(self.buffer_bytes))
    }

    fn give(&mut self, mut block: Buffer) {
        if block.bytes.len() == self.buffer_bytes
            && self.recv_buffers.len() < self.max_idle.min(MAX_IDLE_RECV)
        {
            if let Some(head) = &mut block.head {
                head.reset();
            }
            self.recv_buffers.push(block);
        }
    }

    fn take_send(&mut self) -> Vec<u8> {
        self.send_buffers.pop().unwrap_or_default()
    }

    fn give_send(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0
            && buffer.capacity() <= MAX_IDLE_SEND_BYTES
            && self.send_buffers.len() < self.max_idle
        {
            buffer.clear();
            self.send_buffers.push(buffer);
        }
    }

    /// Storage that an idle connection of this protocol has returned.
    pub(crate) fn take_storage<T: Any>(&mut self, protocol: Protocol) -> Option<Box<T>> {
        self.storage[protocol as usize].pop()?.downcast().ok()
    }

    pub(crate) fn give_storage<T: Any + Send + Sync>(
        &mut self,
        protocol: Protocol,
        storage: Box<T>,
    ) {
        let idle = &mut self.storage[protocol as usize];
        if idle.len() < self.max_idle {
            idle.push(storage);
        }
    }
}

/// The head being parsed in a receive buffer, or the last one.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub parser: HeadParser,
    pub spans: Vec<FieldSpan>,
}

impl Head {
    fn reset(&mut self) {
        self.parser = HeadParser::default();
        self.spans.clear();
    }
}

/// Received bytes and the head being parsed in them. Empty: not allocated.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Box<[u8]>,
    head: Option<Box<Head>>,
}

impl Buffer {
    fn of_size(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes].into_boxed_slice(),
            head: Some(Box::default()),
        }
    }
}

/// How many bytes may be held unread, and whether they must be contiguous.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecvBudget {
    /// Maximum number of unread bytes.
    pub max_unread: usize,
    /// A head is parsed in place: grow or compact the buffer rather than stop.
    pub contiguous: bool,
}

/// The unread bytes of a connection, `buffer[start..end]`.
#[derive(Debug, Default)]
pub(crate) struct RecvBuffer {
    buffer: Buffer,
    start: usize,
    end: usize,
}

impl RecvBuffer {
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub fn unread(&self) -> &[u8] {
        &self.buffer.bytes[self.start..self.end]
    }

    /// The unread bytes, and the head that is parsed in them.
    pub fn parse_parts(&mut self) -> (&mut [u8], &mut Head) {
        (
            &mut self.buffer.bytes[self.start..self.end],
            self.buffer.head.get_or_insert_default(),
        )
    }

    /// The head being parsed, or the last one; `None` without a buffer.
    pub fn head(&self) -> Option<&Head> {
        self.buffer.head.as_deref()
    }

    /// Forgets the head being parsed.
    pub fn reset_head(&mut self) {
        if let Some(head) = &mut self.buffer.head {
            head.reset();
        }
    }

    /// Marks `n` bytes as read and returns their offset, for `consumed`.
    pub fn consume(&mut self, n: usize) -> usize {
        let at = self.start;
        self.start += n;
        at
    }

    /// Bytes consumed earlier, intact until `space` is called again.
    pub fn consumed(&self, at: usize, n: usize) -> &[u8] {
        &self.buffer.bytes[at..at + n]
    }

    pub fn clear(&mut self) {
        self.start = self.end;
    }

    /// Whether `space` would return a non-empty slice.
    pub fn has_space(&self, budget: RecvBudget) -> bool {
        let unread = self.len();
        let capacity = self.buffer.bytes.len();
        // Moving most of a full buffer to gain little space costs more than waiting for the program.
        let movable =
            budget.contiguous || capacity <= MAX_RESIDUE_BYTES || unread <= capacity / 4 * 3;
        unread < budget.max_unread && (self.end < capacity || movable)
    }

    /// Free space after the unread bytes; makes it by taking, growing or compacting a buffer.
    pub fn space(&mut self, buffers: &mut BufferPool, budget: RecvBudget) -> &mut [u8] {
        if !self.has_space(budget) {
            return &mut [];
        }
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        if self.buffer.bytes.len() - self.end < MIN_READ_BYTES {
            self.make_space(buffers, budget);
        }
        let allowed = budget.max_unread - (self.end - self.start);
        let end = self
            .buffer
            .bytes
            .len()
            .min(self.end.saturating_add(allowed));
        &mut self.buffer.bytes[self.end..end]
    }

    fn make_space(&mut self, buffers: &mut BufferPool, budget: RecvBudget) {
        let unread = self.len();
        if self.buffer.bytes.len() < buffers.buffer_bytes {
            let bigger = buffers.take();
            self.move_to(bigger, buffers);
        } else if unread == self.buffer.bytes.len() {
            // A head longer than a buffer: only if the limits allow more than a buffer holds.
            self.move_to(Buffer::of_size(budget.max_unread), buffers);
        } else if self.start > 0 && (budget.contiguous || unread <= self.buffer.bytes.len() / 4 * 3)
        {
            self.buffer.bytes.copy_within(self.start..self.end, 0);
            self.start = 0;
            self.end = unread;
        }
    }

    fn move_to(&mut self, mut to: Buffer, buffers: &mut BufferPool) {
        let unread = self.len();
        to.bytes[..unread].copy_from_slice(&self.buffer.bytes[self.start..self.end]);
        // The head moves along: the old buffer is given back with the new one's.
        if self.buffer.head.is_some() {
            std::mem::swap(&mut to.head, &mut self.buffer.head);
        }
        buffers.give(std::mem::replace(&mut self.buffer, to));
        self.start = 0;
        self.end = unread;
    }

    pub fn received(&mut self, n: usize) {
        self.end = (self.end + n).min(self.buffer.bytes.len());
    }

    /// Returns the buffer to the pool when nothing, or only a few bytes, is unread.
    pub fn release(&mut self, buffers: &mut BufferPool, parsing: bool) {
        let unread = self.len();
        if unread == 0 {
            buffers.give(std::mem::take(&mut self.buffer));
            self.start = 0;
            self.end = 0;
        } else if unread <= MAX_RESIDUE_BYTES && self.buffer.bytes.len() > MAX_RESIDUE_BYTES {
            let head = self.buffer.head.as_deref().filter(|_| parsing);
            let residue = Buffer {
                bytes: self.unread().into(),
                head: head.map(|head| {
                    Box::new(Head {
                        parser: head.parser,
                        spans: head.spans.as_slice().to_vec(),
                    })
                }),
            };
            buffers.give(std::mem::replace(&mut self.buffer, residue));
            self.start = 0;
            self.end = unread;
        }
    }
}

/// Bytes to send: small pieces in one vector, large ones shared by reference between them.
#[derive(Debug, Default)]
pub(crate) struct SendBuffer {
    copied: Vec<u8>,
    /// Number of bytes of `copied` that were sent.
    sent: usize,
    /// `None` while there is no large piece, as on an idle connection.
    #[expect(
        clippy::box_collection,
        reason = "most connections have none: 8 bytes, not 32"
    )]
    shared: Option<Box<VecDeque<SharedPiece>>>,
    pending: usize,
}

/// A large piece that belongs in front of `copied[before..]`.
#[derive(Debug)]
struct SharedPiece {
    before: usize,
    bytes: Bytes,
}

impl SendBuffer {
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Appends through a function that may fail; on failure nothing is appended.
    pub fn append<T, E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = self.copied.len();
        let result = write(&mut self.copied);
        if result.is_err() {
            self.copied.truncate(before);
        }
        self.pending += self.copied.len() - before;
        result
    }

    /// Appends through a function that cannot fail; returns how many bytes.
    pub fn fill(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let before = self.copied.len();
        write(&mut self.copied);
        let n = self.copied.len() - before;
        self.pending += n;
        n
    }

    pub fn push(&mut self, data: &[u8]) {
        self.copied.extend_from_slice(data);
        self.pending += data.len();
    }

    pub fn push_shared(&mut self, data: Bytes) {
        if data.len() <= MAX_COPY_BYTES {
            return self.push(&data);
        }
        self.share(data);
    }

    /// Appends a piece of a larger buffer: shared by reference even if it is only one frame long.
    pub fn push_piece(&mut self, data: Bytes) {
        if data.len() <= MAX_COPY_PIECE_BYTES {
            return self.push(&data);
        }
        self.share(data);
    }

    fn share(&mut self, bytes: Bytes) {
        self.pending += bytes.len();
        let before = self.copied.len();
        let shared = self.shared.get_or_insert_default();
        shared.push_back(SharedPiece { before, bytes });
    }

    /// Offset of the next copied byte; valid until bytes are sent.
    pub fn end(&self) -> usize {
        self.copied.len()
    }

    /// The copied bytes from `at` on, none of which was sent.
    pub fn from(&self, at: usize) -> &[u8] {
        &self.copied[at..]
    }

    /// Mutable access to a byte that was not sent yet.
    pub fn byte_mut(&mut self, at: usize) -> Option<&mut u8> {
        self.copied.get_mut(at)
    }

    #[inline]
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut at = self.sent;
        let mut count = 0;
        let mut add = |slice: &'a [u8]| {
            if !slice.is_empty() && count < out.len() {
                out[count] = IoSlice::new(slice);
                count += 1;
            }
        };
        if let Some(pieces) = &self.shared {
            for shared in pieces.iter() {
                add(&self.copied[at..shared.before]);
                at = shared.before;
                add(&shared.bytes);
            }
        }
        add(&self.copied[at..]);
        count
    }

    /// `n` bytes were sent.
    pub fn sent(&mut self, n: usize) {
        let mut n = n.min(self.pending);
        self.pending -= n;
        while let Some(pieces) = &mut self.shared
            && let Some(shared) = pieces.front_mut()
        {
            let before = (shared.before - self.sent).min(n);
            self.sent += before;
            n -= before;
            let part = shared.bytes.len().min(n);
            shared.bytes.advance(part);
            n -= part;
            if self.sent < shared.before || !shared.bytes.is_empty() {
                return;
            }
            pieces.pop_front();
        }
        self.sent += n;
        if self.pending == 0 {
            self.copied.clear();
            self.sent = 0;
        } else if self.sent > MAX_IDLE_SEND_BYTES && self.sent > self.copied.len() / 2 {
            self.drop_sent();
        }
    }

    /// Drops the bytes that were sent, for a buffer that never becomes empty.
    fn drop_sent(&mut self) {
        self.copied.drain(..self.sent);
        for shared in self.shared.iter_mut().flat_map(|shared| shared.iter_mut()) {
            shared.before -= self.sent;
        }
        self.sent = 0;
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes a buffer from the pool for the response to the bytes about to be received.
    pub fn prepare(&mut self, buffers: &mut BufferPool) {
        if self.copied.capacity() == 0 {
            self.copied = buffers.take_send();
        }
    }

    /// Returns an empty buffer to the pool, unless its capacity is at most `kept` bytes.
    pub fn release(&mut self, buffers: &mut BufferPool, kept: usize) {
        if self.pending == 0 {
            if self.copied.capacity() > kept {
                buffers.give_send(std::mem::take(&mut self.copied));
            }
            self.shared = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices_of(buffer: &SendBuffer) -> Vec<u8> {
        let mut out = [IoSlice::new(&[]); 16];
        let count = buffer.slices(&mut out);
        out[..count]
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .take(50)
            .collect()
    }

    #[test]
    fn shared_pieces_are_sent_in_order_at_every_cut() {
        for step in [1, 7, 1000, 16_384, 20_000, 100_000] {
            let mut buffer = SendBuffer::default();
            let mut expected = Vec::new();
            for byte in 0..4_u8 {
                buffer.push(b"head");
                buffer.push_shared(Bytes::from(vec![byte; 20_000]));
                buffer.push_shared(Bytes::from(vec![byte; 10]));
                expected.extend_from_slice(b"head");
                expected.extend(std::iter::repeat_n(byte, 20_010));
            }
            let mut seen = 0;
            while buffer.pending() > 0 {
                assert!(expected[seen..].starts_with(&slices_of(&buffer)));
                seen += step.min(buffer.pending());
                buffer.sent(step);
            }
            assert_eq!(seen, expected.len());
            assert_eq!(slices_of(&buffer), b"");
        }
    }

    #[test]
    fn a_full_window_stops_reading_and_reading_reopens_it() {
        let mut buffers = BufferPool::new(1024 * 16, 2);
        let mut buffer = RecvBuffer::default();
        let budget = RecvBudget {
            max_unread: 1024 * 16,
            contiguous: false,
        };
        let n = buffer.space(&mut buffers, budget).len();
        assert_eq!(n, 1024 * 16);
        buffer.received(n);
        assert!(buffer.space(&mut buffers, budget).is_empty());
        buffer.consume(n / 2);
        assert!(!buffer.space(&mut buffers, budget).is_empty());
    }

    #[test]
    fn a_small_rest_moves_to_a_buffer_of_its_size_and_back() {
        let mut buffers = BufferPool::new(64 * 1024, 2);
        let mut buffer = RecvBuffer::default();
        let budget = RecvBudget {
            max_unread: 64 * 1024,
            contiguous: true,
        };
        buffer.space(&mut buffers, budget)[..5].copy_from_slice(b"hello");
        buffer.received(5);
        buffer.release(&mut buffers, false);
        assert_eq!(
            (
                buffer.buffer.bytes.len(),
                buffer.unread(),
                buffers.recv_buffers.len()
            ),
            (5, &b"hello"[..], 1)
        );
        assert!(buffer.space(&mut buffers, budget).len() > 60_000);
        assert_eq!(buffer.unread(), b"hello");
    }

    #[test]
    fn storage_is_kept_for_its_protocol_up_to_the_limit() {
        let mut buffers = BufferPool::new(64, 2);
        for n in 0..3_u32 {
            buffers.give_storage(Protocol::Http2, Box::new(n));
        }
        assert_eq!(buffers.take_storage::<u32>(Protocol::Http3), None);
        let taken = [(); 3].map(|()| buffers.take_storage::<u32>(Protocol::Http2));
        assert_eq!(taken, [Some(Box::new(1)), Some(Box::new(0)), None]);
    }
}
