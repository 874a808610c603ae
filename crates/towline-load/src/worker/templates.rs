//! The requests of all targets, encoded once where they do not differ.

use bytes::Bytes;
use towline_proto::{Field, PreparedRequest, RequestHead, UserError};

use crate::config::Config;
use crate::target::{SendMode, Target, WholeFields};
use crate::template::has_placeholders;

/// Why a request is not sent.
#[derive(Debug)]
pub(super) enum NotSent {
    /// The connection takes no request now; its events tell more.
    Unavailable,
    /// The request is invalid, for this reason.
    Invalid(String),
}

impl NotSent {
    pub(super) fn of(error: UserError) -> Self {
        match error {
            UserError::NotIdle | UserError::StreamFailed | UserError::UnknownStream => {
                Self::Unavailable
            }
            _ => Self::Invalid(error.to_string()),
        }
    }
}

/// The prepared requests of all targets.
pub(super) struct RequestTemplates(Vec<RequestTemplate>);

pub(super) struct RequestTemplate {
    method: Box<[u8]>,
    path: Box<[u8]>,
    fields: WholeFields,
    pub(super) body: Option<Bytes>,
    pub(super) chunk_bytes: Option<u64>,
    pub(super) send_mode: SendMode,
    /// Encoded once each: the usual form, and the form for the last request of a connection.
    usual: Result<PreparedRequest, UserError>,
    last: Result<PreparedRequest, UserError>,
}

impl RequestTemplates {
    pub(super) fn new(config: &Config) -> Self {
        let targets = config.targets.iter();
        let template = |target| RequestTemplate::new(target, config.has_variables());
        Self(targets.map(template).collect())
    }

    #[inline]
    pub(super) fn of(&self, target: u32) -> &RequestTemplate {
        &self.0[target as usize]
    }

    /// The usual form of a target's request.
    pub(super) fn prepared(&self, target: usize) -> Option<&PreparedRequest> {
        self.0[target].usual.as_ref().ok()
    }
}

impl RequestTemplate {
    fn new(target: &Target, may_have_values: bool) -> Self {
        let mut template = Self {
            method: target.method.as_bytes().into(),
            path: target.path.as_bytes().into(),
            fields: target.whole_fields(),
            body: target.body.clone(),
            chunk_bytes: target.chunk_bytes,
            send_mode: target.send_mode,
            usual: Err(UserError::InvalidTarget),
            last: Err(UserError::InvalidTarget),
        };
        // A request with values is encoded when it is sent: see `Users`.
        if may_have_values && template.has_placeholders() {
            return template;
        }
        let prepared = |last| {
            template.with(last, |request| {
                PreparedRequest::new(request, template.body.clone())
            })
        };
        (template.usual, template.last) = (prepared(false), prepared(true));
        template
    }

    fn has_placeholders(&self) -> bool {
        has_placeholders(&self.path)
            || self.fields.iter().any(|(_, value)| has_placeholders(value))
            || self.body.as_deref().is_some_and(has_placeholders)
    }

    /// The encoded request, in the form for the last request of a connection if `last`.
    pub(super) fn prepared(&self, last: bool) -> Result<&PreparedRequest, UserError> {
        let prepared = if last { &self.last } else { &self.usual };
        prepared.as_ref().map_err(|error| *error)
    }

    /// Calls `send` with the head; the last request of a connection has `Connection: close`.
    pub(super) fn with<T>(&self, last: bool, send: impl FnOnce(&RequestHead<'_>) -> T) -> T {
        const FEW: usize = 16;
        let says_close =
            (self.fields.iter()).any(|(name, _)| name.eq_ignore_ascii_case(b"connection"));
        let close = (last && !says_close).then_some(Field {
            name: b"Connection",
            value: b"close",
        });
        let fields = self
            .fields
            .iter()
            .map(|(name, value)| Field { name, value })
            .chain(close);
        let mut few = [Field {
            name: b"",
            value: b"",
        }; FEW];
        let many: Vec<_>;
        let fields = if self.fields.len() < FEW {
            let count = fields
                .zip(&mut few)
                .map(|(field, place)| *place = field)
                .count();
            &few[..count]
        } else {
            many = fields.collect();
            &many
        };
        send(&RequestHead {
            method: &self.method,
            target: &self.path,
            fields,
        })
    }
}
