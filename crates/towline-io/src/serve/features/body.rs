//! Sends the application's response, encoded where the plan requires it.

use bytes::Bytes;
use towline_proto::{BodySize, Connection, Field, ResponseHead, StreamId, StreamMut, UserError};

use super::super::compress::{Plan, rewrite};
use super::{ExchangeRecord, Features};
use crate::coding::encode::Encoder;

/// The body, as far as it is known when the head is sent.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// The whole body: one [`Features::write`] of exactly these bytes follows.
    Whole(&'a [u8]),
    /// Pieces follow.
    Pieces,
    /// A file, sent by the kernel without encoding.
    File,
}

/// Destination of the bytes of a body.
pub trait BodyWriter {
    fn write(&mut self, data: &[u8]) -> Result<(), UserError>;

    /// Like `write`, without a copy where that is cheaper.
    fn write_shared(&mut self, data: Bytes) -> Result<(), UserError>;

    /// Ends the body.
    fn finish(&mut self, trailers: &[Field<'_>]) -> Result<(), UserError>;

    /// Aborts the exchange.
    fn reset(&mut self);
}

impl BodyWriter for StreamMut<'_> {
    #[inline]
    fn write(&mut self, data: &[u8]) -> Result<(), UserError> {
        StreamMut::write(self, data)
    }

    #[inline]
    fn write_shared(&mut self, data: Bytes) -> Result<(), UserError> {
        StreamMut::write_shared(self, data)
    }

    #[inline]
    fn finish(&mut self, trailers: &[Field<'_>]) -> Result<(), UserError> {
        if trailers.is_empty() {
            StreamMut::finish(self)
        } else {
            self.finish_with(trailers)
        }
    }

    fn reset(&mut self) {
        StreamMut::reset(self);
    }
}

#[derive(Default)]
pub(super) enum Body {
    #[default]
    Plain,
    Encoded(Encoding),
    /// Encoded together with the head; written instead of the plain bytes.
    Ready(Vec<u8>),
    /// HEAD: the body is not encoded.
    Discarded,
}

pub(super) struct Encoding {
    pub encoder: Encoder,
    flush_each_piece: bool,
    /// Announced bytes that the application has not written yet.
    left: Option<u64>,
    out: Vec<u8>,
}

/// Size of a portion: a large piece is encoded in portions, so that its output is not stored twice.
const PORTION_BYTES: usize = 64 * 1024;

impl Features {
    /// Sends the head, with the headers changed by compression. Use it instead of `respond`.
    pub fn respond(
        &mut self,
        record: &mut ExchangeRecord,
        conn: &mut Connection,
        (id, head, size): (StreamId, &ResponseHead<'_>, BodySize),
        payload: Payload<'_>,
    ) -> Result<(), UserError> {
        let plan = self.plan(record, head, size, payload);
        if plan == Plan::Untouched {
            conn.respond(id, head, size)?;
        } else {
            let (plan, body, size) = self.body(record, plan, size, payload);
            let fields = OwnedFields::rewritten(plan, head.fields);
            let fields: Vec<Field<'_>> = fields.iter().collect();
            conn.respond(
                id,
                &ResponseHead {
                    fields: &fields,
                    ..*head
                },
                size,
            )?;
            record.body = body;
        }
        record.status = head.status;
        if let Some(log) = &self.log {
            let fields = head.fields.iter().map(|field| (field.name, field.value));
            log.format()
                .on_response(&mut record.entry, head.status, fields);
        }
        Ok(())
    }

    fn plan(
        &self,
        record: &ExchangeRecord,
        head: &ResponseHead<'_>,
        size: BodySize,
        payload: Payload<'_>,
    ) -> Plan {
        let Some(policy) = &self.config.compression else {
            return Plan::Untouched;
        };
        if matches!(payload, Payload::File) || matches!(size, BodySize::Empty) {
            return Plan::Untouched;
        }
        let length = match size {
            BodySize::Known(bytes) => Some(bytes),
            _ => None,
        };
        let fields = head.fields.iter().map(|field| (field.name, field.value));
        policy.plan(&record.accepted, head.status, fields, length)
    }

    /// Decides on the form and the length of the body. If there is no encoder (out of memory), the body is
    /// sent unchanged.
    fn body(
        &mut self,
        record: &ExchangeRecord,
        plan: Plan,
        size: BodySize,
        payload: Payload<'_>,
    ) -> (Plan, Body, BodySize) {
        let Plan::Encode {
            coding,
            flush_each_piece,
        } = plan
        else {
            return (plan, Body::Plain, size);
        };
        if record.is_head {
            return (plan, Body::Discarded, BodySize::Unknown);
        }
        let Ok(mut encoder) = self.encoders.acquire(coding) else {
            return (Plan::Varies, Body::Plain, size);
        };
        let left = match size {
            BodySize::Known(bytes) => Some(bytes),
            _ => None,
        };
        if let Payload::Whole(bytes) = payload
            && left == Some(bytes.len() as u64)
        {
            let mut out = Vec::with_capacity(bytes.len() / 4);
            let result = encoder
                .write(bytes, &mut out)
                .and_then(|()| encoder.finish(&mut out));
            self.encoders.release(encoder);
            return match result {
                Ok(()) => {
                    let size = BodySize::Known(out.len() as u64);
                    (plan, Body::Ready(out), size)
                }
                Err(_) => (Plan::Varies, Body::Plain, size),
            };
        }
        let encoding = Encoding {
            encoder,
            flush_each_piece,
            left,
            out: Vec::new(),
        };
        (plan, Body::Encoded(encoding), BodySize::Unknown)
    }

    /// Sends body bytes. Use it instead of `stream.write`.
    pub fn write(
        &self,
        record: &mut ExchangeRecord,
        stream: &mut impl BodyWriter,
        data: &[u8],
    ) -> Result<(), UserError> {
        match &mut record.body {
            Body::Plain => {
                stream.write(data)?;
                record.count(data.len());
                Ok(())
            }
            _ => write_encoded(record, stream, data),
        }
    }

    /// Sends body bytes, without a copy if they are not encoded.
    pub fn write_shared(
        &self,
        record: &mut ExchangeRecord,
        stream: &mut impl BodyWriter,
        data: Bytes,
    ) -> Result<(), UserError> {
        match &mut record.body {
            Body::Plain => {
                record.count(data.len());
                stream.write_shared(data)
            }
            _ => write_encoded(record, stream, &data),
        }
    }

    /// Ends the body, with or without trailers. Use it instead of `stream.finish_with`.
    pub fn finish(
        &self,
        record: &mut ExchangeRecord,
        stream: &mut impl BodyWriter,
        trailers: &[Field<'_>],
    ) -> Result<(), UserError> {
        if let Body::Encoded(encoding) = &mut record.body {
            if encoding.left.is_some_and(|left| left > 0) {
                stream.reset();
                return Err(UserError::BodyTooShort);
            }
            let Encoding { encoder, out, .. } = encoding;
            out.clear();
            if encoder.finish(out).is_err() {
                stream.reset();
                return Err(UserError::StreamFailed);
            }
            record.body_bytes += out.len() as u64;
            stream.write(out)?;
        }
        stream.finish(trailers)
    }

    /// Counts body bytes that are sent otherwise (a file).
    pub fn count_body(&self, record: &mut ExchangeRecord, bytes: u64) {
        record.body_bytes += bytes;
    }
}

impl ExchangeRecord {
    /// Counts plain bytes; those of a response to HEAD are not sent.
    fn count(&mut self, bytes: usize) {
        if !self.is_head {
            self.body_bytes += bytes as u64;
        }
    }
}

fn write_encoded(
    record: &mut ExchangeRecord,
    stream: &mut impl BodyWriter,
    data: &[u8],
) -> Result<(), UserError> {
    match &mut record.body {
        Body::Plain | Body::Discarded => Ok(()),
        Body::Ready(bytes) => {
            let bytes = std::mem::take(bytes);
            record.body_bytes += bytes.len() as u64;
            stream.write_shared(bytes.into())
        }
        Body::Encoded(encoding) => {
            let sent = encoding.write(stream, data)?;
            record.body_bytes += sent;
            Ok(())
        }
    }
}

impl Encoding {
    /// Encodes and sends `data`; returns the number of encoded bytes.
    fn write(&mut self, stream: &mut impl BodyWriter, data: &[u8]) -> Result<u64, UserError> {
        if data.is_empty() {
            return Ok(0);
        }
        if let Some(left) = &mut self.left {
            *left = left
                .checked_sub(data.len() as u64)
                .ok_or(UserError::BodyTooLong)?;
        }
        let mut sent = 0;
        for portion in data.chunks(PORTION_BYTES) {
            self.out.clear();
            let encoded = self.encoder.write(portion, &mut self.out);
            sent += send(stream, &encoded, &self.out)?;
        }
        if self.flush_each_piece {
            self.out.clear();
            let flushed = self.encoder.flush(&mut self.out);
            sent += send(stream, &flushed, &self.out)?;
        }
        Ok(sent)
    }
}

/// Sends encoded bytes. If the encoder has failed (out of memory), the stream is reset.
fn send(
    stream: &mut impl BodyWriter,
    encoded: &std::io::Result<()>,
    out: &[u8],
) -> Result<u64, UserError> {
    if encoded.is_err() {
        stream.reset();
        return Err(UserError::StreamFailed);
    }
    if !out.is_empty() {
        stream.write(out)?;
    }
    Ok(out.len() as u64)
}

/// Headers in their own memory.
struct OwnedFields {
    bytes: Vec<u8>,
    /// Lengths of name and value, which are adjacent in `bytes`.
    lengths: Vec<(usize, usize)>,
}

impl OwnedFields {
    fn rewritten(plan: Plan, fields: &[Field<'_>]) -> Self {
        let mut owned = Self {
            bytes: Vec::with_capacity(512),
            lengths: Vec::with_capacity(fields.len() + 2),
        };
        let pairs = fields.iter().map(|field| (field.name, field.value));
        rewrite(plan, pairs, |name, value| {
            owned.bytes.extend_from_slice(name);
            owned.bytes.extend_from_slice(value);
            owned.lengths.push((name.len(), value.len()));
        });
        owned
    }

    fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        let mut rest = &self.bytes[..];
        self.lengths.iter().map(move |&(name, value)| {
            let (field, after) = rest.split_at(name + value);
            rest = after;
            let (name, value) = field.split_at(name);
            Field { name, value }
        })
    }
}
