//! Requests, and connections, that a server's end refuses itself: for the logs and counters of the program.

use crate::{CloseReason, Protocol, StreamId, Version};

/// Bytes of a method or a target that are kept: enough to find the client, whatever its request was.
const MAX_TEXT_BYTES: usize = 1024;

/// One refusal. The program never sees the request, unless `stream` is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The exchange that the program has been given and that has now failed.
    pub stream: Option<StreamId>,
    /// Status of the response; 0 when none was sent.
    pub status: u16,
    /// The kind of fault: `Protocol`, `Limit`, `Timeout` or `Truncated`.
    pub reason: CloseReason,
    /// The rule, with its specification.
    pub rule: &'static str,
    /// The protocol of the connection.
    pub protocol: Protocol,
    /// The request's line as far as it is known; the target is cut after 1 KiB.
    pub line: RefusedLine,
}

/// The first line of a refused request. A part that is not known is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusedLine {
    /// Request method.
    pub method: Vec<u8>,
    /// Request target.
    pub target: Vec<u8>,
    /// Version of the message.
    pub version: Option<Version>,
}

impl RefusedLine {
    pub(crate) fn new(method: &[u8], target: &[u8], version: Option<Version>) -> Self {
        let cut = |text: &[u8]| text[..text.len().min(MAX_TEXT_BYTES)].to_vec();
        Self {
            method: cut(method),
            target: cut(target),
            version,
        }
    }

    /// The line of a request that could not be parsed: the text up to the first space and up to the second,
    /// if it looks like a request line, else all of it as the target.
    pub(crate) fn guess(bytes: &[u8]) -> Self {
        let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let line = &bytes[..end.unwrap_or(bytes.len())];
        let mut parts = line.splitn(3, |&byte| byte == b' ');
        match (parts.next(), parts.next()) {
            (Some(method), Some(target))
                if !method.is_empty() && method.iter().all(u8::is_ascii_alphanumeric) =>
            {
                Self::new(method, target, None)
            }
            _ => Self::new(b"", line, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_guessed_from_its_spaces() {
        let guess = |bytes: &[u8]| {
            let RefusedLine { method, target, .. } = RefusedLine::guess(bytes);
            (
                String::from_utf8(method).unwrap(),
                String::from_utf8(target).unwrap(),
            )
        };
        let pair = |method: &str, target: &str| (method.to_owned(), target.to_owned());
        assert_eq!(guess(b"GET /a b HTTP/1.1\r\nhost: a"), pair("GET", "/a"));
        assert_eq!(guess(b"GET /a"), pair("GET", "/a"));
        assert_eq!(guess(b"\x16\x03\x01"), pair("", "\x16\x03\x01"));
        assert_eq!(guess(b"hello\nworld"), pair("", "hello"));
        assert_eq!(guess(b""), pair("", ""));
    }

    #[test]
    fn a_long_target_is_cut() {
        let line = RefusedLine::guess(&[b"GET /", &b"a".repeat(5000)[..]].concat());
        assert_eq!(line.target.len(), MAX_TEXT_BYTES);
    }
}
