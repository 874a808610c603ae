//! The hops of a request, and the client before them.

use std::net::{IpAddr, Ipv6Addr};

use super::trust::{PeerIp, TrustedPeers};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

/// Client address and scheme from the proxies; `None` keeps those of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// Address and port; the port is 0 if the proxy did not send it (as in Uvicorn).
    pub client: Option<(IpAddr, u16)>,
    pub scheme: Option<Scheme>,
}

impl Origin {
    /// Whether the client has used TLS. `is_tls`: the connection uses it.
    pub fn is_https(&self, is_tls: bool) -> bool {
        self.scheme.map_or(is_tls, |scheme| scheme == Scheme::Https)
    }
}

/// Selects the right-most untrusted hop while reading from the left, or the left-most if all are trusted.
/// An entry that is not an address invalidates everything left of it.
pub(super) struct Chain<'a> {
    pub trusted: &'a TrustedPeers,
    pub client: Option<(IpAddr, u16)>,
}

impl<'a> Chain<'a> {
    pub fn new(trusted: &'a TrustedPeers) -> Self {
        Self {
            trusted,
            client: None,
        }
    }

    pub fn push(&mut self, node: Option<(IpAddr, u16)>) {
        let Some(node) = node else {
            self.client = None;
            return;
        };
        if self.client.is_none() || !self.trusted.trusts(PeerIp::Ip(node.0)) {
            self.client = Some(node);
        }
    }
}

/// Parses `a.b.c.d`, `a.b.c.d:port`, `v6`, `[v6]` or `[v6]:port`; no names.
pub(super) fn parse_node(text: &[u8]) -> Option<(IpAddr, u16)> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, rest) = rest.split_once(']')?;
        let port = match rest.strip_prefix(':') {
            Some(port) => parse_port(port)?,
            None if rest.is_empty() => 0,
            None => return None,
        };
        return Some((
            IpAddr::V6(ip.parse::<Ipv6Addr>().ok()?).to_canonical(),
            port,
        ));
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some((ip.to_canonical(), 0));
    }
    let (ip, port) = text.split_once(':')?;
    Some((ip.parse().ok().map(IpAddr::V4)?, parse_port(port)?))
}

pub(super) fn parse_port(text: &str) -> Option<u16> {
    // `u16::from_str` would accept a sign.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Parses a scheme. A WebSocket handshake is an HTTP request, so `wss` means https.
pub(super) fn parse_scheme(text: &[u8]) -> Option<Scheme> {
    if text.eq_ignore_ascii_case(b"https") || text.eq_ignore_ascii_case(b"wss") {
        Some(Scheme::Https)
    } else if text.eq_ignore_ascii_case(b"http") || text.eq_ignore_ascii_case(b"ws") {
        Some(Scheme::Http)
    } else {
        None
    }
}
