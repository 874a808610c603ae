//! Requests and bodies, sent: heads are checked first, then compressed, since the table of the peer moves with every
//! field.

use std::time::Instant;

use bytes::Bytes;

use crate::body::{Method, parse_length};
use crate::byte_class::{is_token_bytes, is_value_bytes};
use crate::h1::encode::is_forbidden_trailer;
use crate::h1::target::{check_target, is_host};
use crate::head::KeptFields;
use crate::{BodySize, Field, RequestHead, Side, StreamId, StreamStats, UserError};

use super::Connection;
use super::encode;
use super::frame::{self, Kind, flag};
use super::hpack::Encoder;
use super::send_queue::Data;
use super::stream::{End, Sending, Tunnel};
use super::streams::At;

/// A longer block is made anew each time that it is sent. No peer's frames are too small for it.
pub(super) const MOST_BLOCK_BYTES: usize = 256;

/// What the program's fields say of the body and of the host.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Noted<'a> {
    pub length: Option<u64>,
    host: Option<&'a [u8]>,
    pub protocol: Option<&'a [u8]>,
}

/// What a stream has to know of its request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub method: Method,
    /// Its head is all of it.
    pub end: bool,
    pub next: Sending,
}

/// A request whose head is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub at: At,
    pub asked: Asked,
    /// Where its first frame stands in the send buffer.
    pub head_at: usize,
}

/// The parts of a request that are no fields.
#[derive(Debug, Clone, Copy)]
struct Target<'a> {
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
        let begun = self.begin_asking(head, size)?;
        Ok(self.id_of(begun.at))
    }

    pub(super) fn begin_asking(
        &mut self,
        head: &RequestHead<'_>,
        size: BodySize,
    ) -> Result<Begun, UserError> {
        if self.side != Side::Client {
            return Err(UserError::WrongSide);
        }
        if self.stream_capacity() == 0 {
            return Err(UserError::NotIdle);
        }
        if !is_token_bytes(head.method) {
            return Err(UserError::InvalidMethod);
        }
        let noted = check_fields(head.fields)?;
        let method = Method::of(head.method);
        let may_extend = method == Method::Connect && self.peer.extended_connect == Some(true);
        if noted.protocol.is_some() && !may_extend {
            return Err(UserError::WrongProtocol);
        }
        let target = self.target(head, &noted)?;
        let length = match (size, noted.length) {
            (BodySize::Known(n), Some(given)) if n != given => {
                return Err(UserError::InvalidContentLength);
            }
            (BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
            (BodySize::Known(n), None) => Some(n),
            // RFC 9110 8.6: methods that expect content say that there is none.
            (BodySize::Empty, None) => {
                matches!(head.method, b"POST" | b"PUT" | b"PATCH").then_some(0)
            }
            _ => None,
        };
        let (end, next) = match (method, size, length.or(noted.length)) {
            // Its stream stays open for what follows the answer.
            (Method::Connect, ..) => (false, Sending::Complete),
            (_, BodySize::Empty, _) => (true, Sending::Complete),
            (_, _, declared) => (declared == Some(0), Sending::Body(declared)),
        };
        let asked = Asked { method, end, next };
        let (id, at) = self.begin_exchange(asked);
        let head_at = self.write_request(id, head, target, length, end);
        Ok(Begun { at, asked, head_at })
    }

    /// The stream of the next request.
    pub(super) fn begin_exchange(&mut self, asked: Asked) -> (u32, At) {
        let id = self.next_id;
        self.next_id += 2;
        self.response_started = false;
        let at = self.begin_stream(id);
        let stream = self.streams.at_mut(at);
        stream.method = asked.method;
        stream.sending = asked.next;
        if asked.method == Method::Connect {
            stream.tunnel = Tunnel::Asked;
        }
        if asked.end {
            stream.outbox.end = End::Sent;
        }
        (id, at)
    }

    fn write_request(
        &mut self,
        id: u32,
        head: &RequestHead<'_>,
        target: Target<'_>,
        length: Option<u64>,
        end: bool,
    ) -> usize {
        self.write_head(id, end, |encoder, out| {
            let pseudo = [
                (&b":method"[..], Some(head.method)),
                (b":scheme", target.scheme),
                (b":authority", Some(target.authority)),
                (b":path", target.path),
                (b":protocol", target.protocol),
            ];
            for (name, value) in pseudo {
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

    /// RFC 9113 8.3.1: the target in its parts.
    fn target<'a>(
        &self,
        head: &RequestHead<'a>,
        noted: &Noted<'a>,
    ) -> Result<Target<'a>, UserError> {
        let host = noted.host.ok_or(UserError::InvalidHost)?;
        let is_tunnel = head.method == b"CONNECT" && noted.protocol.is_none();
        // An extended CONNECT names a path as any other request does (RFC 8441 4).
        let method = if noted.protocol.is_some() {
            b"GET"
        } else {
            head.method
        };
        if !head.target.iter().all(u8::is_ascii_graphic) {
            return Err(UserError::InvalidTarget);
        }
        let named = check_target(method, head.target).map_err(|_| UserError::InvalidTarget)?;
        if !is_host(host) {
            return Err(UserError::InvalidHost);
        }
        let mut target = Target {
            scheme: Some(if self.secure { b"https" } else { b"http" }),
            authority: host,
            path: Some(head.target),
            protocol: noted.protocol,
        };
        if is_tunnel {
            target.scheme = None;
            target.authority = head.target;
            target.path = None;
        } else if let Some((at, len)) = named {
            target.scheme = Some(&head.target[..at - 3]);
            target.authority = &head.target[at..at + len];
            target.path = Some(match &head.target[at + len..] {
                [] => b"/",
                // Its path is empty, and is written so nowhere else.
                [b'?', ..] => return Err(UserError::InvalidTarget),
                path => path,
            });
        }
        Ok(target)
    }

    pub(super) fn id_of(&self, at: At) -> StreamId {
        StreamId(u64::from(self.streams.at(at).id))
    }

    // Header blocks.

    /// HEADERS, and CONTINUATION where the peer's frames are too small. Where it begins in the send buffer.
    pub(super) fn write_head(
        &mut self,
        id: u32,
        end: bool,
        fill: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> usize {
        let start = self.send.end();
        let most = self.peer.max_frame as usize;
        let Self { encoder, send, .. } = self;
        let written = send.fill(|out| {
            let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
            frame::header(out, Kind::Headers, flags, id, 0);
            encoder.start(out);
            fill(encoder, out);
            encode::end_block(out, start, most, id);
        });
        self.tail = (!end).then_some((id, start));
        // A client's heads are its own idea.
        if self.side == Side::Server {
            self.provoked += written;
        } else if let Some(at) = self.streams.find(id) {
            self.streams.at_mut(at).stats.sent += written as u64;
        }
        start
    }

    pub(super) fn write_trailers(&mut self, id: u32, fields: &KeptFields) {
        self.write_head(id, true, |encoder, out| {
            for field in fields.fields() {
                encode::field(encoder, &field, out);
            }
        });
    }

    // Bodies.

    pub fn write(&mut self, at: At, data: &[u8]) -> Result<(), UserError> {
        if let Some(last) = self.admit(at, data.len())? {
            self.send_data(at, Data::Copied(data), last);
        }
        Ok(())
    }

    pub fn write_shared(&mut self, at: At, data: Bytes) -> Result<(), UserError> {
        if let Some(last) = self.admit(at, data.len())? {
            self.send_data(at, Data::Shared(data), last);
        }
        Ok(())
    }

    /// Admits `n` body bytes; whether they are the last ones. `None`: there is nothing to send.
    fn admit(&mut self, at: At, n: usize) -> Result<Option<bool>, UserError> {
        match &mut self.streams.at_mut(at).sending {
            Sending::Body(Some(left)) => {
                *left = left.checked_sub(n as u64).ok_or(UserError::BodyTooLong)?;
                Ok((n > 0).then_some(*left == 0))
            }
            Sending::Body(None) => Ok((n > 0).then_some(false)),
            Sending::Swallow => Ok(None),
            Sending::Head => Err(UserError::WrongOrder),
            Sending::Complete => Err(UserError::AlreadyFinished),
            Sending::Failed => Err(UserError::StreamFailed),
        }
    }

    pub fn finish(&mut self, at: At, trailers: &[Field<'_>]) -> Result<(), UserError> {
        let stream = self.streams.at_mut(at);
        match stream.sending {
            Sending::Complete => return Ok(()),
            Sending::Head => return Err(UserError::WrongOrder),
            Sending::Failed => {
                self.set_over(at);
                return Err(UserError::StreamFailed);
            }
            Sending::Body(Some(1..)) => {
                self.reset(at);
                return Err(UserError::BodyTooShort);
            }
            Sending::Body(Some(0)) if !trailers.is_empty() => {
                return Err(UserError::TrailersNotPossible);
            }
            Sending::Body(None) => {
                if !trailers.is_empty() {
                    check_trailers(trailers)?;
                    let fields = trailers.iter().copied();
                    stream.last_fields = Some(Box::new(KeptFields::of(fields)));
                }
                stream.sending = Sending::Complete;
                if !stream.outbox.is_empty() {
                    stream.outbox.end = End::Due;
                    return Ok(());
                }
                self.send_end(at);
                return Ok(());
            }
            Sending::Body(Some(0)) | Sending::Swallow => stream.sending = Sending::Complete,
        }
        self.check_over(at);
        Ok(())
    }

    pub fn body_left(&self, at: At) -> Option<u64> {
        match self.streams.at(at).sending {
            Sending::Body(left) => left,
            Sending::Swallow => Some(0),
            _ => None,
        }
    }

    pub fn stats(&self, at: At) -> StreamStats {
        self.streams.at(at).stats
    }

    pub fn queued(&self, at: At) -> usize {
        self.streams.at(at).outbox.len()
    }

    pub fn send_capacity(&self, at: At) -> usize {
        let queued = self.streams.at(at).outbox.len();
        self.limits.send_window_bytes.saturating_sub(queued)
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

/// Whether all fields may be sent, and what they say.
pub(super) fn check_fields<'a>(fields: &[Field<'a>]) -> Result<Noted<'a>, UserError> {
    let mut noted = Noted::default();
    for field in fields {
        if field.name == b":protocol" && noted.protocol.is_none() {
            noted.protocol = Some(field.value);
        } else if !is_token_bytes(field.name) {
            return Err(UserError::InvalidFieldName);
        }
        if !is_value_bytes(field.value) {
            return Err(UserError::InvalidFieldValue);
        }
        match (field.name.len(), field.name[0] | 0x20) {
            (14, b'c') if field.name.eq_ignore_ascii_case(b"content-length") => {
                if noted.length.is_some() {
                    return Err(UserError::InvalidContentLength);
                }
                let length = parse_length(field.value).ok_or(UserError::InvalidContentLength)?;
                noted.length = Some(length);
            }
            (4, b'h')
                if field.name.eq_ignore_ascii_case(b"host")
                    && noted.host.replace(field.value).is_some() =>
            {
                return Err(UserError::InvalidHost);
            }
            _ => {}
        }
    }
    Ok(noted)
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
