//! Handshakes with proxies, as state machines without I/O.
//!
//! ```text
//! outgoing/sent ─► the proxy ─► received ─► Step::More ─► outgoing ... ─► Step::Done
//!                                       └─► Err(Refusal)
//! ```

mod socks;
mod tunnel;

use std::net::SocketAddr;

use crate::client::route::{Proxy, ProxyScheme, Route};

use socks::Socks;
use tunnel::Tunnel;

/// State of the handshake after some bytes from the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The handshake goes on; there may be bytes to send.
    More,
    /// The handshake is complete: bytes read from now on come from the origin.
    Done,
}

/// A refusal by the proxy, or a violation of its protocol. The text follows "the proxy URL ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) text: String,
    /// Status of an HTTP proxy's response.
    pub(super) status: Option<u16>,
    /// The refusal concerns this address of the origin; another one may be accepted.
    pub(super) address_specific: bool,
}

impl Refusal {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            status: None,
            address_specific: false,
        }
    }
}

#[derive(Debug)]
pub(super) struct ProxyHandshake {
    protocol: Protocol,
    outbox: Vec<u8>,
    sent: usize,
}

#[derive(Debug)]
enum Protocol {
    Tunnel(Tunnel),
    Socks(Socks),
}

impl ProxyHandshake {
    /// Starts a handshake. `addr` is the address that a `socks5` proxy is to connect to; the others send the name.
    pub(super) fn new(
        proxy: &Proxy,
        route: &Route,
        addr: Option<SocketAddr>,
    ) -> Result<Self, Refusal> {
        let mut outbox = Vec::new();
        let protocol = match proxy.scheme {
            ProxyScheme::Http | ProxyScheme::Https => {
                Protocol::Tunnel(Tunnel::start(proxy, &route.authority(), &mut outbox)?)
            }
            ProxyScheme::Socks5 | ProxyScheme::Socks5h => {
                let target = socks::Target::new(&route.host, route.port, addr)?;
                Protocol::Socks(Socks::start(
                    proxy.credentials.as_ref(),
                    target,
                    &mut outbox,
                )?)
            }
        };
        Ok(Self {
            protocol,
            outbox,
            sent: 0,
        })
    }

    /// Bytes to send to the proxy now.
    pub(super) fn outgoing(&self) -> &[u8] {
        &self.outbox[self.sent..]
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes).min(self.outbox.len());
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        }
    }

    /// Most bytes to read next. SOCKS has no more, since the origin's may follow; a tunnel's head has no known length.
    pub(super) fn wanted(&self) -> usize {
        match &self.protocol {
            Protocol::Tunnel(_) => usize::MAX,
            Protocol::Socks(socks) => socks.missing(),
        }
    }

    /// Handles bytes from the proxy, `wanted` at most.
    pub(super) fn received(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        match &mut self.protocol {
            Protocol::Tunnel(tunnel) => tunnel.received(bytes),
            Protocol::Socks(socks) => socks.received(bytes, &mut self.outbox),
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
