//! Requests and responses that are encoded once and sent many times.

use std::sync::Arc;

use bytes::Bytes;

use crate::body::Method;
use crate::head::OwnedFields;
use crate::{BodySize, Field, RequestHead, ResponseHead, StreamId, UserError, Version};

use super::encode::{self, FieldPlacement};
use super::send::{PendingRequest, write_request};
use super::{Connection, SendState};

/// A whole request, validated and encoded once, that any number of connections may send
/// ([`request_prepared`](crate::Connection::request_prepared)).
#[derive(Debug, Clone)]
pub struct PreparedRequest {
    pub(super) head: Vec<u8>,
    pub(super) body: Option<Bytes>,
    pub(super) pending_request: PendingRequest,
    /// For HTTP/2, whose encoded form depends on the state of header compression.
    parts: Arc<Parts>,
}

/// The parts of a prepared request. Its address is its identity: clones of a request share it.
#[derive(Debug)]
pub(crate) struct Parts {
    method: Vec<u8>,
    target: Vec<u8>,
    fields: OwnedFields,
}

impl PreparedRequest {
    /// Validates and encodes a request. Fails as [`request_pipelined`](crate::Connection::request_pipelined)
    /// would, except for the state of a connection.
    pub fn new(head: &RequestHead<'_>, body: Option<Bytes>) -> Result<Self, UserError> {
        let mut bytes = Vec::new();
        let (_, pending_request) = write_request(&mut bytes, head, BodySize::of(body.as_ref()))?;
        Ok(Self {
            head: bytes,
            body,
            pending_request,
            parts: Arc::new(Parts {
                method: head.method.into(),
                target: head.target.into(),
                fields: OwnedFields::of(head.fields.iter().copied()),
            }),
        })
    }

    /// The bytes that HTTP/1.1 sends.
    pub fn http1_bytes(&self) -> Bytes {
        [&self.head[..], self.body.as_deref().unwrap_or_default()]
            .concat()
            .into()
    }

    pub(crate) fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    pub(crate) fn body(&self) -> Option<Bytes> {
        self.body.clone()
    }

    /// Calls `send` with the head.
    pub(crate) fn with_head<T>(&self, send: impl FnOnce(&RequestHead<'_>) -> T) -> T {
        const NONE: Field<'_> = Field {
            name: b"",
            value: b"",
        };
        let mut few = [NONE; 32];
        let many: Vec<Field<'_>>;
        let kept = self.parts.fields.fields();
        let count = kept.len();
        let fields = if let Some(few) = few.get_mut(..count) {
            few.iter_mut().zip(kept).for_each(|(to, field)| *to = field);
            &*few
        } else {
            many = kept.collect();
            &many
        };
        let head = RequestHead {
            method: &self.parts.method,
            target: &self.parts.target,
            fields,
        };
        send(&head)
    }
}

/// A whole response of HTTP/1.1 for connections that stay open.
#[derive(Debug, Clone)]
pub struct EncodedResponse(Vec<u8>);

impl EncodedResponse {
    /// Validates and encodes a response, whose fields say nothing about its length and its connection.
    pub fn new(head: &ResponseHead<'_>, body: &[u8]) -> Result<Self, UserError> {
        let mut out = Vec::new();
        encode::status_line(&mut out, head.status, head.reason)?;
        let framing = encode::fields(&mut out, head.fields, FieldPlacement::Deferred)?;
        if framing.length.is_some() || framing.chunked || framing.connection.is_some() {
            return Err(UserError::InvalidFieldName);
        }
        encode::content_length(&mut out, body.len() as u64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
        Ok(Self(out))
    }
}

impl Connection {
    pub fn respond_encoded(
        &mut self,
        id: StreamId,
        response: &EncodedResponse,
    ) -> Result<bool, UserError> {
        self.check_stream(id)?;
        let fits = self.send_state == SendState::Head
            && self.exchange.version == Version::Http11
            && self.exchange.method != Method::Head
            && self.may_keep_alive();
        if fits {
            self.send.push(&response.0);
            self.send_complete();
        }
        Ok(fits)
    }

    pub fn request_prepared(&mut self, request: &PreparedRequest) -> Result<StreamId, UserError> {
        self.send_pipelined(|conn| {
            conn.send.push(&request.head);
            if let Some(body) = &request.body {
                conn.send.push_shared(body.clone());
            }
            Ok(request.pending_request)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{BufferPool, Event, Limits};

    const FIELD: Field<'_> = Field {
        name: b"x",
        value: b"y",
    };

    fn head<'a>(fields: &'a [Field<'a>]) -> ResponseHead<'a> {
        ResponseHead {
            status: 429,
            reason: b"",
            fields,
        }
    }

    /// Bytes that a server sends in answer to requests: the encoded response, as long as it is used.
    fn answer(wire: &[u8]) -> Vec<u8> {
        let now = Instant::now();
        let mut conn = crate::Connection::server(std::sync::Arc::new(Limits::server()), now);
        let mut buffers = BufferPool::new(64 * 1024, 1);
        conn.recv_space(&mut buffers)[..wire.len()].copy_from_slice(wire);
        conn.received(now, wire.len());
        let response = EncodedResponse::new(&head(&[FIELD]), b"no").unwrap();
        let mut sent = Vec::new();
        while let Some(event) = conn.next_event() {
            if let Event::Head { stream, .. } = event
                && !conn.respond_encoded(stream, &response).unwrap()
            {
                break;
            }
        }
        let mut slices = [std::io::IoSlice::new(b""); 4];
        let count = conn.send_slices(&mut slices);
        slices[..count]
            .iter()
            .for_each(|slice| sent.extend_from_slice(slice));
        sent
    }

    #[test]
    fn an_encoded_response_is_for_connections_that_stay_open() {
        const ONE: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nx: y\r\ncontent-length: 2\r\n\r\nno";
        let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(answer(&[&get[..], &get[..]].concat()), [ONE, ONE].concat());
        let upload = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(
            answer(&[&upload[..], &get[..]].concat()),
            [ONE, ONE].concat()
        );
        for other in [
            "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        ] {
            assert_eq!(answer(other.as_bytes()), b"", "{other}");
        }
    }

    #[test]
    fn an_encoded_response_decides_about_its_length_itself() {
        for name in [&b"content-length"[..], b"transfer-encoding", b"connection"] {
            let value = if name == b"content-length" {
                &b"2"[..]
            } else {
                b"chunked"
            };
            let field = Field { name, value };
            assert!(EncodedResponse::new(&head(&[field]), b"no").is_err());
        }
    }
}
