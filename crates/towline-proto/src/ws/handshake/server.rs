//! The server's half: parsing the request, and the response to it.

use super::super::deflate;
use super::{OwnedField, VERSION, elements, is_token, key, values};
use crate::HeadRef;

/// A valid request for a WebSocket.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    head: HeadRef<'a>,
    /// HTTP/1.1 only; an extended CONNECT has none (RFC 8441 5).
    key: Option<&'a [u8]>,
}

/// Why a request cannot become a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// 400 or 426.
    pub status: u16,
    /// The rule that was broken.
    pub rule: &'static str,
}

impl Refusal {
    const fn bad(rule: &'static str) -> Self {
        Self { status: 400, rule }
    }

    /// The header fields of the response: 426 names the supported version (RFC 6455 4.4).
    pub fn fields(&self) -> Vec<OwnedField> {
        if self.status == 426 {
            vec![
                (b"upgrade", b"websocket".to_vec()),
                (b"connection", b"upgrade".to_vec()),
                (b"sec-websocket-version", VERSION.to_vec()),
            ]
        } else {
            Vec::new()
        }
    }
}

/// A response to send with `respond`, and the parameters for the WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// 101, or 200 to CONNECT.
    pub status: u16,
    /// The fields of the handshake; the program may add others.
    pub fields: Vec<OwnedField>,
    /// The negotiated compression, for [`WebSocket::new`](super::super::WebSocket::new).
    pub deflate: Option<deflate::Params>,
}

/// Whether a request is a WebSocket handshake, valid or not: for programs that serve both.
pub fn is_upgrade(head: &HeadRef<'_>) -> bool {
    let names = |element: &[u8]| element.eq_ignore_ascii_case(b"websocket");
    head.method() == b"GET" && elements(values(head, b"upgrade")).any(names)
}

impl<'a> Request<'a> {
    /// Parses an HTTP/1.1 request (RFC 6455 4.2.1). Its Host has been checked by the connection; its Origin
    /// is left to the program.
    pub fn read(head: HeadRef<'a>) -> Result<Self, Refusal> {
        if !is_upgrade(&head) || head.version() != crate::Version::Http11 {
            return Err(Refusal::bad(
                "not a GET of HTTP/1.1 with Upgrade: websocket (RFC 6455 4.1)",
            ));
        }
        let upgrade = |element: &[u8]| element.eq_ignore_ascii_case(b"upgrade");
        if !elements(values(&head, b"connection")).any(upgrade) {
            return Err(Refusal::bad("no Connection: upgrade (RFC 6455 4.1)"));
        }
        check_version(&head)?;
        let key = only(&head, b"sec-websocket-key").filter(|value| key::is_key(value));
        if key.is_none() {
            return Err(Refusal::bad(
                "Sec-WebSocket-Key is not one of sixteen bytes (RFC 6455 4.1)",
            ));
        }
        Self::checked(head, key)
    }

    /// Parses an extended CONNECT whose `:protocol` is `websocket` (RFC 8441 5).
    pub fn read_extended(head: HeadRef<'a>) -> Result<Self, Refusal> {
        check_version(&head)?;
        Self::checked(head, None)
    }

    fn checked(head: HeadRef<'a>, key: Option<&'a [u8]>) -> Result<Self, Refusal> {
        let request = Self { head, key };
        let mut protocols = request.protocols();
        if !protocols.all(is_token) {
            return Err(Refusal::bad(
                "Sec-WebSocket-Protocol is not a list of tokens (RFC 6455 4.1)",
            ));
        }
        // A malformed list fails the handshake even if compression is not used (RFC 6455 9.1).
        deflate::server_accept(request.extensions(), &deflate::Config::server())
            .map_err(|_| Refusal::bad("malformed Sec-WebSocket-Extensions (RFC 6455 9.1)"))?;
        Ok(request)
    }

    /// The subprotocols offered by the client, in order of preference.
    pub fn protocols(&self) -> impl Iterator<Item = &'a [u8]> {
        elements(values(&self.head, b"sec-websocket-protocol"))
    }

    fn extensions(&self) -> impl Iterator<Item = &'a [u8]> {
        values(&self.head, b"sec-websocket-extensions")
    }

    /// The accepting response, with one of the offered subprotocols, and with compression if both sides want
    /// it.
    pub fn accept(&self, protocol: Option<&[u8]>, config: Option<&deflate::Config>) -> Acceptance {
        let deflate = config.and_then(|config| {
            deflate::server_accept(self.extensions(), config).unwrap_or_default()
        });
        let mut fields: Vec<OwnedField> = Vec::with_capacity(5);
        if let Some(key) = self.key {
            fields.push((b"upgrade", b"websocket".to_vec()));
            fields.push((b"connection", b"upgrade".to_vec()));
            fields.push((b"sec-websocket-accept", key::accept(key)));
        }
        if let Some(protocol) = protocol {
            fields.push((b"sec-websocket-protocol", protocol.to_vec()));
        }
        if let Some(params) = &deflate {
            fields.push((b"sec-websocket-extensions", params.response_value()));
        }
        Acceptance {
            status: if self.key.is_some() { 101 } else { 200 },
            fields,
            deflate,
        }
    }
}

fn check_version(head: &HeadRef<'_>) -> Result<(), Refusal> {
    if only(head, b"sec-websocket-version") == Some(VERSION) {
        Ok(())
    } else {
        Err(Refusal {
            status: 426,
            rule: "Sec-WebSocket-Version is not 13 (RFC 6455 4.4)",
        })
    }
}

/// The value of a field that must occur exactly once.
fn only<'a>(head: &HeadRef<'a>, name: &'static [u8]) -> Option<&'a [u8]> {
    let mut values = values(head, name);
    let first = values.next()?;
    values.next().is_none().then_some(first)
}
