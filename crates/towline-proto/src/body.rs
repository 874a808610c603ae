//! How a body ends: announced by the program ([`BodySize`]), decided from a received head ([`request_framing`],
//! [`response_framing`]). Decided once, in pure functions; all other code follows the decision.

use bytes::Bytes;

use crate::ConnectionError;
use crate::Version;

/// The body that the program is about to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodySize {
    /// None. The message is complete with its head.
    Empty,
    /// Exactly so many bytes.
    Known(u64),
    /// Unknown until `finish`: chunked on HTTP/1.1, ended by closing on HTTP/1.0.
    Unknown,
}

impl BodySize {
    /// The size of a body that is there as a whole.
    pub(crate) fn of(body: Option<&Bytes>) -> Self {
        body.map_or(Self::Empty, |body| Self::Known(body.len() as u64))
    }
}

/// How the body of a received message ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(u64),
    Chunked,
    UntilClose,
    /// The connection switches to another protocol after this head.
    Switch,
}

/// Value of the Content-Length lines of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Length {
    #[default]
    Absent,
    Bytes(u64),
    Malformed,
    /// More than one line or value.
    Repeated,
    /// More than one line or value, all of them equal. A request with them is refused: intermediaries may treat a list
    /// and a repeated line differently.
    Equal(u64),
}

/// Value of the Transfer-Encoding lines of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Coding {
    #[default]
    Absent,
    /// Exactly `chunked`.
    Chunked,
    /// An unknown coding, then `chunked`.
    OtherThenChunked,
    /// Anything else: `chunked` not last, twice, malformed.
    Malformed,
}

/// The methods that affect message framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Method {
    #[default]
    Other,
    Head,
    Connect,
}

impl Method {
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"HEAD" => Self::Head,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}

/// Whether a request with this method changes nothing (RFC 9110 9.2.1).
pub(crate) fn is_safe_method(name: &[u8]) -> bool {
    matches!(name, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE")
}

const BOTH: ConnectionError =
    ConnectionError::peer(400, "content-length with transfer-encoding (RFC 9112 6.1)");
const CODING_10: ConnectionError =
    ConnectionError::peer(400, "transfer-encoding in HTTP/1.0 (RFC 9112 6.1)");
const CODING: ConnectionError = ConnectionError::peer(
    400,
    "transfer-encoding is not exactly chunked (RFC 9112 6.3)",
);
const CODING_UNKNOWN: ConnectionError =
    ConnectionError::peer(501, "unknown transfer coding (RFC 9112 6.1)");
const LENGTH: ConnectionError =
    ConnectionError::peer(400, "malformed content-length (RFC 9112 6.3)");
const LENGTHS: ConnectionError =
    ConnectionError::peer(400, "several content-lengths (RFC 9112 6.3)");

/// Determines how the body of a request ends, or the error that leaves it undetermined (RFC 9112 6.3).
pub(crate) fn request_framing(
    version: Version,
    length: Length,
    coding: Coding,
) -> Result<Framing, ConnectionError> {
    Ok(match announced(version, length, coding)? {
        None | Some(Framing::Length(0)) => Framing::None,
        Some(framing) => framing,
    })
}

/// Determines how the body of a final response to `method` ends, or the error that leaves it undetermined (RFC
/// 9112 6.3).
pub(crate) fn response_framing(
    method: Method,
    status: u16,
    version: Version,
    length: Length,
    coding: Coding,
) -> Result<Framing, ConnectionError> {
    // The rules for responses without a body come first, but malformed lengths are errors in any case.
    let announced = announced(version, length, coding)?;
    Ok(match (method, status, announced) {
        (Method::Connect, 200..=299, _) | (_, 101, _) => Framing::Switch,
        (Method::Head, ..) | (_, 100..=199 | 204 | 304, _) | (.., Some(Framing::Length(0))) => {
            Framing::None
        }
        (.., None) => Framing::UntilClose,
        (_, _, Some(framing)) => framing,
    })
}

fn announced(
    version: Version,
    length: Length,
    coding: Coding,
) -> Result<Option<Framing>, ConnectionError> {
    if coding != Coding::Absent && length != Length::Absent {
        return Err(BOTH);
    }
    if coding != Coding::Absent && version == Version::Http10 {
        return Err(CODING_10);
    }
    match (coding, length) {
        (Coding::Chunked, _) => Ok(Some(Framing::Chunked)),
        (Coding::OtherThenChunked, _) => Err(CODING_UNKNOWN),
        (Coding::Malformed, _) => Err(CODING),
        (Coding::Absent, Length::Absent) => Ok(None),
        (Coding::Absent, Length::Bytes(n)) => Ok(Some(Framing::Length(n))),
        (Coding::Absent, Length::Malformed) => Err(LENGTH),
        (Coding::Absent, Length::Repeated | Length::Equal(_)) => Err(LENGTHS),
    }
}

impl Length {
    /// Another Content-Length line.
    pub fn add(&mut self, value: &[u8]) {
        *self = match (*self, parse_length(value)) {
            (Self::Absent, Some(bytes)) => Self::Bytes(bytes),
            (Self::Absent, None) => equal_values(value).map_or(Self::Malformed, Self::Equal),
            (Self::Bytes(before) | Self::Equal(before), bytes)
                if bytes.or_else(|| equal_values(value)) == Some(before) =>
            {
                Self::Equal(before)
            }
            _ => Self::Repeated,
        };
    }

    /// The length of a response, in which equal values are one (RFC 9110 8.6).
    pub fn merged(self) -> Self {
        match self {
            Self::Equal(bytes) => Self::Bytes(bytes),
            other => other,
        }
    }
}

/// The value of a list of equal ones: `5, 5`.
#[cold]
fn equal_values(list: &[u8]) -> Option<u64> {
    let mut values = list
        .split(|&byte| byte == b',')
        .map(|value| parse_length(trim_ows(value)));
    let first = values.next()??;
    values.all(|value| value == Some(first)).then_some(first)
}

/// `1*DIGIT` up to 2^63 - 1: the largest value that every intermediary can represent.
pub fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let mut bytes = 0_u64;
    for &byte in value {
        // One more digit cannot overflow 64 bits as long as the number so far is within bounds.
        if !byte.is_ascii_digit() || bytes > (i64::MAX as u64) / 10 {
            return None;
        }
        bytes = bytes * 10 + u64::from(byte - b'0');
    }
    i64::try_from(bytes).is_ok().then_some(bytes)
}

/// Strips the optional whitespace of RFC 9110 5.6.3: SP and HTAB and nothing else.
pub(crate) fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

impl Coding {
    /// Another Transfer-Encoding line. Lines form one list (RFC 9110 5.3), so `chunked` twice is an
    /// error; a list with empty elements is one too, since parsers disagree on it.
    pub fn add(&mut self, value: &[u8]) {
        *self = match *self {
            Self::Absent => Self::of(value),
            _ => Self::Malformed,
        };
    }

    fn of(value: &[u8]) -> Self {
        if value.eq_ignore_ascii_case(b"chunked") {
            return Self::Chunked;
        }
        let mut codings = value.split(|&byte| byte == b',').map(trim_ows);
        let last_is_chunked = codings
            .next_back()
            .is_some_and(|name| name.eq_ignore_ascii_case(b"chunked"));
        let others = codings.all(|name| {
            name.first().is_some_and(u8::is_ascii_alphabetic)
                && name.iter().all(u8::is_ascii_graphic)
                && !name.eq_ignore_ascii_case(b"chunked")
                && !name.eq_ignore_ascii_case(b"identity")
        });
        if last_is_chunked && others {
            Self::OtherThenChunked
        } else {
            Self::Malformed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_strict_decimal() {
        for (text, length) in [
            ("0", 0),
            ("5", 5),
            ("0005", 5),
            ("010", 10),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(parse_length(text.as_bytes()), Some(length), "{text}");
        }
        for text in [
            "",
            "+5",
            "-5",
            " 5",
            "5 ",
            "0x5",
            "5Z",
            "5.0",
            "4 2",
            "5, 5",
            ",5",
            "\"5\"",
            "\u{a0}5",
            "\u{b}5",
            "1e1",
            "9223372036854775808",
            "18446744073709551616",
            "99999999999999999999",
        ] {
            assert_eq!(parse_length(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn equal_lengths_are_one() {
        let of = |values: &[&str]| {
            let mut length = Length::Absent;
            for value in values {
                length.add(value.as_bytes());
            }
            length
        };
        for values in [
            &["5", "5"][..],
            &["5, 5"],
            &["5", "5,\t5"],
            &["5,5", "5"],
            &["5", "5", "05"],
        ] {
            assert_eq!(of(values), Length::Equal(5), "{values:?}");
            assert_eq!(of(values).merged(), Length::Bytes(5));
        }
        for values in [
            &["5", "6"][..],
            &["5", ""],
            &["5, 5", "6"],
            &["5", "5", "6"],
            &["6", "5", "5"],
        ] {
            assert_eq!(of(values), Length::Repeated, "{values:?}");
        }
        for value in ["5,", ",5", "5, 6", "5,,5", "5 5", "+5, +5"] {
            assert_eq!(of(&[value]), Length::Malformed, "{value}");
        }
    }

    #[test]
    fn only_chunked_alone_is_chunked() {
        assert_eq!(Coding::of(b"chunked"), Coding::Chunked);
        assert_eq!(Coding::of(b"ChunKed"), Coding::Chunked);
        assert_eq!(Coding::of(b"gzip, chunked"), Coding::OtherThenChunked);
        for value in [
            &b""[..],
            b"identity",
            b"gzip",
            b"xchunked",
            b"chunk",
            b"'chunked'",
            b"\x0bchunked",
            b"chunked\x0c",
            b"chunked, chunked",
            b",chunked",
            b"chunked,",
            b"chunked;x",
            b"\xa0chunked",
            b"identity, chunked",
        ] {
            assert_eq!(
                Coding::of(value),
                Coding::Malformed,
                "{}",
                value.escape_ascii()
            );
        }
    }

    #[test]
    fn ambiguous_framing_is_refused_on_both_sides() {
        let v = Version::Http11;
        let bad = [
            (v, Length::Bytes(5), Coding::Chunked, BOTH),
            (v, Length::Repeated, Coding::Chunked, BOTH),
            (Version::Http10, Length::Absent, Coding::Chunked, CODING_10),
            (v, Length::Repeated, Coding::Absent, LENGTHS),
            (v, Length::Malformed, Coding::Absent, LENGTH),
            (v, Length::Absent, Coding::Malformed, CODING),
            (v, Length::Absent, Coding::OtherThenChunked, CODING_UNKNOWN),
        ];
        for (version, length, coding, error) in bad {
            assert_eq!(request_framing(version, length, coding), Err(error.clone()));
            assert_eq!(
                response_framing(Method::Other, 200, version, length, coding),
                Err(error.clone())
            );
            assert_eq!(
                response_framing(Method::Head, 200, version, length, coding),
                Err(error)
            );
        }
    }

    #[test]
    fn responses_without_a_body() {
        let framing = |method, status, length| {
            response_framing(method, status, Version::Http11, length, Coding::Absent)
        };
        assert_eq!(
            framing(Method::Head, 200, Length::Bytes(5)),
            Ok(Framing::None)
        );
        assert_eq!(
            framing(Method::Other, 204, Length::Bytes(5)),
            Ok(Framing::None)
        );
        assert_eq!(
            framing(Method::Other, 304, Length::Bytes(5)),
            Ok(Framing::None)
        );
        assert_eq!(
            framing(Method::Connect, 200, Length::Bytes(5)),
            Ok(Framing::Switch)
        );
        assert_eq!(
            framing(Method::Connect, 407, Length::Bytes(5)),
            Ok(Framing::Length(5))
        );
        assert_eq!(
            framing(Method::Other, 200, Length::Absent),
            Ok(Framing::UntilClose)
        );
    }
}
