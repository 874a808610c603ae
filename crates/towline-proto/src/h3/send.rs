//! Sending requests and bodies. Heads are validated before they are compressed, since fields change the
//! compression table.
//!
//! A body of known size is one DATA frame, whose header follows the head; one of unknown size is a frame for each write.

use std::time::Instant;

use bytes::Bytes;

use crate::multiplexed::buffers::Data;
use crate::multiplexed::encode::field;
use crate::multiplexed::exchange::{Admitted, Finish};
use crate::multiplexed::fields::{RequestInfo, RequestPlan, Scheme, encode_request};
use crate::multiplexed::streams::StreamKey;
use crate::{BodySize, Field, QuicCommand, RequestHead, Side, StreamId, StreamStats, UserError};

use super::Connection;
use super::frame;
use super::qpack::Encoder;
use super::stream::{EndStream, SendState};

/// Shared bytes up to this size are copied: QUIC then handles one piece instead of two.
const MAX_COPY_BYTES: usize = 4 * 1024;

/// A stream whose request head was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenedRequest {
    pub key: StreamKey,
    pub info: RequestInfo,
    /// The oldest table entry that its head refers to.
    pub oldest: u64,
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
        let scheme = Scheme::Https;
        let extends_connect = self.peer_settings.extended_connect == Some(true);
        let plan = RequestPlan::of(head, size, scheme, extends_connect)?;
        let info = plan.info;
        let key = self.begin_exchange(info);
        let oldest = self.write_head(key, |encoder, out| {
            encode_request(encoder, head, &plan, out);
        });
        self.begin_body(key, info.end);
        Ok(OpenedRequest { key, info, oldest })
    }

    /// Opens the stream of the next request.
    pub(super) fn begin_exchange(&mut self, info: RequestInfo) -> StreamKey {
        let id = self.next_id;
        self.next_id += 4;
        self.credit -= 1;
        self.response_started = false;
        let uni = false;
        self.commands.push_back(QuicCommand::Open { uni, id });
        let key = self.begin_stream(id);
        let stream = self.streams.get_mut(key);
        stream.is_announced = true;
        stream.waits_for_handshake = self.early_data.is_open && !(info.is_safe && info.end);
        stream.exchange.request(info);
        key
    }

    pub(super) fn id_of(&self, key: StreamKey) -> StreamId {
        StreamId(self.streams.get(key).id.0)
    }

    // Field sections.

    /// Encodes a field section into a HEADERS frame; returns the oldest table entry that it refers to. The section is
    /// in the scratch until the next one.
    pub(super) fn write_head(
        &mut self,
        key: StreamKey,
        fill: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> u64 {
        let Self {
            encoder,
            scratch,
            streams,
            ..
        } = self;
        scratch.lines.clear();
        scratch.section.clear();
        encoder.start();
        fill(encoder, &mut scratch.lines);
        let stream = streams.get_mut(key);
        let oldest = encoder.end(stream.id.0, &scratch.lines, &mut scratch.section);
        let section = &scratch.section;
        let outbox = &mut stream.outbox;
        self.outboxes_bytes += outbox.append(|out| frame::headers(out, section));
        self.update_send_queue(key);
        oldest
    }

    /// Sends an encoded field section again.
    pub(super) fn repeat_head(&mut self, key: StreamKey, section: &[u8], oldest: u64) {
        let stream = self.streams.get_mut(key);
        self.encoder.repeat(stream.id.0, oldest);
        let outbox = &mut stream.outbox;
        self.outboxes_bytes += outbox.append(|out| frame::headers(out, section));
        self.update_send_queue(key);
    }

    /// Writes what follows a head: the header of a body of known size, or the end.
    pub(super) fn begin_body(&mut self, key: StreamKey, end: bool) {
        let stream = self.streams.get_mut(key);
        if end {
            stream.outbox.end = EndStream::Pending;
            self.update_send_queue(key);
        } else if let SendState::Body(Some(len @ 1..)) = stream.exchange.send_state {
            let outbox = &mut stream.outbox;
            self.outboxes_bytes += outbox.append(|out| frame::data_header(out, len));
        }
    }

    // Bodies.

    pub fn write(&mut self, key: StreamKey, data: &[u8]) -> Result<(), UserError> {
        self.write_data(key, Data::Copied(data))
    }

    pub fn write_shared(&mut self, key: StreamKey, data: Bytes) -> Result<(), UserError> {
        if data.len() <= MAX_COPY_BYTES {
            return self.write_data(key, Data::Copied(&data));
        }
        self.write_data(key, Data::Shared(data))
    }

    fn write_data(&mut self, key: StreamKey, data: Data<'_>) -> Result<(), UserError> {
        let n = data.len();
        let stream = self.streams.get_mut(key);
        let admitted = stream.exchange.admit(n)?;
        let outbox = &mut stream.outbox;
        let is_framed = match admitted {
            Admitted::Nothing => return Ok(()),
            Admitted::Sized { last } => {
                if last {
                    outbox.end = EndStream::Pending;
                }
                false
            }
            Admitted::Unsized => true,
        };
        let before = outbox.len();
        if is_framed {
            outbox.append(|out| frame::data_header(out, n as u64));
        }
        outbox.push_data(data);
        self.outboxes_bytes += outbox.len() - before;
        self.update_send_queue(key);
        self.send_capacity(key);
        Ok(())
    }

    pub fn finish(&mut self, key: StreamKey, trailers: &[Field<'_>]) -> Result<(), UserError> {
        match self.streams.get_mut(key).exchange.finish(trailers) {
            Ok(Finish::Already) => {}
            Ok(Finish::Whole) => self.check_closed(key),
            Ok(Finish::End) => self.finish_unsized(key, trailers),
            Err(error) => {
                match error {
                    UserError::StreamFailed => self.release_failed(key),
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
        if !trailers.is_empty() {
            self.write_head(key, |encoder, out| {
                for line in trailers {
                    field(encoder, line, out);
                }
            });
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

    /// When bytes of a stream were last sent.
    pub(super) fn count_sent(&mut self, key: StreamKey, n: usize, now: Instant) {
        let stats = &mut self.streams.get_mut(key).stats;
        stats.sent += n as u64;
        stats.last_sent = Some(now);
    }
}
