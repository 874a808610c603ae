//! A request that is encoded once and sent many times.

use std::sync::Arc;

use bytes::Bytes;

use crate::head::OwnedFields;
use crate::{BodySize, Field, RequestHead, StreamId, UserError};

use super::Connection;
use super::send::{PendingRequest, write_request};

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

impl Connection {
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
