//! Sending requests and bodies. Heads are validated before they are compressed, since every field changes the
//! compression table.

use std::time::Instant;

use bytes::Bytes;

use crate::head::OwnedFields;
use crate::multiplexed::buffers::Data;
use crate::multiplexed::encode::field;
use crate::multiplexed::exchange::{Admitted, Finish};
use crate::multiplexed::fields::{RequestInfo, RequestPlan, Scheme, encode_request};
use crate::multiplexed::streams::StreamKey;
use crate::{BodySize, Field, RequestHead, Side, StreamId, StreamStats, UserError};

use super::Connection;
use super::encode;
use super::frame::{self, FrameType, flag};
use super::hpack::Encoder;
use super::stream::EndStream;

/// A stream whose request head was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenedRequest {
    pub key: StreamKey,
    pub info: RequestInfo,
    /// Offset of its first frame in the send buffer.
    pub head_at: usize,
}

impl Connection {
    // Requests.

    pub fn request(
        &mut self,
        head: &RequestHead<'_>,
        size: BodySize,
    ) -> Result<StreamId, UserError> {
        let opened = self.open_request(head, size)?;
        Ok(self.id_of(opened.key))
    }

    pub(super) fn open_request(
        &mut self,
        head: &RequestHead<'_>,
        size: BodySize,
    ) -> Result<OpenedRequest, UserError> {
        if self.side != Side::Client {
            return Err(UserError::WrongSide);
        }
        if self.stream_capacity() == 0 {
            return Err(UserError::NotIdle);
        }
        let scheme = if self.secure {
            Scheme::Https
        } else {
            Scheme::Http
        };
        let extends_connect = self.peer_settings.extended_connect == Some(true);
        let plan = RequestPlan::of(head, size, scheme, extends_connect)?;
        let info = plan.info;
        let (id, key) = self.begin_exchange(info);
        let head_at = self.write_head(id, info.end, |encoder, out| {
            encode_request(encoder, head, &plan, out);
        });
        Ok(OpenedRequest { key, info, head_at })
    }

    /// Opens the stream of the next request.
    pub(super) fn begin_exchange(&mut self, info: RequestInfo) -> (u32, StreamKey) {
        let id = self.next_id;
        self.next_id += 2;
        self.response_started = false;
        let key = self.begin_stream(id);
        let stream = self.streams.get_mut(key);
        stream.exchange.request(info);
        if info.end {
            stream.outbox.end = EndStream::Sent;
        }
        (id, key)
    }

    pub(super) fn id_of(&self, key: StreamKey) -> StreamId {
        StreamId(u64::from(self.streams.get(key).id))
    }

    // Header blocks.

    /// Writes HEADERS, and CONTINUATION if the peer's frame size requires it. Returns the offset in the send
    /// buffer.
    pub(super) fn write_head(
        &mut self,
        id: u32,
        end: bool,
        fill: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> usize {
        let start = self.send.end();
        let max = self.peer_settings.max_frame as usize;
        let Self { encoder, send, .. } = self;
        let written = send.fill(|out| {
            let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
            frame::header(out, FrameType::Headers, flags, id, 0);
            encoder.start(out);
            fill(encoder, out);
            encode::end_block(out, start, max, id);
        });
        self.last_frame = (!end).then_some((id, start));
        // The peer has not caused the heads of a client.
        if self.side == Side::Server {
            self.induced_bytes += written;
        } else if let Some(key) = self.streams.find(id) {
            self.streams.get_mut(key).stats.sent += written as u64;
        }
        start
    }

    pub(super) fn write_trailers(&mut self, id: u32, fields: &OwnedFields) {
        self.write_head(id, true, |encoder, out| {
            for line in fields.fields() {
                field(encoder, &line, out);
            }
        });
    }

    // Bodies.

    pub fn write(&mut self, key: StreamKey, data: &[u8]) -> Result<(), UserError> {
        self.write_data(key, Data::Copied(data))
    }

    pub fn write_shared(&mut self, key: StreamKey, data: Bytes) -> Result<(), UserError> {
        self.write_data(key, Data::Shared(data))
    }

    #[inline]
    fn write_data(&mut self, key: StreamKey, data: Data<'_>) -> Result<(), UserError> {
        let last = match self.streams.get_mut(key).exchange.admit(data.len())? {
            Admitted::Nothing => return Ok(()),
            Admitted::Sized { last } => last,
            Admitted::Unsized => false,
        };
        self.send_data(key, data, last);
        Ok(())
    }

    pub fn finish(&mut self, key: StreamKey, trailers: &[Field<'_>]) -> Result<(), UserError> {
        match self.streams.get_mut(key).exchange.finish(trailers) {
            Ok(Finish::Already) => {}
            Ok(Finish::Whole) => self.check_closed(key),
            Ok(Finish::End) => self.finish_unsized(key, trailers),
            Err(error) => {
                match error {
                    UserError::StreamFailed => self.mark_closed(key),
                    UserError::BodyTooShort => self.reset(key),
                    _ => {}
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sends the end of a body of unknown size.
    fn finish_unsized(&mut self, key: StreamKey, trailers: &[Field<'_>]) {
        let stream = self.streams.get_mut(key);
        if !trailers.is_empty() {
            let fields = trailers.iter().copied();
            stream.pending_trailers = Some(Box::new(OwnedFields::of(fields)));
        }
        if !stream.outbox.is_empty() {
            stream.outbox.end = EndStream::Pending;
            return;
        }
        self.send_end(key);
    }

    pub fn body_left(&self, key: StreamKey) -> Option<u64> {
        self.streams.get(key).exchange.body_left()
    }

    pub fn stats(&self, key: StreamKey) -> StreamStats {
        self.streams.get(key).stats
    }

    pub fn queued(&self, key: StreamKey) -> usize {
        self.streams.get(key).outbox.len()
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
