//! Sending requests and bodies. Heads are validated before they are compressed, since every field changes the
//! compression table.

use std::time::Instant;

use bytes::Bytes;

use crate::body::{Method, parse_length};
use crate::byte_class::{is_token_bytes, is_value_bytes};
use crate::h1::encode::is_forbidden_trailer;
use crate::h1::target::{check_target, is_host};
use crate::head::OwnedFields;
use crate::{BodySize, Field, RequestHead, Side, StreamId, StreamStats, UserError};

use super::Connection;
use super::encode;
use super::frame::{self, FrameType, flag};
use super::hpack::Encoder;
use super::send_queue::Data;
use super::stream::{EndStream, SendState, Tunnel};
use super::streams::StreamKey;

/// A longer header block is not cached. A block of this size fits into one frame for every peer.
pub(super) const MAX_CACHED_BLOCK_BYTES: usize = 256;

/// Framing fields given by the program.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FramingFields<'a> {
    pub length: Option<u64>,
    host: Option<&'a [u8]>,
    pub protocol: Option<&'a [u8]>,
}

/// Properties of a request that its stream needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestInfo {
    pub method: Method,
    /// The request has no body.
    pub end: bool,
    pub next: SendState,
}

/// A stream whose request head was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenedRequest {
    pub key: StreamKey,
    pub info: RequestInfo,
    /// Offset of its first frame in the send buffer.
    pub head_at: usize,
}

/// Pseudo-header fields of a request.
#[derive(Debug, Clone, Copy)]
struct PseudoFields<'a> {
    scheme: Option<&'a [u8]>,
    authority: &'a [u8],
    path: Option<&'a [u8]>,
    /// RFC 8441 4.
    protocol: Option<&'a [u8]>,
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
        let pseudo = self.pseudo_fields(head, &framing)?;
        let length = match (size, framing.length) {
            (BodySize::Known(n), Some(given)) if n != given => {
                return Err(UserError::InvalidContentLength);
            }
            (BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
            (BodySize::Known(n), None) => Some(n),
            // RFC 9110 8.6: methods that expect content state a length of 0.
            (BodySize::Empty, None) => {
                matches!(head.method, b"POST" | b"PUT" | b"PATCH").then_some(0)
            }
            _ => None,
        };
        let (end, next) = match (method, size, length.or(framing.length)) {
            // The stream stays open for the tunnel.
            (Method::Connect, ..) => (false, SendState::Complete),
            (_, BodySize::Empty, _) => (true, SendState::Complete),
            (_, _, declared) => (declared == Some(0), SendState::Body(declared)),
        };
        let info = RequestInfo { method, end, next };
        let (id, key) = self.begin_exchange(info);
        let head_at = self.write_request(id, head, pseudo, length, end);
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
        pseudo: PseudoFields<'_>,
        length: Option<u64>,
        end: bool,
    ) -> usize {
        self.write_head(id, end, |encoder, out| {
            let named = [
                (&b":method"[..], Some(head.method)),
                (b":scheme", pseudo.scheme),
                (b":authority", Some(pseudo.authority)),
                (b":path", pseudo.path),
                (b":protocol", pseudo.protocol),
            ];
            for (name, value) in named {
                if let Some(value) = value {
                    encoder.encode(name, value, out);
                }
            }
            for field in head.fields {
                if !field.name.eq_ignore_ascii_case(b"host") && field.name != b":protocol" {
                    encode::field(encoder, field, out);
                }
            }
            if let Some(length) = length {
                encode::content_length(encoder, length, out);
            }
        })
    }

    /// Splits the target into pseudo-header fields (RFC 9113 8.3.1).
    fn pseudo_fields<'a>(
        &self,
        head: &RequestHead<'a>,
        framing: &FramingFields<'a>,
    ) -> Result<PseudoFields<'a>, UserError> {
        let host = framing.host.ok_or(UserError::InvalidHost)?;
        let is_tunnel = head.method == b"CONNECT" && framing.protocol.is_none();
        // An extended CONNECT has a path like any other request (RFC 8441 4).
        let method = if framing.protocol.is_some() {
            b"GET"
        } else {
            head.method
        };
        if !head.target.iter().all(u8::is_ascii_graphic) {
            return Err(UserError::InvalidTarget);
        }
        let absolute = check_target(method, head.target).map_err(|_| UserError::InvalidTarget)?;
        if !is_host(host) {
            return Err(UserError::InvalidHost);
        }
        let mut pseudo = PseudoFields {
            scheme: Some(if self.secure { b"https" } else { b"http" }),
            authority: host,
            path: Some(head.target),
            protocol: framing.protocol,
        };
        if is_tunnel {
            pseudo.scheme = None;
            pseudo.authority = head.target;
            pseudo.path = None;
        } else if let Some((at, len)) = absolute {
            pseudo.scheme = Some(&head.target[..at - 3]);
            pseudo.authority = &head.target[at..at + len];
            pseudo.path = Some(match &head.target[at + len..] {
                [] => b"/",
                // An empty path has no valid form in `:path`.
                [b'?', ..] => return Err(UserError::InvalidTarget),
                path => path,
            });
        }
        Ok(pseudo)
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
            for field in fields.fields() {
                encode::field(encoder, &field, out);
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

/// Validates the fields and returns those about framing.
pub(super) fn check_fields<'a>(fields: &[Field<'a>]) -> Result<FramingFields<'a>, UserError> {
    let mut framing = FramingFields::default();
    for field in fields {
        if field.name == b":protocol" && framing.protocol.is_none() {
            framing.protocol = Some(field.value);
        } else if !is_token_bytes(field.name) {
            return Err(UserError::InvalidFieldName);
        }
        if !is_value_bytes(field.value) {
            return Err(UserError::InvalidFieldValue);
        }
        match (field.name.len(), field.name[0] | 0x20) {
            (14, b'c') if field.name.eq_ignore_ascii_case(b"content-length") => {
                if framing.length.is_some() {
                    return Err(UserError::InvalidContentLength);
                }
                let length = parse_length(field.value).ok_or(UserError::InvalidContentLength)?;
                framing.length = Some(length);
            }
            (4, b'h')
                if field.name.eq_ignore_ascii_case(b"host")
                    && framing.host.replace(field.value).is_some() =>
            {
                return Err(UserError::InvalidHost);
            }
            _ => {}
        }
    }
    Ok(framing)
}

fn check_trailers(fields: &[Field<'_>]) -> Result<(), UserError> {
    if fields.iter().any(|field| is_forbidden_trailer(field.name)) {
        return Err(UserError::ForbiddenTrailer);
    }
    for field in fields {
        if !is_token_bytes(field.name) {
            return Err(UserError::InvalidFieldName);
        }
        if !is_value_bytes(field.value) {
            return Err(UserError::InvalidFieldValue);
        }
    }
    Ok(())
}
