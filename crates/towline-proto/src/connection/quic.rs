//! HTTP/3's side of a QUIC connection: the streams and commands that pass between a [`Connection`] and the
//! transport, instead of the bytes of one stream.
//!
//! ```text
//!   QUIC ── stream_readable ──► next_stream_recv ──► stream_received, stream_end, stream_drained
//!   QUIC ◄── next_quic_command, next_stream_send ──► stream_sent;  stream_writable when it was blocked
//! ```
//!
//! Streams have QUIC's numbers (RFC 9000 2.1). With HTTP/1 and HTTP/2 there are none: outputs are `None`, and
//! inputs change nothing.

use std::time::Instant;

use bytes::Bytes;

use super::{Connection, Inner};
use crate::h3::{self, EarlyData};
use crate::{BufferPool, QuicClose, QuicCommand, StreamId, StreamRecv, StreamSend};

impl Connection {
    fn h3(&mut self) -> Option<&mut h3::Connection> {
        match &mut self.inner {
            Inner::H3(conn) => Some(conn),
            Inner::H1(_) | Inner::H2(_) => None,
        }
    }

    /// Takes the storage that requests need from the pool, to which [`release`](Self::release) returns it: to be called
    /// before streams are read.
    pub fn prepare(&mut self, buffers: &mut BufferPool) {
        if let Some(conn) = self.h3() {
            conn.prepare(buffers);
        }
    }

    /// QUIC has bytes, the end or a reset of a stream for us; the stream may be a new one of the peer.
    pub fn stream_readable(&mut self, now: Instant, id: u64) {
        if let Some(conn) = self.h3() {
            conn.stream_readable(now, id);
        }
    }

    /// The next readable stream for which there is room. Read it, then call `stream_received`, and then one of
    /// `stream_end`, `stream_reset_received` and `stream_drained`; if more may be there, ask again instead.
    pub fn next_stream_recv(&mut self) -> Option<StreamRecv> {
        self.h3()?.next_stream_recv()
    }

    /// Bytes of a stream, in order; together at most the `max_bytes` of [`StreamRecv`].
    pub fn stream_received(&mut self, now: Instant, id: u64, data: Bytes) {
        if let Some(conn) = self.h3() {
            conn.stream_received(now, id, data);
        }
    }

    /// The stream ends after the bytes received.
    pub fn stream_end(&mut self, now: Instant, id: u64) {
        if let Some(conn) = self.h3() {
            conn.stream_end(now, id);
        }
    }

    /// The peer has abandoned sending on a stream (`RESET_STREAM`).
    pub fn stream_reset_received(&mut self, now: Instant, id: u64, code: u64) {
        if let Some(conn) = self.h3() {
            conn.stream_reset_received(now, id, code);
        }
    }

    /// QUIC has nothing more of this stream: `stream_readable` follows when it has.
    pub fn stream_drained(&mut self, id: u64) {
        if let Some(conn) = self.h3() {
            conn.stream_drained(id);
        }
    }

    /// The peer wants no more of a stream (`STOP_SENDING`).
    pub fn stream_stop_received(&mut self, now: Instant, id: u64, code: u64) {
        if let Some(conn) = self.h3() {
            conn.stream_stop_received(now, id, code);
        }
    }

    /// Client: number of bidirectional streams that can be opened now in addition to those opened already.
    pub fn set_stream_credit(&mut self, now: Instant, bidi_available: u64) {
        if let Some(conn) = self.h3() {
            conn.set_stream_credit(now, bidi_available);
        }
    }

    /// Begins early data (0-RTT): that is all that streams carry until [`end_early_data`](Self::end_early_data). A client
    /// sends requests of safe methods without a body, and others afterwards; a server delivers them with the field
    /// `early-data: 1`, and others afterwards.
    pub fn begin_early_data(&mut self) {
        if let Some(conn) = self.h3() {
            conn.begin_early_data();
        }
    }

    /// The handshake is complete, and not only closed. The server has accepted what a client has sent.
    pub fn end_early_data(&mut self) {
        if let Some(conn) = self.h3() {
            conn.end_early_data();
        }
    }

    /// Client: as [`end_early_data`](Self::end_early_data), but the server has refused it, and the transport sends
    /// everything again.
    pub fn refuse_early_data(&mut self) {
        if let Some(conn) = self.h3() {
            conn.refuse_early_data();
        }
    }

    /// Client: whether a request was sent in early data that the server has accepted.
    pub fn was_sent_early(&self, id: StreamId) -> bool {
        matches!(&self.inner, Inner::H3(conn) if conn.was_sent_early(id))
    }

    /// Whether the connection began with early data, accepted or not.
    pub fn began_with_early_data(&self) -> bool {
        matches!(&self.inner, Inner::H3(conn) if conn.early_data().was_open)
    }

    /// Server: counts of the requests that came in early data.
    pub fn early_data(&self) -> EarlyData {
        match &self.inner {
            Inner::H3(conn) => conn.early_data(),
            Inner::H1(_) | Inner::H2(_) => EarlyData::default(),
        }
    }

    /// The connection is over. Nothing more is sent or received.
    pub fn quic_closed(&mut self, now: Instant, close: &QuicClose) {
        if let Some(conn) = self.h3() {
            conn.quic_closed(now, close);
        }
    }

    /// The next order to the transport; to be asked before [`next_stream_send`](Self::next_stream_send), until `None`.
    pub fn next_quic_command(&mut self) -> Option<QuicCommand> {
        self.h3()?.next_quic_command()
    }

    /// The next bytes to send, of the most urgent stream that is not blocked (RFC 9218).
    pub fn next_stream_send(&mut self) -> Option<StreamSend> {
        self.h3()?.next_stream_send()
    }

    /// QUIC took `n` bytes of the stream, and its end if `end`. Fewer than were offered: the stream is blocked until
    /// [`stream_writable`](Self::stream_writable).
    pub fn stream_sent(&mut self, now: Instant, id: u64, n: usize, end: bool) {
        if let Some(conn) = self.h3() {
            conn.stream_sent(now, id, n, end);
        }
    }

    /// The stream is no longer blocked.
    pub fn stream_writable(&mut self, now: Instant, id: u64) {
        if let Some(conn) = self.h3() {
            conn.stream_writable(now, id);
        }
    }

    /// The peer has acknowledged something new: a connection that is being closed waits on for the rest.
    pub fn transport_progressed(&mut self, now: Instant) {
        if let Some(conn) = self.h3() {
            conn.transport_progressed(now);
        }
    }

    /// The peer has acknowledged everything up to the end of the stream: a graceful close waits for it, since closing
    /// a QUIC connection discards what is not acknowledged.
    pub fn stream_acknowledged(&mut self, now: Instant, id: u64) {
        if let Some(conn) = self.h3() {
            conn.stream_acknowledged(now, id);
        }
    }
}
