//! Configuration of all dials of a client.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::ProtocolPolicy;

use super::Resolver;
use crate::client::alt_svc::Http3;
use crate::client::request::{CallError, CallErrorKind, CallPhase, OutgoingRequest};
use crate::client::route::Route;
use crate::quic::{ALPN_H3, QuicLimits};
use crate::tls::ALPN_H2;

/// Settings of all dials of a client; shared behind an [`Arc`].
#[derive(Clone, Debug)]
pub struct DialConfig {
    /// Limit from the lookup to the end of the TLS handshake. [`Dial::set_deadline`] overrides it.
    ///
    /// [`Dial::set_deadline`]: super::Dial::set_deadline
    pub connect_timeout: Option<Duration>,
    /// Time after which the next address is tried too, while the earlier attempts go on (RFC 8305 5).
    pub happy_eyeballs_delay: Duration,
    pub tcp_keepalive: Option<Keepalive>,
    pub overrides: HostOverrides,
    pub resolver: Arc<Resolver>,
    /// Protocols offered to the origin in the TLS handshake, the preferred one first.
    pub alpn: Vec<Vec<u8>>,
    /// Protocols allowed with the origin; HTTP/1 by default. [`with_protocols`](Self::with_protocols) sets it.
    pub protocols: ProtocolPolicy,
    /// The origins that are called over HTTP/3. `None`: none.
    pub http3: Option<Arc<Http3>>,
    /// Limits of QUIC connections.
    pub quic: QuicLimits,
}

impl Default for DialConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Some(Duration::from_secs(5)),
            happy_eyeballs_delay: Duration::from_millis(250),
            tcp_keepalive: Some(Keepalive::default()),
            overrides: HostOverrides::default(),
            resolver: Resolver::shared(),
            alpn: vec![ALPN_H1.to_vec()],
            protocols: ProtocolPolicy::default(),
            http3: None,
            quic: QuicLimits::client(),
        }
    }
}

const ALPN_H1: &[u8] = b"http/1.1";

/// Concurrent calls expected of an HTTP/2 connection until its server announces a limit:
/// the minimum that RFC 9113 6.5.2 recommends.
const EXPECTED_H2_CAPACITY: u32 = 100;

impl DialConfig {
    /// Concurrent calls that the first connection of the route is expected to carry.
    pub(crate) fn expected_capacity(&self, route: &Route) -> u32 {
        if self.may_share(route) {
            EXPECTED_H2_CAPACITY
        } else {
            1
        }
    }

    /// Whether a connection of the route may turn out to be HTTP/2.
    pub(crate) fn may_share(&self, route: &Route) -> bool {
        match self.protocols {
            _ if route.http1_only => false,
            _ if route.alternative.is_some() => true,
            ProtocolPolicy::Http1 => false,
            ProtocolPolicy::Http2 | ProtocolPolicy::Http3 => true,
            ProtocolPolicy::Either => route.secure,
        }
    }

    /// Protocols offered by ALPN to the origin of the route.
    pub(super) fn alpn(&self, route: &Route) -> &[Vec<u8>] {
        let h1 = self.alpn.iter().position(|name| name != ALPN_H2);
        let from = h1.filter(|_| route.http1_only).unwrap_or(0);
        &self.alpn[from..]
    }

    /// Fails if no allowed protocol version can be used for the request.
    pub(crate) fn check_protocols(&self, request: &OutgoingRequest) -> Result<(), Box<CallError>> {
        let route = &request.route;
        let reason = match self.protocols {
            ProtocolPolicy::Http3 => match route.no_http3_reason() {
                Some(reason) => format!("{reason}, and the other versions are switched off"),
                None => return Ok(()),
            },
            ProtocolPolicy::Http2 if route.absolute_form() => {
                "http:// through an HTTP proxy requires HTTP/1.1 (RFC 9112 3.2.2), which is switched off".into()
            }
            _ => return Ok(()),
        };
        let (kind, phase) = (CallErrorKind::LocalProtocol, CallPhase::Pool);
        Err(Box::new(CallError::new(kind, phase, reason)))
    }

    /// Adds the alternative to the route of a request whose origin is called over HTTP/3.
    pub(crate) fn choose_transport(&self, request: &mut OutgoingRequest, now: Instant) {
        if let Some(http3) = &self.http3
            && let Some(route) = http3.alternative(&request.route, now)
        {
            request.route = route;
        }
    }

    /// Writes the file of advertised alternatives, if there is one and it has changed. A failure only costs time later.
    pub(crate) fn save_alternatives(&self) {
        if let Some(http3) = &self.http3 {
            let _ = http3.save();
        }
    }

    /// Sets the allowed protocols, offered by ALPN (RFC 7301): under TLS the server chooses; without TLS, HTTP/2 is
    /// used only if nothing else is allowed (RFC 9113 3.3).
    #[must_use]
    pub fn with_protocols(mut self, protocols: ProtocolPolicy) -> Self {
        let (h1, h2) = (ALPN_H1.to_vec(), ALPN_H2.to_vec());
        self.protocols = protocols;
        self.alpn = match protocols {
            ProtocolPolicy::Http1 => vec![h1],
            ProtocolPolicy::Http2 => vec![h2],
            ProtocolPolicy::Either => vec![h2, h1],
            // RFC 9114 3.1.
            ProtocolPolicy::Http3 => vec![ALPN_H3.to_vec()],
        };
        self
    }
}

/// TCP keepalive probes of an idle connection (RFC 9293 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    pub idle: Duration,
    pub interval: Duration,
    pub count: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(30),
            count: 5,
        }
    }
}

/// Addresses used instead of a lookup, by host, or by host and port.
#[derive(Clone, Debug, Default)]
pub struct HostOverrides(HashMap<Key, Vec<AddressPair>>);

/// A host, and the port if the entry is for that port only.
type Key = (Box<str>, Option<u16>);

/// An address, and its port if it differs from the requested one.
type AddressPair = (IpAddr, Option<u16>);

impl HostOverrides {
    /// Adds an entry. `key` is `host` or `host:port`; an address is `192.0.2.1` or `2001:db8::1`, or has a port of
    /// its own: `127.0.0.1:8080`, `[::1]:8080`. `Err` is a message for the user.
    pub fn add<'a>(
        &mut self,
        key: &str,
        addrs: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), String> {
        let (host, port) =
            split_port(key).ok_or_else(|| format!("{key:?} is not HOST or HOST:PORT"))?;
        let addrs: Vec<_> = addrs
            .into_iter()
            .map(|addr| parse_addr(addr).ok_or_else(|| format!("{addr:?} is not an IP address")))
            .collect::<Result<_, _>>()?;
        if addrs.is_empty() {
            return Err(format!("no address for {key:?}"));
        }
        self.0
            .insert((host.to_ascii_lowercase().into(), port), addrs);
        Ok(())
    }

    /// Returns the addresses for a host and port. An entry with that port precedes one without.
    pub(super) fn find(&self, host: &str, port: u16) -> Option<Vec<SocketAddr>> {
        if self.0.is_empty() {
            return None;
        }
        let exact = self.0.get(&(host.into(), Some(port)));
        let addrs = exact.or_else(|| self.0.get(&(host.into(), None)))?;
        let at = |&(ip, own): &AddressPair| SocketAddr::new(ip, own.unwrap_or(port));
        Some(addrs.iter().map(at).collect())
    }
}

/// Splits `host`, `host:port`, `[v6]:port` or a bare IPv6 address.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    if text.parse::<IpAddr>().is_ok() {
        return Some((text, None));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port_number(port)?)),
        None => (text, None),
    };
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    (!host.is_empty()).then_some((host, port))
}

fn parse_addr(text: &str) -> Option<AddressPair> {
    let (host, port) = split_port(text)?;
    Some((host.parse().ok()?, port))
}

fn port_number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_with_a_port_precedes_one_without() {
        let mut overrides = HostOverrides::default();
        overrides
            .add("Example.com", ["192.0.2.1", "2001:db8::1"])
            .unwrap();
        overrides
            .add("example.com:8443", ["127.0.0.1:9000", "[::1]:9001"])
            .unwrap();
        overrides.add("2001:db8::2", ["::1"]).unwrap();
        let find = |host, port| {
            let found = overrides.find(host, port)?;
            Some(
                found
                    .iter()
                    .map(SocketAddr::to_string)
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        assert_eq!(
            find("example.com", 80).unwrap(),
            "192.0.2.1:80 [2001:db8::1]:80"
        );
        assert_eq!(
            find("example.com", 8443).unwrap(),
            "127.0.0.1:9000 [::1]:9001"
        );
        assert_eq!(find("2001:db8::2", 80).unwrap(), "[::1]:80");
        assert_eq!(find("example.org", 80), None);
    }

    #[test]
    fn an_invalid_override_is_refused() {
        let mut overrides = HostOverrides::default();
        for (key, addr, message) in [
            ("a:+5", "127.0.0.1", "\"a:+5\" is not HOST or HOST:PORT"),
            (":80", "127.0.0.1", "\":80\" is not HOST or HOST:PORT"),
            ("a", "localhost", "\"localhost\" is not an IP address"),
        ] {
            assert_eq!(overrides.add(key, [addr]).unwrap_err(), message);
        }
        assert_eq!(overrides.add("a", []).unwrap_err(), "no address for \"a\"");
    }
}
