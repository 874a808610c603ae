//! A request that is written once and sent many times.

use bytes::Bytes;

use crate::head::KeptFields;
use crate::{Field, RequestHead, UserError};

use super::outgoing::{Ahead, size_of, write_request};

/// A whole request, checked and written once, that any number of connections may send
/// ([`request_prepared`](crate::Connection::request_prepared)).
#[derive(Debug, Clone)]
pub struct PreparedRequest {
    pub(super) head: Vec<u8>,
    pub(super) body: Option<Bytes>,
    pub(super) begun: Ahead,
    /// What other protocols write anew, since their compression has a memory.
    parts: Parts,
}

#[derive(Debug, Clone)]
struct Parts {
    method: Vec<u8>,
    target: Vec<u8>,
    fields: KeptFields,
}

impl PreparedRequest {
    /// Fails as [`request_ahead`](crate::Connection::request_ahead) would, but for the connection's state.
    pub fn new(head: &RequestHead<'_>, body: Option<Bytes>) -> Result<Self, UserError> {
        let mut bytes = Vec::new();
        let (_, begun) = write_request(&mut bytes, head, size_of(body.as_ref()))?;
        Ok(Self {
            head: bytes,
            body,
            begun,
            parts: Parts {
                method: head.method.into(),
                target: head.target.into(),
                fields: KeptFields::of(head.fields.iter().copied()),
            },
        })
    }

    /// The request as it was given.
    pub(crate) fn with_head<T>(
        &self,
        send: impl FnOnce(&RequestHead<'_>, Option<Bytes>) -> T,
    ) -> T {
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
        send(&head, self.body.clone())
    }
}
