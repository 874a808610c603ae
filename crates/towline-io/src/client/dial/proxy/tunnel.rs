//! Handshake with an HTTP proxy: CONNECT (RFC 9110 9.3.6).

use super::{Refusal, Step, expect_end};
use crate::client::route::Proxy;

/// Limit of the response heads together, interim ones included.
const MAX_RESPONSE_BYTES: usize = 16 * 1024;

/// Characters of the reason phrase that are repeated in a message.
const MAX_REASON_CHARS: usize = 64;

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
            format!("CONNECT {authority} HTTP/1.1\r\nhost").as_bytes(),
            authority.as_bytes(),
        );
        if let Some(value) = proxy.authorization() {
            field(b"proxy-authorization", &value);
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

    pub(super) fn received(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        let room = MAX_RESPONSE_BYTES - self.response.len().min(MAX_RESPONSE_BYTES);
        self.response
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        loop {
            let text = &self.response[self.head_start..];
            check_start(text)?;
            let from = self.scanned.saturating_sub(self.head_start);
            let Some(length) = head_length(text, from) else {
                self.scanned = self.response.len().saturating_sub(3);
                if self.response.len() >= MAX_RESPONSE_BYTES {
                    return Err(Refusal::new("sent a response head over 16 KiB"));
                }
                return Ok(Step::More);
            };
            let (head, rest) = text.split_at(length);
            match status(head)? {
                // Interim responses precede the final one (RFC 9110 15.2).
                100..200 => self.head_start += length,
                200..300 => return expect_end(rest),
                status => return Err(self.refusal(status, head)),
            }
        }
    }

    fn refusal(&self, status: u16, head: &[u8]) -> Refusal {
        let text = match status {
            407 if self.has_credentials => "does not accept the credentials (407)".to_owned(),
            407 => "requires credentials (407)".to_owned(),
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
        Ok(())
    } else {
        Err(Refusal::new("did not respond in HTTP/1.1"))
    }
}

fn head_length(text: &[u8], from: usize) -> Option<usize> {
    let mut windows = text.get(from..)?.windows(4);
    let at = windows.position(|window| window == b"\r\n\r\n")?;
    Some(from + at + 4)
}

/// Status of the head. RFC 9112 4: `HTTP/1.` DIGIT SP 3DIGIT, then SP or the end of the line.
fn status(head: &[u8]) -> Result<u16, Refusal> {
    let invalid = || Refusal::new("sent an invalid status line (RFC 9112 4)");
    let [b'0'..=b'9', b' ', digits @ .., b' ' | b'\r'] = head.get(7..13).ok_or_else(invalid)?
    else {
        return Err(invalid());
    };
    let status = digits.iter().try_fold(0, |status, byte| {
        byte.is_ascii_digit()
            .then(|| status * 10 + u16::from(byte - b'0'))
    });
    status.filter(|status| *status >= 100).ok_or_else(invalid)
}

/// A space and the reason phrase: its printable ASCII characters, up to the limit.
fn reason(head: &[u8]) -> String {
    let status_line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let phrase = status_line.get(12..).unwrap_or_default();
    phrase
        .iter()
        .take(MAX_REASON_CHARS)
        .map(|&byte| char::from(byte))
        .filter(|c| matches!(c, ' '..='~'))
        .collect()
}
