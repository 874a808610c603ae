//! The send queue: scheduling of streams with queued bytes, the most urgent first (RFC 9218).
//!
//! ```text
//!   write ──► outbox ──► next_request_send ──► QUIC ──► stream_sent
//!                              ▲                │
//!                              └── writable ◄───┘ blocked
//! ```
//!
//! Bytes stay in the outbox of their stream until QUIC takes them, so that an urgent stream waits only for what QUIC
//! holds already.

use crate::StreamSend;
use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::streams::StreamKey;

use super::Connection;
use super::stream::{EndStream, SendSide};

/// Bytes of a stream that are offered at once: streams of the same urgency take turns after them.
const MAX_PIECE_BYTES: usize = 32 * 1024;

/// Queued bytes that a stream may have even if the connection has no room: its progress depends on no other stream.
const MIN_SHARE_BYTES: usize = 16 * 1024;

impl Connection {
    /// The next bytes of the most urgent stream.
    pub(super) fn next_request_send(&mut self) -> Option<StreamSend> {
        loop {
            let key = self.send_queue.first()?;
            let stream = self.streams.get_mut(key);
            if !stream.wants_to_send() {
                self.send_queue.remove(&mut self.streams, key);
                continue;
            }
            let data = stream.outbox.peek(MAX_PIECE_BYTES);
            let end = data.len() == stream.outbox.len() && stream.outbox.end == EndStream::Pending;
            return Some(StreamSend {
                id: stream.id.0,
                data,
                end,
            });
        }
    }

    /// QUIC took bytes of a request stream.
    pub(super) fn request_sent(&mut self, key: StreamKey, n: usize, end: bool) {
        let now = self.now;
        let is_blocked = self.offered.0 == self.streams.get(key).id.0 && n < self.offered.1;
        self.count_sent(key, n, now);
        let stream = self.streams.get_mut(key);
        let before = stream.outbox.len();
        stream.outbox.advance(n);
        self.outboxes_bytes -= before - stream.outbox.len();
        stream.send_timer.advance(now, n);
        stream.is_send_blocked = is_blocked;
        stream.is_early |= self.early_data.is_open;
        if end {
            stream.outbox.end = EndStream::Sent;
            stream.send_side = SendSide::Ended;
            self.unacknowledged += 1;
        }
        if !stream.wants_to_send() {
            stream.send_timer.stop();
        }
        let rotates = stream.priority.incremental;
        if is_blocked || rotates || !stream.wants_to_send() {
            self.send_queue.remove(&mut self.streams, key);
        }
        if is_blocked {
            self.watch_sending(key);
        } else {
            self.update_send_queue(key);
        }
        self.wake_writer(key);
        if end {
            self.check_closed(key);
        }
    }

    /// Updates the queue after a change of the stream's outbox, or of QUIC's room for it.
    pub(super) fn update_send_queue(&mut self, key: StreamKey) {
        let stream = self.streams.get(key);
        if stream.wants_to_send() && !stream.is_send_blocked {
            self.send_queue.add(&mut self.streams, key);
        }
    }

    /// A result of 0 is followed by `Event::Writable`.
    pub fn send_capacity(&mut self, key: StreamKey) -> usize {
        let stream = self.streams.get_mut(key);
        let queued = stream.outbox.len();
        let mut capacity = self.limits.send_window_bytes.saturating_sub(queued);
        if queued >= MIN_SHARE_BYTES {
            // Other streams can take the room of the connection after the last write to this one.
            let shared = self.limits.http3.max_unsent_bytes;
            capacity = capacity.min(shared.saturating_sub(self.outboxes_bytes));
        }
        if capacity == 0 {
            stream.exchange.pending.set(PendingEvents::WRITER_WAITS);
        }
        capacity
    }

    pub fn await_sent(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        stream.exchange.pending.set(PendingEvents::WRITER_WAITS);
    }

    fn wake_writer(&mut self, key: StreamKey) {
        let mut low = self.limits.send_window_bytes / 2;
        if self.limits.http3.max_unsent_bytes != usize::MAX {
            // Below its own share it has room, whatever the other streams hold by then.
            low = low.min(MIN_SHARE_BYTES);
        }
        let stream = self.streams.get_mut(key);
        if stream.outbox.len() < low && stream.exchange.pending.take(PendingEvents::WRITER_WAITS) {
            self.notify(key, PendingEvents::WRITABLE);
        }
    }

    /// Discards the queued bytes of a stream.
    pub(super) fn clear_outbox(&mut self, key: StreamKey) {
        self.send_queue.remove(&mut self.streams, key);
        let outbox = &mut self.streams.get_mut(key).outbox;
        self.outboxes_bytes -= outbox.len();
        outbox.clear();
    }

    /// The stream ends after its last queued byte.
    pub(super) fn send_end(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if stream.send_side == SendSide::Open {
            stream.outbox.end = EndStream::Pending;
        }
        self.update_send_queue(key);
    }
}
