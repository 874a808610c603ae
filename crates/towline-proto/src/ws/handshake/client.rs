//! The client's half: the request, and the check of the response.

use super::super::deflate;
use super::{OwnedField, VERSION, elements, key, values};
use crate::HeadRef;

/// A client's handshake request. The same value is needed to verify the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// HTTP/1.1 only; an extended CONNECT has none (RFC 8441 5).
    key: Option<Vec<u8>>,
    protocols: Vec<Vec<u8>>,
    deflate: Option<deflate::Config>,
}

/// The result of a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// The chosen subprotocol, one of those offered.
    pub protocol: Option<Vec<u8>>,
    /// For [`WebSocket::new`](super::super::WebSocket::new).
    pub deflate: Option<deflate::Params>,
}

impl Offer {
    /// For a GET of HTTP/1.1; `nonce`: sixteen random bytes, new for each handshake
    /// ([`Scratch::nonce`](super::super::Scratch::nonce)).
    pub fn new(nonce: [u8; 16], protocols: &[&[u8]], deflate: Option<deflate::Config>) -> Self {
        Self {
            key: Some(key::key(nonce)),
            ..Self::extended(protocols, deflate)
        }
    }

    /// For an extended CONNECT (RFC 8441), whose `:protocol` is `websocket`.
    pub fn extended(protocols: &[&[u8]], deflate: Option<deflate::Config>) -> Self {
        Self {
            key: None,
            protocols: protocols.iter().map(|protocol| protocol.to_vec()).collect(),
            deflate,
        }
    }

    /// The header fields of the request.
    pub fn fields(&self) -> Vec<OwnedField> {
        let mut fields: Vec<OwnedField> = Vec::with_capacity(6);
        if let Some(key) = &self.key {
            fields.push((b"Upgrade", b"websocket".to_vec()));
            fields.push((b"Connection", b"Upgrade".to_vec()));
            fields.push((b"Sec-WebSocket-Key", key.clone()));
        }
        fields.push((b"Sec-WebSocket-Version", VERSION.to_vec()));
        if !self.protocols.is_empty() {
            fields.push((b"Sec-WebSocket-Protocol", self.protocols.join(&b", "[..])));
        }
        if let Some(config) = &self.deflate {
            fields.push((b"Sec-WebSocket-Extensions", deflate::client_offer(config)));
        }
        fields
    }

    /// Checks a final response (RFC 6455 4.1); `Err` names the broken rule. Not to be called for a status
    /// other than 101, or 2xx to CONNECT, which is an ordinary response.
    pub fn verify(&self, head: &HeadRef<'_>) -> Result<Agreement, &'static str> {
        if let Some(key) = &self.key {
            check_switch(head, key)?;
        }
        let mut protocols = values(head, b"sec-websocket-protocol");
        let protocol = protocols.next().map(<[u8]>::to_vec);
        if protocols.next().is_some()
            || protocol
                .as_ref()
                .is_some_and(|chosen| !self.protocols.contains(chosen))
        {
            return Err("Sec-WebSocket-Protocol is not one of those offered (RFC 6455 4.1)");
        }
        let extensions = values(head, b"sec-websocket-extensions");
        let deflate = deflate::client_accept(extensions, self.deflate.as_ref())
            .map_err(|_| "Sec-WebSocket-Extensions is not what was offered (RFC 7692 7.1)")?;
        Ok(Agreement { protocol, deflate })
    }
}

fn check_switch(head: &HeadRef<'_>, key: &[u8]) -> Result<(), &'static str> {
    if head.status() != 101 {
        return Err("the status is not 101 (RFC 6455 4.1)");
    }
    let has = |name, token: &[u8]| {
        elements(values(head, name)).any(|element| element.eq_ignore_ascii_case(token))
    };
    if !has(b"upgrade", b"websocket") || !has(b"connection", b"upgrade") {
        return Err("101 without Upgrade: websocket and Connection: upgrade (RFC 6455 4.1)");
    }
    let mut accepts = values(head, b"sec-websocket-accept");
    if accepts.next() != Some(&key::accept(key)) || accepts.next().is_some() {
        return Err("Sec-WebSocket-Accept does not answer the key (RFC 6455 4.1)");
    }
    Ok(())
}
