//! Handshakes with proxies, as state machines without I/O.
//!
//! ```text
//! outgoing/sent ─► the proxy ─► received ─► Step::More ─► outgoing ... ─► Step::Done
//!                                       └─► Err(Refusal)
//! ```

mod socks;
mod step;
mod tunnel;

use std::net::SocketAddr;

use crate::client::route::{Proxy, ProxyScheme, Route};

use socks::Socks;
use tunnel::Tunnel;

pub(super) use step::{Refusal, Step};

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
