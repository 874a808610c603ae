//! Heads, sent: validated while they are appended, in one pass.

use crate::body::parse_length;
use crate::head::is_forbidden_trailer;
use crate::{Field, UserError};

use super::head_info::ConnectionOptions;
use crate::byte_class::{is_token_bytes, is_value_bytes};

/// Framing fields given by the program, so that each is written once and in agreement with the body.
#[derive(Debug, Default)]
pub(super) struct FramingFields<'a> {
    pub length: Option<u64>,
    pub chunked: bool,
    pub connection: Option<&'a [u8]>,
    pub options: ConnectionOptions,
    pub hosts: u32,
    pub upgrade: bool,
    pub expects_continue: bool,
}

/// Where Content-Length, Transfer-Encoding and Connection are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldPlacement {
    /// Not with the other fields: on a server they depend on the request and on the connection.
    Deferred,
    /// As given by the program, in their place. `coded`: a chunked body may follow.
    InPlace { coded: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    Length(u64),
    Coding,
    Connection,
    Other,
}

impl FieldPlacement {
    fn defers(self, kind: FieldKind, value: &[u8]) -> bool {
        match (self, kind) {
            (_, FieldKind::Other) => false,
            (Self::Deferred, _) => true,
            (Self::InPlace { coded }, FieldKind::Coding) => !coded,
            (Self::InPlace { .. }, _) => value.is_empty(),
        }
    }
}

/// Appends all fields but the deferred ones.
pub(super) fn fields<'a>(
    out: &mut Vec<u8>,
    fields: &[Field<'a>],
    placement: FieldPlacement,
) -> Result<FramingFields<'a>, UserError> {
    let mut framing = FramingFields::default();
    for field in fields {
        if !is_token_bytes(field.name) {
            return Err(UserError::InvalidFieldName);
        }
        if !is_value_bytes(field.value) {
            return Err(UserError::InvalidFieldValue);
        }
        let kind = framing.record(field)?;
        if placement.defers(kind, field.value) {
            continue;
        }
        out.extend_from_slice(field.name);
        out.extend_from_slice(b": ");
        match kind {
            // Without leading zeros, which some parsers read as octal.
            FieldKind::Length(length) => decimal(out, length),
            _ => out.extend_from_slice(field.value),
        }
        out.extend_from_slice(b"\r\n");
    }
    Ok(framing)
}

impl<'a> FramingFields<'a> {
    #[inline]
    fn record(&mut self, field: &Field<'a>) -> Result<FieldKind, UserError> {
        match (field.name.len(), field.name[0] | 0x20) {
            (14, b'c') if is(field, b"content-length") => self.record_length(field.value),
            (17, b't') if is(field, b"transfer-encoding") => self.record_coding(field.value),
            (10, b'c') if is(field, b"connection") => self.record_connection(field.value),
            (4, b'h') if is(field, b"host") => {
                self.hosts += 1;
                Ok(FieldKind::Other)
            }
            (7, b'u') if is(field, b"upgrade") => {
                self.upgrade = true;
                Ok(FieldKind::Other)
            }
            (6, b'e') if is(field, b"expect") => {
                self.expects_continue |= field.value.eq_ignore_ascii_case(b"100-continue");
                Ok(FieldKind::Other)
            }
            _ => Ok(FieldKind::Other),
        }
    }

    fn record_length(&mut self, value: &[u8]) -> Result<FieldKind, UserError> {
        if self.length.is_some() {
            return Err(UserError::InvalidContentLength);
        }
        let length = parse_length(value).ok_or(UserError::InvalidContentLength)?;
        self.length = Some(length);
        Ok(FieldKind::Length(length))
    }

    fn record_coding(&mut self, value: &[u8]) -> Result<FieldKind, UserError> {
        if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(UserError::InvalidTransferEncoding);
        }
        self.chunked = true;
        Ok(FieldKind::Coding)
    }

    fn record_connection(&mut self, value: &'a [u8]) -> Result<FieldKind, UserError> {
        if self.connection.is_some() {
            return Err(UserError::InvalidFieldValue);
        }
        self.connection = Some(value);
        self.options.add(value);
        Ok(FieldKind::Connection)
    }
}

#[inline]
fn is<const N: usize>(field: &Field<'_>, lower: &[u8; N]) -> bool {
    // Nearly always in lower case, which is a comparison of words.
    field
        .name
        .first_chunk::<N>()
        .is_some_and(|name| name == lower || name.eq_ignore_ascii_case(lower))
}

/// Appends the one Connection field: the program's value, and the required options.
pub(super) fn connection(
    out: &mut Vec<u8>,
    framing: &FramingFields<'_>,
    close: bool,
    keep_alive: bool,
) {
    // A `keep-alive` of the program contradicts a required `close`.
    let contradicted = close && framing.options.keep_alive;
    let given = framing
        .connection
        .filter(|value| !(value.is_empty() || contradicted));
    let add: &[u8] = match (close, keep_alive) {
        (true, _) if contradicted || !framing.options.close => b"close",
        (false, true) if !framing.options.keep_alive => b"keep-alive",
        _ => b"",
    };
    if given.is_none() && add.is_empty() {
        return;
    }
    out.extend_from_slice(b"connection: ");
    out.extend_from_slice(given.unwrap_or_default());
    if given.is_some() && !add.is_empty() {
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(add);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    decimal(out, length);
    out.extend_from_slice(b"\r\n");
}

/// Appends a status line; an empty `reason` means the standard one.
pub(super) fn status_line(out: &mut Vec<u8>, status: u16, reason: &[u8]) -> Result<(), UserError> {
    if !(100..=599).contains(&status) {
        return Err(UserError::InvalidStatus);
    }
    if !is_value_bytes(reason) {
        return Err(UserError::InvalidReason);
    }
    if status == 200 && reason.is_empty() {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return Ok(());
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(if reason.is_empty() {
        standard_reason(status)
    } else {
        reason
    });
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends `n` in decimal.
fn decimal(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends the size line of a chunk of `n` bytes.
pub(super) fn chunk_size(out: &mut Vec<u8>, n: usize) {
    let mut digits = [0; 18];
    digits[16..].copy_from_slice(b"\r\n");
    let mut at = 16;
    let mut n = n;
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[n & 15];
        n >>= 4;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends the last chunk and the trailer section.
pub(super) fn last_chunk(out: &mut Vec<u8>, trailers: &[Field<'_>]) -> Result<(), UserError> {
    out.extend_from_slice(b"0\r\n");
    if !trailers.is_empty() {
        if trailers
            .iter()
            .any(|field| is_forbidden_trailer(field.name))
        {
            return Err(UserError::ForbiddenTrailer);
        }
        fields(out, trailers, FieldPlacement::Deferred)?;
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// The standard phrase of a status (RFC 9110 15 and the IANA registry); empty for an unknown one.
#[rustfmt::skip]
pub const fn standard_reason(status: u16) -> &'static [u8] {
    match status {
        100 => b"Continue",
        101 => b"Switching Protocols",
        102 => b"Processing",
        103 => b"Early Hints",
        200 => b"OK",
        201 => b"Created",
        202 => b"Accepted",
        203 => b"Non-Authoritative Information",
        204 => b"No Content",
        205 => b"Reset Content",
        206 => b"Partial Content",
        207 => b"Multi-Status",
        208 => b"Already Reported",
        226 => b"IM Used",
        300 => b"Multiple Choices",
        301 => b"Moved Permanently",
        302 => b"Found",
        303 => b"See Other",
        304 => b"Not Modified",
        305 => b"Use Proxy",
        307 => b"Temporary Redirect",
        308 => b"Permanent Redirect",
        400 => b"Bad Request",
        401 => b"Unauthorized",
        402 => b"Payment Required",
        403 => b"Forbidden",
        404 => b"Not Found",
        405 => b"Method Not Allowed",
        406 => b"Not Acceptable",
        407 => b"Proxy Authentication Required",
        408 => b"Request Timeout",
        409 => b"Conflict",
        410 => b"Gone",
        411 => b"Length Required",
        412 => b"Precondition Failed",
        413 => b"Content Too Large",
        414 => b"URI Too Long",
        415 => b"Unsupported Media Type",
        416 => b"Range Not Satisfiable",
        417 => b"Expectation Failed",
        418 => b"I'm a teapot",
        421 => b"Misdirected Request",
        422 => b"Unprocessable Content",
        423 => b"Locked",
        424 => b"Failed Dependency",
        425 => b"Too Early",
        426 => b"Upgrade Required",
        428 => b"Precondition Required",
        429 => b"Too Many Requests",
        431 => b"Request Header Fields Too Large",
        451 => b"Unavailable For Legal Reasons",
        500 => b"Internal Server Error",
        501 => b"Not Implemented",
        502 => b"Bad Gateway",
        503 => b"Service Unavailable",
        504 => b"Gateway Timeout",
        505 => b"HTTP Version Not Supported",
        506 => b"Variant Also Negotiates",
        507 => b"Insufficient Storage",
        508 => b"Loop Detected",
        510 => b"Not Extended",
        511 => b"Network Authentication Required",
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(given: &[(&str, &str)]) -> Result<String, UserError> {
        let given: Vec<Field<'_>> = given
            .iter()
            .map(|(name, value)| Field {
                name: name.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let mut out = Vec::new();
        fields(&mut out, &given, FieldPlacement::Deferred)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn response_splitting_is_refused() {
        assert_eq!(
            written(&[("x", "a\tb"), ("Y-z", "")]),
            Ok("x: a\tb\r\nY-z: \r\n".into())
        );
        for value in ["a\r\nb: c", "a\rb", "a\nb", "a\0b", "a\x7f", "\x0b"] {
            assert_eq!(
                written(&[("x", value)]),
                Err(UserError::InvalidFieldValue),
                "{value:?}"
            );
        }
        for name in ["", "a b", "a:", "a\r\n", "é", "a\0"] {
            assert_eq!(
                written(&[(name, "x")]),
                Err(UserError::InvalidFieldName),
                "{name:?}"
            );
        }
        assert_eq!(
            status_line(&mut Vec::new(), 200, b"O\r\nK"),
            Err(UserError::InvalidReason)
        );
        assert_eq!(
            status_line(&mut Vec::new(), 600, b""),
            Err(UserError::InvalidStatus)
        );
    }

    #[test]
    fn repeated_or_invalid_framing_fields_are_refused() {
        for given in [
            [("content-length", "5"), ("Content-Length", "5")],
            [("content-length", "+5"), ("x", "y")],
        ] {
            assert_eq!(written(&given), Err(UserError::InvalidContentLength));
        }
        assert_eq!(
            written(&[("transfer-encoding", "gzip")]),
            Err(UserError::InvalidTransferEncoding)
        );
        assert_eq!(
            written(&[("Content-Length", "5"), ("Transfer-Encoding", "chunked")]),
            Ok(String::new())
        );
    }

    #[test]
    fn numbers() {
        let mut out = Vec::new();
        for n in [0, 9, 10, 65_535, u64::MAX] {
            decimal(&mut out, n);
            out.push(b' ');
        }
        chunk_size(&mut out, 0xabc0);
        chunk_size(&mut out, usize::MAX);
        assert_eq!(
            out,
            b"0 9 10 65535 18446744073709551615 abc0\r\nffffffffffffffff\r\n"
        );
    }

    #[test]
    fn one_connection_field() {
        let cases = [
            (None, true, false, "connection: close\r\n"),
            (None, false, true, "connection: keep-alive\r\n"),
            (None, false, false, ""),
            (Some("upgrade"), false, false, "connection: upgrade\r\n"),
            (Some("x"), true, false, "connection: x, close\r\n"),
            (Some("close"), true, false, "connection: close\r\n"),
            (Some("keep-alive"), true, false, "connection: close\r\n"),
            (
                Some("keep-alive, Close"),
                true,
                false,
                "connection: close\r\n",
            ),
            (
                Some("keep-alive"),
                false,
                true,
                "connection: keep-alive\r\n",
            ),
        ];
        for (given, close, keep_alive, expected) in cases {
            let mut framing = FramingFields::default();
            if let Some(value) = given {
                framing.record_connection(value.as_bytes()).unwrap();
            }
            let mut out = Vec::new();
            connection(&mut out, &framing, close, keep_alive);
            assert_eq!(out, expected.as_bytes(), "{given:?}");
        }
    }
}
