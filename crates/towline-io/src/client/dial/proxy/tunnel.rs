//! Handshake with an HTTP proxy: CONNECT (RFC 9110 9.3.6).
//!
//! Proxies are read as leniently as curl, Go and Python's `http.client` read them: HTTP/1.0, lines that end in LF (RFC 9112
//! 2.2), no reason phrase. Nothing of a 2xx response but its status counts: it has no body, whatever its Content-Length
//! and Transfer-Encoding say.

use super::{Refusal, Step};
use crate::client::route::Proxy;

/// Limit of the response heads together, interim ones included: that of a response of an origin, as in httpx.
const MAX_RESPONSE_BYTES: usize = 100 * 1024;

/// Characters of the proxy's own text that are repeated in a message.
const MAX_SHOWN_CHARS: usize = 64;

#[derive(Debug)]
pub(super) struct Tunnel {
    has_credentials: bool,
    response: Vec<u8>,
    /// Offset of the current head.
    head_start: usize,
    /// No head ends before this offset.
    scanned: usize,
}

impl Tunnel {
    pub(super) fn start(
        proxy: &Proxy,
        authority: &str,
        outbox: &mut Vec<u8>,
    ) -> Result<Self, Refusal> {
        let mut field = |name: &[u8], value: &[u8]| {
            outbox.extend_from_slice(name);
            outbox.extend_from_slice(b": ");
            outbox.extend_from_slice(value);
            outbox.extend_from_slice(b"\r\n");
        };
        let has_line_break =
            |text: &[u8]| text.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
        if authority.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(Refusal::new(
                "cannot connect to a host with spaces in its name",
            ));
        }
        field(
            format!("CONNECT {authority} HTTP/1.1\r\nHost").as_bytes(),
            authority.as_bytes(),
        );
        if let Some(value) = proxy.authorization() {
            field(b"Proxy-Authorization", &value);
        }
        for (name, value) in &proxy.headers {
            if name.is_empty()
                || has_line_break(name)
                || name.contains(&b':')
                || has_line_break(value)
            {
                return Err(Refusal::new("was given an invalid header (RFC 9110 5.5)"));
            }
            field(name, value);
        }
        outbox.extend_from_slice(b"\r\n");
        Ok(Self {
            has_credentials: proxy.credentials.is_some(),
            response: Vec::new(),
            head_start: 0,
            scanned: 0,
        })
    }

    /// Handles bytes of the response. The origin sends nothing before the client does, so bytes that arrive with a 2xx
    /// head are a body, which other clients drop as well.
    pub(super) fn received(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        let room = MAX_RESPONSE_BYTES - self.response.len().min(MAX_RESPONSE_BYTES);
        self.response
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        loop {
            let text = &self.response[self.head_start..];
            check_start(text)?;
            let from = self.scanned.saturating_sub(self.head_start);
            let Some(length) = head_length(text, from) else {
                self.scanned = self.response.len().saturating_sub(2);
                if self.response.len() >= MAX_RESPONSE_BYTES {
                    return Err(Refusal::new("sent a response head over 100 KiB"));
                }
                return Ok(Step::More);
            };
            let head = &text[..length];
            match status(head)? {
                // Interim responses precede the final one (RFC 9110 15.2); CONNECT asks for no other protocol.
                status @ 100..200 if status != 101 => self.head_start += length,
                200..300 => return Ok(Step::Done),
                status => return Err(self.refusal(status, head)),
            }
        }
    }

    fn refusal(&self, status: u16, head: &[u8]) -> Refusal {
        let text = match status {
            407 => {
                let text = if self.has_credentials {
                    "does not accept the credentials (407)"
                } else {
                    "requires credentials (407)"
                };
                format!("{text}{}", foreign_schemes(head))
            }
            _ => format!("refuses the tunnel: {status}{}", reason(head)),
        };
        Refusal {
            text,
            status: Some(status),
            ..Refusal::new("")
        }
    }
}

/// Rejects input that is not HTTP at once: the end of a head may never come.
fn check_start(text: &[u8]) -> Result<(), Refusal> {
    let expected = b"HTTP/1.";
    let length = text.len().min(expected.len());
    if text[..length] == expected[..length] {
        return Ok(());
    }
    // An alert of TLS (RFC 8446 6).
    let is_tls = text[0] == 0x15;
    Err(Refusal::new(if is_tls {
        "did not respond in HTTP/1.1, but in TLS; is its URL https://?"
    } else {
        "did not respond in HTTP/1.1"
    }))
}

/// Length of the head with its empty line, which does not begin before `from`.
fn head_length(text: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &text[from..]).find_map(|at| match text.get(from + at + 1..)? {
        [b'\n', ..] => Some(from + at + 2),
        [b'\r', b'\n', ..] => Some(from + at + 3),
        _ => None,
    })
}

fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// Status of the head. RFC 9112 4: `HTTP/1.` DIGIT SP 3DIGIT, then SP or the end of the line.
fn status(head: &[u8]) -> Result<u16, Refusal> {
    let line = lines(head).next().unwrap_or_default();
    let invalid = || Refusal::new("sent an invalid status line (RFC 9112 4)");
    let [b'0'..=b'9', b' ', rest @ ..] = line.get(7..).ok_or_else(invalid)? else {
        return Err(invalid());
    };
    let rest = rest.trim_ascii_start();
    let (digits, after) = rest.split_at(rest.len().min(3));
    let is_whole = matches!(after, [] | [b' ', ..]) && digits.len() == 3;
    let status = digits.iter().try_fold(0, |status, byte| {
        byte.is_ascii_digit()
            .then(|| status * 10 + u16::from(byte - b'0'))
    });
    status
        .filter(|status| is_whole && *status >= 100)
        .ok_or_else(invalid)
}

/// A space and the reason phrase.
fn reason(head: &[u8]) -> String {
    let line = lines(head).next().unwrap_or_default();
    let phrase = line[7..].splitn(3, |&byte| byte == b' ').nth(2);
    phrase.map_or_else(String::new, |phrase| format!(" {}", shown(phrase)))
}

/// The schemes that the proxy asks for (RFC 9110 11.7.1), if Basic is not among them.
fn foreign_schemes(head: &[u8]) -> String {
    const FIELD: &[u8] = b"proxy-authenticate:";
    let schemes: Vec<_> = lines(head)
        .filter(|line| {
            line.get(..FIELD.len())
                .is_some_and(|name| name.eq_ignore_ascii_case(FIELD))
        })
        .map(|line| line[FIELD.len()..].trim_ascii())
        .map(|value| value.split(|&byte| byte == b' ').next().unwrap_or(value))
        .map(shown)
        .collect();
    let has_basic = schemes
        .iter()
        .any(|name| name.eq_ignore_ascii_case("basic"));
    if schemes.is_empty() || has_basic {
        return String::new();
    }
    format!(", with {}; only Basic is supported", schemes.join(", "))
}

/// Printable ASCII characters of the proxy's text, up to the limit.
fn shown(text: &[u8]) -> String {
    text.iter()
        .take(MAX_SHOWN_CHARS)
        .map(|&byte| char::from(byte))
        .filter(|c| matches!(c, ' '..='~'))
        .collect()
}
