//! Sending heads and bodies.

use std::time::Instant;

use bytes::Bytes;

use crate::head::OwnedFields;
use crate::multiplexed::buffers::Data;
use crate::multiplexed::encode::field;
use crate::multiplexed::exchange::Admitted;
use crate::multiplexed::fields::{RequestInfo, Scheme};
use crate::multiplexed::response::EncodedBlock;
use crate::multiplexed::streams::StreamKey;
use crate::multiplexed::{Lifecycle, Messages, Multiplexed};
use crate::{Field, StreamId, UserError};

use super::Connection;
use super::encode;
use super::frame::{self, FrameType, HEADER_BYTES, flag};
use super::hpack::Encoder;
use super::stream::EndStream;

impl Connection {
    /// Writes HEADERS, and CONTINUATION if the peer's frame size requires it. Returns the offset in the send
    /// buffer, and the number of bytes.
    pub(super) fn write_block(
        &mut self,
        id: u32,
        end: bool,
        fill: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> (usize, usize) {
        let max = self.peer_settings.max_frame as usize;
        let encoder = &mut self.encoder;
        // The peer has not caused the heads of a client.
        let is_induced = self.core.is_server();
        self.output.push_head(id, end, is_induced, |out| {
            let start = out.len();
            let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
            frame::header(out, FrameType::Headers, flags, id, 0);
            encoder.start(out);
            fill(encoder, out);
            encode::end_block(out, start, max, id);
        })
    }

    pub(super) fn write_trailers(&mut self, key: StreamKey, fields: &OwnedFields) {
        self.write_head(key, true, |encoder, out| {
            for line in fields.fields() {
                field(encoder, &line, out);
            }
        });
    }

    // Bodies.

    pub fn write(&mut self, key: StreamKey, data: &[u8]) -> Result<(), UserError> {
        self.write_data(key, Data::Copied(data))
    }

    #[inline]
    fn write_data(&mut self, key: StreamKey, data: Data<'_>) -> Result<(), UserError> {
        let last = match self.core.stream_mut(key).exchange.admit(data.len())? {
            Admitted::Nothing => return Ok(()),
            Admitted::Sized { last } => last,
            Admitted::Unsized => false,
        };
        self.send_data(key, data, last);
        Ok(())
    }

    pub fn sent_externally(
        &mut self,
        _now: Instant,
        id: StreamId,
        _n: u64,
    ) -> Result<(), UserError> {
        self.find(id)?;
        Err(UserError::WrongProtocol)
    }
}

impl Messages for Connection {
    type Encoder = Encoder;
    /// The offset of its first frame in the send buffer.
    type Written = usize;

    fn scheme(&self) -> Scheme {
        if self.secure {
            Scheme::Https
        } else {
            Scheme::Http
        }
    }

    #[inline]
    fn generation(&self) -> Option<u32> {
        self.encoder.generation()
    }

    #[inline]
    fn open_next(&mut self, _info: RequestInfo) -> StreamKey {
        let id = self.ids.open();
        self.begin_stream(id)
    }

    #[inline]
    fn write_head(
        &mut self,
        key: StreamKey,
        end: bool,
        fill: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> usize {
        let id = self.core.stream(key).id;
        let (start, written) = self.write_block(id, end, fill);
        if self.core.is_client() {
            self.core.stream_mut(key).stats.sent += written as u64;
        }
        start
    }

    #[inline]
    fn written_block(&self, at: usize, generation: u32) -> EncodedBlock<'_> {
        EncodedBlock {
            bytes: &self.output.from(at)[HEADER_BYTES..],
            generation,
            oldest: 0,
        }
    }

    #[inline]
    fn repeat_head(&mut self, key: StreamKey, block: EncodedBlock<'_>, end: bool) {
        let id = self.core.stream(key).id;
        let is_induced = self.core.is_server();
        let (_, written) = self.output.push_head(id, end, is_induced, |out| {
            frame::headers(out, id, end, block.bytes);
        });
        if !is_induced {
            self.core.stream_mut(key).stats.sent += written as u64;
        }
    }

    #[inline]
    fn after_head(&mut self, key: StreamKey, end: bool) {
        if end {
            self.core.stream_mut(key).outbox.end = EndStream::Sent;
            self.check_closed(key);
        }
    }

    fn finish_unsized(&mut self, key: StreamKey, trailers: &[Field<'_>]) {
        let stream = self.core.stream_mut(key);
        if !trailers.is_empty() {
            let fields = trailers.iter().copied();
            stream.own.pending_trailers = Some(Box::new(OwnedFields::of(fields)));
        }
        if !stream.outbox.is_empty() {
            stream.outbox.end = EndStream::Pending;
            return;
        }
        self.send_end(key);
    }

    /// Sends `END_STREAM` after the last byte: on the frame before, on trailers or on an empty frame.
    fn send_end(&mut self, key: StreamKey) {
        let stream = self.core.stream_mut(key);
        stream.outbox.end = EndStream::Sent;
        stream.send_timer.stop();
        let id = stream.id;
        let fields = stream.own.pending_trailers.take();
        if let Some(fields) = fields {
            self.write_trailers(key, &fields);
        } else if !self.output.end_last_frame(id) {
            self.core.stream_mut(key).stats.sent += HEADER_BYTES as u64;
            self.begin_frame(id, 0, true);
        }
        self.check_closed(key);
    }
    fn write_shared(&mut self, key: StreamKey, data: Bytes) -> Result<(), UserError> {
        self.write_data(key, Data::Shared(data))
    }
}
