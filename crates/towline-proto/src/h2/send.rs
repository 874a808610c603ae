//! Sending requests and bodies. Heads are validated before they are compressed, since every field changes the
//! compression table.

use std::time::Instant;

use bytes::Bytes;

use crate::body::Method;
use crate::byte_class::is_token_bytes;
use crate::head::OwnedFields;
use crate::multiplexed::encode::field;
use crate::multiplexed::fields::{
    PseudoFields, RequestInfo, check_fields, check_trailers, encode_request, request_plan,
};
use crate::multiplexed::streams::StreamKey;
use crate::{BodySize, Field, RequestHead, Side, StreamId, StreamStats, UserError};

use super::Connection;
use super::encode;
use super::frame::{self, FrameType, flag};
use super::hpack::Encoder;
use super::send_queue::Data;
use super::stream::{EndStream, SendState, Tunnel};

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
        if !is_token_bytes(head.method) {
            return Err(UserError::InvalidMethod);
        }
        let framing = check_fields(head.fields)?;
        let method = Method::of(head.method);
        let may_extend =
            method == Method::Connect && self.peer_settings.extended_connect == Some(true);
        if framing.protocol.is_some() && !may_extend {
            return Err(UserError::WrongProtocol);
        }
        let pseudo = PseudoFields::of(head, &framing, self.secure)?;
        let plan = request_plan(head.method, method, size, framing.length)?;
        let info = plan.info;
        let (id, key) = self.begin_exchange(info);
        let head_at = self.write_request(id, head, &pseudo, plan.length, info.end);
        Ok(OpenedRequest { key, info, head_at })
    }

    /// Opens the stream of the next request.
    pub(super) fn begin_exchange(&mut self, info: RequestInfo) -> (u32, StreamKey) {
        let id = self.next_id;
        self.next_id += 2;
        self.response_started = false;
        let key = self.begin_stream(id);
        let stream = self.streams.get_mut(key);
        stream.method = info.method;
        stream.send_state = info.next;
        if info.method == Method::Connect {
            stream.tunnel = Tunnel::Requested;
        }
        if info.end {
            stream.outbox.end = EndStream::Sent;
        }
        (id, key)
    }

    fn write_request(
        &mut self,
        id: u32,
        head: &RequestHead<'_>,
        pseudo: &PseudoFields<'_>,
        length: Option<u64>,
        end: bool,
    ) -> usize {
        self.write_head(id, end, |encoder, out| {
            encode_request(encoder, head, pseudo, length, out);
        })
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
        if let Some(last) = self.admit(key, data.len())? {
            self.send_data(key, Data::Copied(data), last);
        }
        Ok(())
    }

    pub fn write_shared(&mut self, key: StreamKey, data: Bytes) -> Result<(), UserError> {
        if let Some(last) = self.admit(key, data.len())? {
            self.send_data(key, Data::Shared(data), last);
        }
        Ok(())
    }

    /// Accounts for `n` body bytes; returns whether they are the last ones. `None`: there is nothing to send.
    fn admit(&mut self, key: StreamKey, n: usize) -> Result<Option<bool>, UserError> {
        match &mut self.streams.get_mut(key).send_state {
            SendState::Body(Some(left)) => {
                *left = left.checked_sub(n as u64).ok_or(UserError::BodyTooLong)?;
                Ok((n > 0).then_some(*left == 0))
            }
            SendState::Body(None) => Ok((n > 0).then_some(false)),
            SendState::Discard => Ok(None),
            SendState::Head => Err(UserError::WrongOrder),
            SendState::Complete => Err(UserError::AlreadyFinished),
            SendState::Failed => Err(UserError::StreamFailed),
        }
    }

    pub fn finish(&mut self, key: StreamKey, trailers: &[Field<'_>]) -> Result<(), UserError> {
        let stream = self.streams.get_mut(key);
        match stream.send_state {
            SendState::Complete => return Ok(()),
            SendState::Head => return Err(UserError::WrongOrder),
            SendState::Failed => {
                self.mark_closed(key);
                return Err(UserError::StreamFailed);
            }
            SendState::Body(Some(1..)) => {
                self.reset(key);
                return Err(UserError::BodyTooShort);
            }
            SendState::Body(Some(0)) if !trailers.is_empty() => {
                return Err(UserError::TrailersNotPossible);
            }
            SendState::Body(None) => {
                if !trailers.is_empty() {
                    check_trailers(trailers)?;
                    let fields = trailers.iter().copied();
                    stream.pending_trailers = Some(Box::new(OwnedFields::of(fields)));
                }
                stream.send_state = SendState::Complete;
                if !stream.outbox.is_empty() {
                    stream.outbox.end = EndStream::Pending;
                    return Ok(());
                }
                self.send_end(key);
                return Ok(());
            }
            SendState::Body(Some(0)) | SendState::Discard => {
                stream.send_state = SendState::Complete;
            }
        }
        self.check_closed(key);
        Ok(())
    }

    pub fn body_left(&self, key: StreamKey) -> Option<u64> {
        match self.streams.get(key).send_state {
            SendState::Body(left) => left,
            SendState::Discard => Some(0),
            _ => None,
        }
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
