//! Leniency towards responses: what RFC 9112 lets a recipient accept, and what cannot change where a message ends.
//! `docs/wire_rules.md` lists all of it. A server accepts none of this.
//!
//! The strict parser runs first, and only a line that it refuses comes here.

use crate::Version;
use crate::byte_class::{token_end, value_end};
use crate::head::{FieldSpan, StartLine};

use super::scan::{COLON, Scan, Stop, VALUE, bad_name};
use super::start_line::{REASON, STATUS};

/// A line that the strict parser refuses in a field section.
#[derive(Clone, Copy)]
pub(super) enum FieldLine {
    /// The field, and the start of the next line.
    Field(FieldSpan, usize),
    /// More of the value of the line before (RFC 9112 5.2): the end of its content, and the start of the next line.
    Fold { content_end: usize, end: usize },
    /// The end of the section, and what follows it.
    Empty(usize),
}

/// A line that starts at `at`. Lines may end in LF alone (RFC 9112 2.2), a value may hold control bytes other than CR,
/// LF and NUL (RFC 9110 5.5), and whitespace before the colon is removed (RFC 9112 5.1).
#[cold]
pub(super) fn field_line(bytes: &[u8], at: usize, is_first: bool) -> Scan<FieldLine> {
    match bytes.get(at) {
        Some(b'\n') => return Ok(FieldLine::Empty(at + 1)),
        // Before the first field it continues nothing (RFC 9112 2.2).
        Some(b' ' | b'\t') if !is_first => {
            let (content_end, end) = rest_of_line(bytes, at)?;
            return Ok(FieldLine::Fold { content_end, end });
        }
        _ => {}
    }
    let name_end = token_end(bytes, at);
    let colon = skip_whitespace(bytes, name_end);
    match bytes.get(colon) {
        None => return Err(Stop::Partial),
        Some(b':') if name_end > at => {}
        Some(_) => return Err(bad_name(bytes, at, name_end)),
    }
    if colon > name_end && is_framing(&bytes[at..name_end]) {
        return Err(Stop::Wrong(COLON, name_end));
    }
    let value = skip_whitespace(bytes, colon + 1);
    let (content_end, end) = rest_of_line(bytes, value)?;
    let span = FieldSpan {
        name: at as u32,
        name_len: (name_end - at) as u32,
        value: value as u32,
        value_len: (content_end - value) as u32,
    };
    Ok(FieldLine::Field(span, end))
}

/// A status line that the strict parser has refused because of `stop`: of a later minor version, which is processed as
/// the highest known one (RFC 9110 2.5), with more whitespace (RFC 9112 4), or ended by LF alone (RFC 9112 2.2).
#[cold]
pub(super) fn status_line(bytes: &[u8], stop: Stop) -> Scan<(StartLine, usize)> {
    let minor = match bytes {
        [
            b'H',
            b'T',
            b'T',
            b'P',
            b'/',
            b'1',
            b'.',
            minor @ b'0'..=b'9',
            b' ' | b'\t',
            ..,
        ] => *minor,
        _ => return Err(stop),
    };
    let at = skip_whitespace(bytes, 8);
    let mut status = 0;
    for place in at..at + 3 {
        match bytes.get(place) {
            None => return Err(Stop::Partial),
            Some(digit @ b'0'..=b'9') => status = status * 10 + u16::from(digit - b'0'),
            Some(_) => return Err(Stop::Wrong(STATUS, place)),
        }
    }
    match bytes.get(at + 3) {
        None => return Err(Stop::Partial),
        Some(b' ' | b'\t' | b'\r' | b'\n') if status >= 100 => {}
        Some(_) => return Err(Stop::Wrong(STATUS, at + 3)),
    }
    let reason = skip_whitespace(bytes, at + 3);
    let (content_end, end) = rest_of_line(bytes, reason).map_err(|stop| match stop {
        Stop::Wrong(_, at) => Stop::Wrong(REASON, at),
        Stop::Partial => Stop::Partial,
    })?;
    let line = StartLine {
        target: reason as u32,
        target_len: (content_end - reason) as u32,
        status,
        version: if minor == b'0' {
            Version::Http10
        } else {
            Version::Http11
        },
        ..StartLine::default()
    };
    Ok((line, end))
}

/// Whether a field decides where the message ends: it is never read leniently.
pub(super) fn is_framing(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding")
}

/// Joins folded values, whose spans contain their line ends: one space instead of each fold (RFC 9112 5.2).
#[cold]
pub(super) fn unfold(bytes: &mut [u8], spans: &mut [FieldSpan]) {
    for span in spans {
        let start = span.value as usize;
        let end = start + span.value_len as usize;
        if memchr::memchr(b'\n', &bytes[start..end]).is_none() {
            continue;
        }
        let (mut kept, mut at) = (start, start);
        while at < end {
            let line = memchr::memchr(b'\n', &bytes[at..end]).map_or(end, |n| at + n);
            let mut content = at..line;
            let is_space = |at: usize| matches!(bytes[at], b' ' | b'\t' | b'\r');
            while !content.is_empty() && is_space(content.start) {
                content.start += 1;
            }
            while !content.is_empty() && is_space(content.end - 1) {
                content.end -= 1;
            }
            if !content.is_empty() {
                if kept > start {
                    bytes[kept] = b' ';
                    kept += 1;
                }
                let len = content.len();
                bytes.copy_within(content, kept);
                kept += len;
            }
            at = line + 1;
        }
        span.value_len = (kept - start) as u32;
    }
}

/// The end of the content, without whitespace around it, and of the line.
fn rest_of_line(bytes: &[u8], from: usize) -> Scan<(usize, usize)> {
    let mut at = from;
    let end = loop {
        at = value_end(bytes, at);
        match (bytes.get(at), bytes.get(at + 1)) {
            (None, _) | (Some(b'\r'), None) => return Err(Stop::Partial),
            (Some(b'\n'), _) => break at + 1,
            (Some(b'\r'), Some(b'\n')) => break at + 2,
            (Some(b'\r' | 0), _) => return Err(Stop::Wrong(VALUE, at)),
            (Some(_), _) => at += 1,
        }
    };
    while at > from && matches!(bytes[at - 1], b' ' | b'\t') {
        at -= 1;
    }
    Ok((at, end))
}

fn skip_whitespace(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t'))
        .count()
}
