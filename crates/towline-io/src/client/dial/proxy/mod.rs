//! Handshakes with proxies, as state machines without a socket.
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

/// After a piece of the proxy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There may be something to send, and there is more to come.
    More,
    /// The handshake is complete: further bytes are of the origin.
    Done,
}

/// A refusal by the proxy, or a violation of its protocol. The text follows "the proxy URL ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) text: String,
    /// Of an HTTP proxy.
    pub(super) status: Option<u16>,
    /// Another address of the origin may do.
    pub(super) of_address: bool,
}

impl Refusal {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            status: None,
            of_address: false,
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
    /// `addr`: what `socks5` connects to; the others send the name.
    pub(super) fn new(
        proxy: &Proxy,
        route: &Route,
        addr: Option<SocketAddr>,
    ) -> Result<Self, Refusal> {
        let mut outbox = Vec::new();
        let protocol = match proxy.scheme {
            ProxyScheme::Http | ProxyScheme::Https => {
                Protocol::Tunnel(Tunnel::begin(proxy, &route.authority(), &mut outbox)?)
            }
            ProxyScheme::Socks5 | ProxyScheme::Socks5h => {
                let target = socks::Target::new(&route.host, route.port, addr)?;
                Protocol::Socks(Socks::begin(
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

    /// A piece of what the proxy says.
    pub(super) fn received(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        match &mut self.protocol {
            Protocol::Tunnel(tunnel) => tunnel.received(bytes),
            Protocol::Socks(socks) => socks.received(bytes, &mut self.outbox),
        }
    }
}

/// The origin waits for the client to send first: any further byte is a protocol violation.
fn nothing_behind(rest: &[u8]) -> Result<Step, Refusal> {
    if rest.is_empty() {
        Ok(Step::Done)
    } else {
        Err(Refusal::new("sent bytes after its answer"))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
