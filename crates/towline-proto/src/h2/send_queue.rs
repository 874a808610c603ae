//! The send queue: scheduling of streams with queued bytes, the most urgent first (RFC 9218).
//!
//! ```text
//!   write ──window, space, empty queue──► SendBuffer ──► transport
//!     └────► outbox ──► fill_send_buffer ────▲
//! ```
//!
//! A DATA frame goes into the send buffer only while little is pending there, so that control frames and urgent
//! streams are never delayed much. The rest stays in the outbox of its stream.

use crate::multiplexed::buffers::Data;
use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::streams::StreamKey;

use super::Connection;
use super::frame::{self, FrameType, HEADER_BYTES, flag};
use super::stream::EndStream;

/// Upper bound of the window updates earned by DATA frames.
const MAX_EARNED_UPDATES: u32 = 1000;

/// Queued bytes that a stream may have even if the connection has no room: its progress depends on no other stream.
const MIN_SHARE_BYTES: usize = 16 * 1024;

impl Connection {
    /// Sends body bytes, or queues them. `last`: nothing follows.
    pub(super) fn send_data(&mut self, key: StreamKey, data: Data<'_>, last: bool) {
        let n = data.len();
        let may_bypass = n <= self.send_window.bytes()
            && self.send_buffer_has_room()
            && self.send_queue.is_empty();
        let stream = self.streams.get_mut(key);
        let bypasses = may_bypass && stream.outbox.is_empty() && n <= stream.send_window.bytes();
        if bypasses {
            return self.send_at_once(key, &data, last);
        }
        stream.outbox.push_data(data);
        self.outboxes_bytes += n;
        if last {
            stream.outbox.end = EndStream::Pending;
        }
        if self.lacks_credit(key) {
            return self.reset_without_credit(key);
        }
        self.update_send_queue(key);
        self.fill_send_buffer();
        self.send_capacity(key);
    }

    /// A result of 0 is followed by `Event::Writable`.
    pub fn send_capacity(&mut self, key: StreamKey) -> usize {
        let stream = self.streams.get_mut(key);
        let queued = stream.outbox.len();
        let mut capacity = self.limits.send_window_bytes.saturating_sub(queued);
        if queued >= MIN_SHARE_BYTES {
            // Other streams can take the room of the connection after the last write to this one.
            let shared = self.limits.http2.max_unsent_bytes;
            capacity = capacity.min(shared.saturating_sub(self.outboxes_bytes));
        }
        if capacity == 0 {
            stream.exchange.pending.set(PendingEvents::WRITER_WAITS);
        }
        capacity
    }

    /// DATA goes into the send buffer while fewer bytes than the send window are pending there.
    fn send_buffer_has_room(&self) -> bool {
        self.send.pending() < self.limits.send_window_bytes
    }

    /// Frames all the data at once.
    fn send_at_once(&mut self, key: StreamKey, data: &Data<'_>, last: bool) {
        let n = data.len();
        self.send_window.take(n);
        let stream = self.streams.get_mut(key);
        stream.send_window.take(n);
        let id = stream.id;
        if last {
            stream.outbox.end = EndStream::Sent;
        }
        let max = self.peer_settings.max_frame as usize;
        stream.stats.sent += (n + n.div_ceil(max) * HEADER_BYTES) as u64;
        let mut from = 0;
        while from < n {
            let to = n.min(from + max);
            let ends = last && to == n;
            self.begin_frame(id, to - from, ends);
            match data {
                Data::Copied(data) => self.send.push(&data[from..to]),
                Data::Shared(data) if to - from == n => self.send.push_shared(data.clone()),
                Data::Shared(data) => self.send.push_piece(data.slice(from..to)),
            }
            from = to;
        }
        if last {
            self.check_closed(key);
        }
    }

    /// Writes the header of a DATA frame of `len` bytes, on which `END_STREAM` can still be set.
    fn begin_frame(&mut self, id: u32, len: usize, end: bool) {
        self.last_frame = (!end).then_some((id, self.send.end()));
        let flags = if end { flag::END_STREAM } else { 0 };
        let header = frame::FrameHeader {
            len: len as u32,
            frame_type: FrameType::Data,
            flags,
            stream: id,
        };
        self.send.push(&header.bytes());
        self.earned_updates = (self.earned_updates + 2).min(MAX_EARNED_UPDATES);
    }

    /// Updates the queue after a change of the stream's window or outbox.
    pub(super) fn update_send_queue(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if stream.can_send() {
            self.send_queue.add(&mut self.streams, key);
            return;
        }
        let waits = stream.wants_to_send();
        // A setting can close a window that was open.
        self.send_queue.remove(&mut self.streams, key);
        if waits {
            self.watch_window(key);
        }
    }

    /// Moves queued bytes to the send buffer as far as windows and space allow.
    pub(super) fn fill_send_buffer(&mut self) {
        while self.send_buffer_has_room()
            && let Some(key) = self.send_queue.first()
        {
            if self.streams.get(key).outbox.is_empty() {
                self.send_queue.remove(&mut self.streams, key);
                self.send_end(key);
                continue;
            }
            if self.send_window.bytes() == 0 && self.timers.eof_seen {
                self.reset_without_credit(key);
                continue;
            }
            if self.send_window.bytes() == 0 {
                self.watch_connection_window();
                return;
            }
            self.send_frame(key);
        }
        if self.send_queue.is_empty() {
            self.timers.window.stop();
        }
    }

    /// Sends one frame of a stream that has bytes and a window.
    fn send_frame(&mut self, key: StreamKey) {
        let max = self
            .send_window
            .bytes()
            .min(self.peer_settings.max_frame as usize);
        let stream = self.streams.get_mut(key);
        let window = stream.send_window.bytes().min(max);
        let piece = stream.outbox.take(window);
        let n = piece.len();
        self.outboxes_bytes -= n;
        stream.send_window.take(n);
        stream.send_timer.advance(self.now, n);
        stream.stats.sent += (HEADER_BYTES + n) as u64;
        stream.stats.last_sent = Some(self.now);
        let is_last = stream.outbox.is_empty();
        let ends =
            is_last && stream.outbox.end == EndStream::Pending && stream.pending_trailers.is_none();
        if ends {
            stream.outbox.end = EndStream::Sent;
        }
        if is_last {
            stream.send_timer.stop();
        }
        let (id, is_clipped) = (stream.id, n == window && !is_last);
        self.send_window.take(n);
        self.timers.window.advance(self.now, n);
        self.begin_frame(id, n, ends);
        if is_clipped && n < max {
            // A frame cut by the stream's window earns the peer no window update.
            self.earned_updates = self.earned_updates.saturating_sub(2);
        }
        self.send.push_piece(piece);
        self.send_queue.remove(&mut self.streams, key);
        let stream = self.streams.get(key);
        if !stream.can_send() {
            self.update_send_queue(key);
        } else if stream.priority.incremental {
            self.send_queue.add(&mut self.streams, key);
        } else {
            self.send_queue.add_first(&mut self.streams, key);
        }
        self.wake_writer(key);
        if ends {
            self.check_closed(key);
        }
    }

    /// Discards the queued bytes of a stream.
    pub(super) fn clear_outbox(&mut self, key: StreamKey) {
        let outbox = &mut self.streams.get_mut(key).outbox;
        self.outboxes_bytes -= outbox.len();
        outbox.clear();
    }

    fn is_unsent_bounded(&self) -> bool {
        self.limits.http2.max_unsent_bytes != usize::MAX
    }

    pub fn await_sent(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        stream.exchange.pending.set(PendingEvents::WRITER_WAITS);
    }

    fn wake_writer(&mut self, key: StreamKey) {
        let mut low = self.limits.send_window_bytes / 2;
        if self.is_unsent_bounded() {
            // Below its own share it has room, whatever the other streams hold by then.
            low = low.min(MIN_SHARE_BYTES);
        }
        let stream = self.streams.get_mut(key);
        if stream.outbox.len() < low && stream.exchange.pending.take(PendingEvents::WRITER_WAITS) {
            self.notify(key, PendingEvents::WRITABLE);
        }
    }

    /// Sends `END_STREAM` after the last byte: on the frame before, on trailers or on an empty frame.
    pub(super) fn send_end(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        stream.outbox.end = EndStream::Sent;
        stream.send_timer.stop();
        let id = stream.id;
        let fields = stream.pending_trailers.take();
        match (fields, self.last_frame) {
            (Some(fields), _) => self.write_trailers(id, &fields),
            (None, Some((stream, header))) if stream == id => {
                // Type and flags follow the three bytes of the length.
                if let Some(flags) = self.send.byte_mut(header + 4) {
                    *flags |= flag::END_STREAM;
                }
                self.last_frame = None;
            }
            _ => {
                self.streams.get_mut(key).stats.sent += HEADER_BYTES as u64;
                self.begin_frame(id, 0, true);
            }
        }
        self.check_closed(key);
    }
}
