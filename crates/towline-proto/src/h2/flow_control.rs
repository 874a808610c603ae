//! Flow control (RFC 9113 5.2 and 6.9): received `WINDOW_UPDATE` frames, and those that we send as bytes are read. The
//! windows themselves are in `window`.

use crate::multiplexed::Lifecycle;
use crate::multiplexed::streams::StreamKey;

use super::Connection;
use super::frame::{self, FrameHeader};
use super::rules::{self, Fault};
use super::stream::RecvState;

impl Connection {
    /// Gives the peer back the window of bytes that the program has read, or that were padding: a `WINDOW_UPDATE` of
    /// the stream, once half of the window has been read.
    pub(super) fn release_capacity(&mut self, key: StreamKey, n: u32) {
        let max = self.core.limits().http2.max_stream_window_bytes;
        let is_read = self.buffered(key) <= n as usize;
        let stream = self.core.stream_mut(key);
        // After the end the peer needs no more credit.
        let is_due =
            stream.exchange.recv_state == RecvState::Body || stream.discard_until.is_some();
        if is_due && let Some(mut increment) = stream.own.recv_window.release(n) {
            // The reader has read everything, so the window limits the peer, not the reader.
            if is_read && let Some(more) = stream.own.recv_window.grow(max) {
                increment += more;
            }
            let id = stream.id;
            self.write_control(|out| frame::window_update(out, id, increment));
        }
    }

    /// Gives the peer back the connection's window of received bytes at once: the windows of the streams bound unread
    /// bytes.
    #[inline]
    pub(super) fn release_connection_capacity(&mut self, n: u32) {
        if let Some(increment) = self.recv_window.release(n) {
            self.write_control(|out| frame::window_update(out, 0, increment));
        }
    }

    /// A `WINDOW_UPDATE` frame: the peer has read some of what we sent.
    pub(super) fn on_window_update(&mut self, header: FrameHeader, at: usize) -> Result<(), Fault> {
        if header.len != 4 {
            return Err(rules::WRONG_SIZE);
        }
        let increment = frame::number(self.input.consumed(at, 4), 0);
        // Large increments are bounded by overflow, unless the stream is unknown; updates in return for our
        // DATA frames are bounded by these.
        let is_counted = header.stream == 0 || self.core.find(header.stream).is_some();
        if increment < 1024 || !is_counted {
            if self.earned_updates > 0 {
                self.earned_updates -= 1;
            } else {
                self.core.charge_control()?;
            }
        }
        if header.stream == 0 {
            if increment == 0 {
                return Err(rules::NO_INCREMENT);
            }
            self.send_window
                .shift(i64::from(increment))
                .map_err(|_| rules::WINDOW_OVERFLOW)?;
            self.fill_send_buffer();
            return Ok(());
        }
        let Some(to) = self.find_open(header.stream)? else {
            // An increment of 0 is never valid, also on a closed stream.
            return if increment == 0 {
                Err(rules::NO_INCREMENT)
            } else {
                Ok(())
            };
        };
        if increment == 0 {
            return self.reset_stream(to, rules::NO_INCREMENT);
        }
        let stream = self.core.stream_mut(to);
        if stream.own.send_window.shift(i64::from(increment)).is_err() {
            return self.reset_stream(to, rules::WINDOW_OVERFLOW);
        }
        self.update_send_queue(to);
        self.fill_send_buffer();
        Ok(())
    }
}
