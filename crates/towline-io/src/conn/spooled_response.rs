//! A response whose body continues in a temporary file when the peer reads more slowly than the program writes.
//!
//! ```text
//! write ── room in the send window ──────────► stream ──► transport
//!   └───── no room, or bytes in the spool ───► spool ──────▲
//! ```

use bytes::Bytes;
use towline_proto::{Field, StreamId, UserError};

use crate::conn::Conn;
use crate::serve::features::BodyWriter;

/// Destination of a response body that never waits for the peer.
pub struct SpooledResponse<'a, S> {
    conn: &'a mut Conn<S>,
    stream: StreamId,
}

impl<'a, S> SpooledResponse<'a, S> {
    pub fn new(conn: &'a mut Conn<S>, stream: StreamId) -> Self {
        Self { conn, stream }
    }

    /// Whether the bytes have to go to the spool.
    fn is_full(&mut self) -> Result<bool, UserError> {
        let mut stream = self.conn.proto.stream(self.stream)?;
        // Fails if the stream has failed.
        stream.write(&[])?;
        let has_room = stream.send_capacity() > 0;
        Ok(!has_room || self.conn.spooled_bytes(self.stream) > 0)
    }
}

impl<S> BodyWriter for SpooledResponse<'_, S> {
    fn write(&mut self, data: &[u8]) -> Result<(), UserError> {
        if self.is_full()? {
            self.conn.spool(self.stream, data);
            return Ok(());
        }
        self.conn.proto.stream(self.stream)?.write(data)
    }

    fn write_shared(&mut self, data: Bytes) -> Result<(), UserError> {
        if self.is_full()? {
            self.conn.spool(self.stream, &data);
            return Ok(());
        }
        self.conn.proto.stream(self.stream)?.write_shared(data)
    }

    fn finish(&mut self, trailers: &[Field<'_>]) -> Result<(), UserError> {
        if trailers.is_empty() && self.conn.end_spool(self.stream) {
            return Ok(());
        }
        let mut stream = self.conn.proto.stream(self.stream)?;
        if trailers.is_empty() {
            stream.finish()
        } else {
            stream.finish_with(trailers)
        }
    }

    fn reset(&mut self) {
        if let Ok(mut stream) = self.conn.proto.stream(self.stream) {
            stream.reset();
        }
    }
}
