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
use crate::multiplexed::Lifecycle;
use crate::multiplexed::streams::StreamKey;

use super::Connection;
use super::stream::{EndStream, SendSide};

/// Bytes of a stream that are offered at once: streams of the same urgency take turns after them.
const MAX_PIECE_BYTES: usize = 32 * 1024;

impl Connection {
    /// The next bytes of the most urgent stream.
    pub(super) fn next_request_send(&mut self) -> Option<StreamSend> {
        loop {
            let key = self.core.next_to_send()?;
            let stream = self.core.stream_mut(key);
            if !stream.wants_to_send() {
                self.core.unqueue(key);
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
        let now = self.core.now();
        let is_blocked = self.offered.0 == self.core.stream(key).id.0 && n < self.offered.1;
        self.count_sent(key, n, now);
        self.core.with_outbox(key, |outbox| outbox.advance(n));
        let stream = self.core.stream_mut(key);
        stream.send_timer.advance(now, n);
        stream.own.is_send_blocked = is_blocked;
        stream.own.is_early |= self.early_data.is_open;
        if end {
            stream.outbox.end = EndStream::Sent;
            stream.own.send_side = SendSide::Ended;
            self.unacknowledged += 1;
        }
        if !stream.wants_to_send() {
            stream.send_timer.stop();
        }
        let rotates = stream.priority.incremental;
        if is_blocked || rotates || !stream.wants_to_send() {
            self.core.unqueue(key);
        }
        if is_blocked {
            self.watch_sending(key);
        } else {
            self.update_send_queue(key);
        }
        self.core.wake_writer(key);
        if end {
            self.check_closed(key);
        }
    }

    /// Updates the queue after a change of the stream's outbox, or of QUIC's room for it.
    pub(super) fn update_send_queue(&mut self, key: StreamKey) {
        let stream = self.core.stream(key);
        if stream.wants_to_send() && !stream.own.is_send_blocked {
            self.core.queue(key);
        }
    }

    /// Discards the queued bytes of a stream.
    pub(super) fn clear_outbox(&mut self, key: StreamKey) {
        self.core.unqueue(key);
        self.core.clear_outbox(key);
    }
}
