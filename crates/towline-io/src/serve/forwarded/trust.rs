//! The proxies whose headers count, and the headers.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Remote end of a connection, for decisions on trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerIp {
    Ip(IpAddr),
    Unix,
}

/// Trusted proxies. The empty list trusts no peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedPeers {
    all: bool,
    unix: bool,
    /// Single addresses, separate from the networks: a comparison costs a tenth of a prefix match.
    addresses: Vec<IpAddr>,
    networks: Vec<IpNet>,
}

/// A list entry that is neither an address, a network, `*` nor `unix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedPeersError(pub String);

impl fmt::Display for TrustedPeersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not an address, a network such as 10.0.0.0/8, `unix` or `*`",
            self.0
        )
    }
}

impl std::error::Error for TrustedPeersError {}

impl TrustedPeers {
    /// Parses a comma-separated list: `127.0.0.1`, `10.0.0.0/8`, `::1`, `unix`, `*`.
    pub fn parse(list: &str) -> Result<Self, TrustedPeersError> {
        let mut trusted = Self::default();
        for entry in list
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            match entry {
                "*" => trusted.all = true,
                "unix" => trusted.unix = true,
                _ => match parse_network(entry)? {
                    one if one.prefix_len() == one.max_prefix_len() => {
                        trusted.addresses.push(one.addr());
                    }
                    network => trusted.networks.push(network),
                },
            }
        }
        Ok(trusted)
    }

    pub fn is_empty(&self) -> bool {
        !self.all && !self.unix && self.addresses.is_empty() && self.networks.is_empty()
    }

    #[inline]
    pub fn trusts(&self, peer_ip: PeerIp) -> bool {
        match peer_ip {
            _ if self.all => true,
            PeerIp::Unix => self.unix,
            PeerIp::Ip(ip) => {
                // A dual-stack listener reports IPv4 clients as ::ffff:a.b.c.d.
                let ip = ip.to_canonical();
                self.addresses.contains(&ip)
                    || self.networks.iter().any(|network| network.contains(&ip))
            }
        }
    }
}

fn parse_network(entry: &str) -> Result<IpNet, TrustedPeersError> {
    let network = entry.parse::<IpNet>().or_else(|_| {
        entry
            .parse::<IpAddr>()
            .map(|ip| IpNet::from(ip.to_canonical()))
    });
    network.map_err(|_| TrustedPeersError(entry.to_owned()))
}

/// Headers that the trusted proxies write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// `X-Forwarded-For`, `X-Forwarded-Proto` and so on.
    #[default]
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
}

/// The headers that are read (`--forwarded-headers`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForwardedHeaders {
    pub kind: Kind,
    /// `X-Forwarded-Host`, or `host` of `Forwarded`.
    pub host: bool,
    /// `X-Forwarded-Port`.
    pub port: bool,
    /// `X-Forwarded-Prefix`.
    pub prefix: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_trusted_peers() {
        let trusted = TrustedPeers::parse("127.0.0.1, 10.0.0.0/8,2001:db8::/32, unix").unwrap();
        let trusts = |ip: &str| trusted.trusts(PeerIp::Ip(ip.parse().unwrap()));
        assert!(trusts("127.0.0.1") && trusts("10.255.0.1") && trusts("2001:db8::9"));
        assert!(
            trusts("::ffff:10.1.2.3"),
            "an IPv4 peer of a dual-stack listener"
        );
        assert!(!trusts("11.0.0.1") && !trusts("127.0.0.2") && !trusts("::1"));
        assert!(trusted.trusts(PeerIp::Unix));
        assert!(
            !TrustedPeers::parse("127.0.0.1")
                .unwrap()
                .trusts(PeerIp::Unix)
        );
        assert!(TrustedPeers::parse("*").unwrap().trusts(PeerIp::Unix));
        assert!(TrustedPeers::parse(" ").unwrap().is_empty());
        for bad in ["localhost", "10.0.0.0/33", "1.2.3", "unix:/x"] {
            let error = TrustedPeers::parse(bad).unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }
}
