//! The fields of a head that the connection itself acts on, noted while they are decoded.

use crate::Version;
use crate::body::Length;
use crate::field_compression::{DecodedField, Name};
use crate::head::FieldSpan;

use super::priority::Priority;

/// Text of a rule, with its place in the specification of HTTP/2 or HTTP/3.
macro_rules! rule {
    ($version:expr, $text:literal, $h2:literal, $h3:literal) => {
        match $version {
            Version::Http3 => concat!($text, " (RFC ", $h3, ")"),
            _ => concat!($text, " (RFC ", $h2, ")"),
        }
    };
}

pub(super) use rule;

/// The fields of a head that the connection itself acts on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HeadInfo {
    pub error: Option<&'static str>,
    pub has_fields: bool,
    pub method: Option<FieldSpan>,
    pub scheme: Option<FieldSpan>,
    pub authority: Option<FieldSpan>,
    pub path: Option<FieldSpan>,
    pub status: Option<FieldSpan>,
    pub protocol: Option<FieldSpan>,
    pub host: Option<u32>,
    pub length: Length,
    pub expect: Expect,
    pub cookies: u32,
    pub priority: Option<Priority>,
}

/// Expect (RFC 9110 10.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Expect {
    #[default]
    Nothing,
    Continue,
    Other,
}

impl HeadInfo {
    /// Examines a field, whose text is in `bytes`.
    #[inline]
    pub fn record(
        &mut self,
        field: DecodedField,
        version: Version,
        bytes: &[u8],
        spans: &mut Vec<FieldSpan>,
    ) {
        if let Some(error) = field.error {
            self.error.get_or_insert(error.rule(version));
        }
        if field.name.is_pseudo() {
            return self.record_pseudo(field, version);
        }
        self.has_fields = true;
        let value = || &bytes[field.span.value as usize..][..field.span.value_len as usize];
        match field.name {
            Name::Host if self.host.is_some() => {
                self.error
                    .get_or_insert("several host fields (RFC 9110 7.2)");
            }
            Name::Host => self.host = Some(spans.len() as u32),
            Name::ContentLength => self.length.add(value()),
            Name::Cookie => self.cookies += 1,
            Name::Expect => self.record_expect(value()),
            Name::Other if field.span.name_len == 8 => {
                let name = &bytes[field.span.name as usize..][..8];
                if name == b"priority" {
                    self.priority = Some(Priority::of(value()));
                }
            }
            _ => {}
        }
        spans.push(field.span);
    }

    fn record_pseudo(&mut self, field: DecodedField, version: Version) {
        if self.has_fields {
            self.error.get_or_insert(rule!(
                version,
                "pseudo-field after a field",
                "9113 8.3",
                "9114 4.3"
            ));
        }
        let place = match field.name {
            Name::Method => &mut self.method,
            Name::Scheme => &mut self.scheme,
            Name::Authority => &mut self.authority,
            Name::Path => &mut self.path,
            Name::Status => &mut self.status,
            _ => &mut self.protocol,
        };
        if place.replace(field.span).is_some() {
            self.error
                .get_or_insert(rule!(version, "pseudo-field twice", "9113 8.3", "9114 4.3"));
        }
    }

    fn record_expect(&mut self, value: &[u8]) {
        let is_continue = value.eq_ignore_ascii_case(b"100-continue");
        self.expect = match (self.expect, is_continue) {
            (Expect::Nothing | Expect::Continue, true) => Expect::Continue,
            _ => Expect::Other,
        };
    }
}

/// The rule of a body that is not as long as announced.
pub(crate) const fn body_length(version: Version) -> &'static str {
    rule!(
        version,
        "content-length differs from the body",
        "9113 8.1.1",
        "9114 4.1.2"
    )
}

/// The rule of a body over the limit.
pub(crate) const BODY_TOO_LARGE: &str = "body too large";

pub(super) fn announced(length: Length) -> Result<Option<u64>, &'static str> {
    match length {
        Length::Absent => Ok(None),
        Length::Bytes(bytes) => Ok(Some(bytes)),
        Length::Malformed => Err("malformed content-length (RFC 9110 8.6)"),
        Length::Repeated | Length::Equal(_) => Err("several content-lengths (RFC 9110 8.6)"),
    }
}
