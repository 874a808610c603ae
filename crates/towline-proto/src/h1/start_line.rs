//! Start lines, received (RFC 9112 3 and 4).

use crate::head::StartLine;
use crate::{ConnectionError, Version};

use super::scan::{LINE_END, Scan, Stop};
use crate::byte_class::{not_visible, token_end, value_end};

pub(super) const METHOD: ConnectionError =
    ConnectionError::peer(400, "method is not a token (RFC 9112 3)");
pub(super) const TARGET: ConnectionError =
    ConnectionError::peer(400, "forbidden byte in the request target (RFC 9112 3.2)");
pub(super) const NO_VERSION: ConnectionError =
    ConnectionError::peer(400, "no HTTP version in the request line (RFC 9112 3)");
pub(super) const VERSION: ConnectionError =
    ConnectionError::peer(400, "malformed HTTP version (RFC 9112 2.3)");
pub(super) const VERSION_OTHER: ConnectionError =
    ConnectionError::peer(505, "HTTP version not supported (RFC 9110 15.6.6)");
pub(super) const STATUS_LINE: ConnectionError =
    ConnectionError::peer(400, "not an HTTP/1 status line (RFC 9112 4)");
pub(super) const STATUS: ConnectionError =
    ConnectionError::peer(400, "malformed status code (RFC 9112 4)");
pub(super) const REASON: ConnectionError =
    ConnectionError::peer(400, "control byte in the reason phrase (RFC 9112 4)");

/// `method SP request-target SP HTTP-version CRLF`
#[inline]
pub(super) fn request_line(bytes: &[u8]) -> Scan<(StartLine, usize)> {
    let method_len = token_end(bytes, 0);
    if byte(bytes, method_len)? != b' ' || method_len == 0 {
        return wrong(&METHOD, method_len);
    }
    let target = method_len + 1;
    let target_end = not_visible(bytes, target);
    match byte(bytes, target_end)? {
        b' ' if target_end > target => {}
        b'\r' => return wrong(&NO_VERSION, target_end),
        _ => return wrong(&TARGET, target_end),
    }
    let (version, end) = version(bytes, target_end + 1)?;
    line_end(bytes, end)?;
    let line = StartLine {
        method_len: method_len as u32,
        target: target as u32,
        target_len: (target_end - target) as u32,
        version,
        ..StartLine::default()
    };
    Ok((line, end + 2))
}

/// `HTTP-version SP status-code [ SP [ reason-phrase ] ] CRLF`. The second SP may be missing: servers that send
/// no reason phrase omit it.
#[inline]
pub(super) fn status_line(bytes: &[u8]) -> Scan<(StartLine, usize)> {
    let (version, at) = version(bytes, 0).map_err(|stop| no_status_line(bytes, stop))?;
    if byte(bytes, at)? != b' ' {
        return wrong(&STATUS_LINE, at);
    }
    let mut status = 0;
    for place in at + 1..at + 4 {
        match byte(bytes, place)? {
            digit @ b'0'..=b'9' => status = status * 10 + u16::from(digit - b'0'),
            _ => return wrong(&STATUS, place),
        }
    }
    if !(100..=999).contains(&status) {
        return wrong(&STATUS, at + 3);
    }
    let mut reason = at + 4;
    match byte(bytes, reason)? {
        b' ' => reason += 1,
        b'\r' => {}
        _ => return wrong(&STATUS, reason),
    }
    let end = value_end(bytes, reason);
    if byte(bytes, end)? != b'\r' {
        return wrong(
            if bytes[end] == b'\n' {
                &LINE_END
            } else {
                &REASON
            },
            end,
        );
    }
    line_end(bytes, end)?;
    let line = StartLine {
        target: reason as u32,
        target_len: (end - reason) as u32,
        status,
        version,
        ..StartLine::default()
    };
    Ok((line, end + 2))
}

#[inline]
fn line_end(bytes: &[u8], at: usize) -> Scan<()> {
    match (byte(bytes, at)?, bytes.get(at + 1)) {
        (b'\r', Some(b'\n')) => Ok(()),
        (b'\r', None) => Err(Stop::Partial),
        _ => wrong(&LINE_END, at),
    }
}

/// Distinguishes input that is not HTTP from an unsupported version of it.
#[cold]
fn no_status_line(bytes: &[u8], stop: Stop) -> Stop {
    if b"HTTP/"[..].starts_with(&bytes[..bytes.len().min(5)]) {
        stop
    } else {
        Stop::Wrong(STATUS_LINE, 0)
    }
}

/// Parses the version at `at`; returns it with its end.
#[inline]
fn version(bytes: &[u8], at: usize) -> Scan<(Version, usize)> {
    match bytes[at..].first_chunk::<8>() {
        Some(b"HTTP/1.1") => Ok((Version::Http11, at + 8)),
        Some(b"HTTP/1.0") => Ok((Version::Http10, at + 8)),
        _ => other_version(bytes, at),
    }
}

#[cold]
fn other_version(bytes: &[u8], at: usize) -> Scan<(Version, usize)> {
    for (place, &expected) in (at..).zip(b"HTTP/") {
        if byte(bytes, place)? != expected {
            return wrong(&VERSION, place);
        }
    }
    for (place, is_right) in [
        (at + 5, u8::is_ascii_digit as fn(&u8) -> bool),
        (at + 6, |byte: &u8| *byte == b'.'),
        (at + 7, u8::is_ascii_digit),
        (at + 8, |byte: &u8| matches!(byte, b'\r' | b' ')),
    ] {
        if !is_right(&byte(bytes, place)?) {
            return wrong(&VERSION, place);
        }
    }
    wrong(&VERSION_OTHER, at + 8)
}

#[inline]
fn byte(bytes: &[u8], at: usize) -> Scan<u8> {
    bytes.get(at).copied().ok_or(Stop::Partial)
}

#[cold]
fn wrong<T>(error: &ConnectionError, at: usize) -> Scan<T> {
    Err(Stop::Wrong(error.clone(), at))
}
