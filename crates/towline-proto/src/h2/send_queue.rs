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
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Lifecycle, Messages};

use super::Connection;
use super::frame::HEADER_BYTES;
use super::stream::EndStream;

/// Upper bound of the window updates earned by DATA frames.
const MAX_EARNED_UPDATES: u32 = 1000;

impl Connection {
    /// Sends body bytes, or queues them. `last`: nothing follows.
    pub(super) fn send_data(&mut self, key: StreamKey, data: Data<'_>, last: bool) {
        let n = data.len();
        let may_bypass =
            n <= self.send_window.bytes() && self.send_buffer_has_room() && !self.core.has_queued();
        let stream = self.core.stream_mut(key);
        let bypasses =
            may_bypass && stream.outbox.is_empty() && n <= stream.own.send_window.bytes();
        if bypasses {
            return self.send_at_once(key, &data, last);
        }
        self.core.with_outbox(key, |outbox| {
            outbox.push_data(data);
            if last {
                outbox.end = EndStream::Pending;
            }
        });
        if self.lacks_credit(key) {
            return self.reset_without_credit(key);
        }
        self.update_send_queue(key);
        self.fill_send_buffer();
        self.core.send_capacity(key);
    }

    /// DATA goes into the send buffer while fewer bytes than the send window are pending there.
    fn send_buffer_has_room(&self) -> bool {
        self.output.pending() < self.core.limits().send_window_bytes
    }

    /// Frames all the data at once.
    fn send_at_once(&mut self, key: StreamKey, data: &Data<'_>, last: bool) {
        let n = data.len();
        self.send_window.take(n);
        let stream = self.core.stream_mut(key);
        stream.own.send_window.take(n);
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
                Data::Copied(data) => self.output.push_data(&data[from..to]),
                Data::Shared(data) if to - from == n => self.output.push_shared(data.clone()),
                Data::Shared(data) => self.output.push_piece(data.slice(from..to)),
            }
            from = to;
        }
        if last {
            self.check_closed(key);
        }
    }

    /// Writes the header of a DATA frame of `len` bytes, on which `END_STREAM` can still be set.
    pub(super) fn begin_frame(&mut self, id: u32, len: usize, end: bool) {
        self.output.begin_data(id, len, end);
        self.earned_updates = (self.earned_updates + 2).min(MAX_EARNED_UPDATES);
    }

    /// Updates the queue after a change of the stream's window or outbox.
    pub(super) fn update_send_queue(&mut self, key: StreamKey) {
        let stream = self.core.stream_mut(key);
        if stream.can_send() {
            self.core.queue(key);
            return;
        }
        let waits = stream.wants_to_send();
        // A setting can close a window that was open.
        self.core.unqueue(key);
        if waits {
            self.watch_window(key);
        }
    }

    /// Moves queued bytes to the send buffer as far as windows and space allow.
    pub(super) fn fill_send_buffer(&mut self) {
        while self.send_buffer_has_room()
            && let Some(key) = self.core.next_to_send()
        {
            if self.core.stream(key).outbox.is_empty() {
                self.core.unqueue(key);
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
        if !self.core.has_queued() {
            self.timers.window.stop();
        }
    }

    /// Sends one frame of a stream that has bytes and a window.
    fn send_frame(&mut self, key: StreamKey) {
        let max = self
            .send_window
            .bytes()
            .min(self.peer_settings.max_frame as usize);
        let stream = self.core.stream_mut(key);
        let window = stream.own.send_window.bytes().min(max);
        let piece = self.core.with_outbox(key, |outbox| outbox.take(window));
        let n = piece.len();
        let now = self.core.now();
        let stream = self.core.stream_mut(key);
        stream.own.send_window.take(n);
        stream.send_timer.advance(now, n);
        stream.stats.sent += (HEADER_BYTES + n) as u64;
        stream.stats.last_sent = Some(now);
        let is_last = stream.outbox.is_empty();
        let ends = is_last
            && stream.outbox.end == EndStream::Pending
            && stream.own.pending_trailers.is_none();
        if ends {
            stream.outbox.end = EndStream::Sent;
        }
        if is_last {
            stream.send_timer.stop();
        }
        let (id, is_clipped) = (stream.id, n == window && !is_last);
        self.send_window.take(n);
        self.timers.window.advance(now, n);
        self.begin_frame(id, n, ends);
        if is_clipped && n < max {
            // A frame cut by the stream's window earns the peer no window update.
            self.earned_updates = self.earned_updates.saturating_sub(2);
        }
        self.output.push_piece(piece);
        self.core.unqueue(key);
        let stream = self.core.stream(key);
        if !stream.can_send() {
            self.update_send_queue(key);
        } else if stream.priority.incremental {
            self.core.queue(key);
        } else {
            self.core.queue_first(key);
        }
        self.core.wake_writer(key);
        if ends {
            self.check_closed(key);
        }
    }
}
