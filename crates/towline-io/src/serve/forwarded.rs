//! Address of the client behind trusted proxies.
//!
//! The headers of a proxy count only if the connection comes from an address that the operator has
//! configured (`--forwarded-allow-ips`). The chain of addresses is then walked from the nearest hop: the
//! client is the right-most address that is *not* a trusted proxy, because everything left of it may be
//! forged. Only `X-Forwarded-For` and `X-Forwarded-Proto` are used, as in Uvicorn; `X-Forwarded-Host` never
//! replaces Host, since most proxies pass the client's own header through. For the same reason `Forwarded`
//! (RFC 7239) is not read: a proxy that writes one kind of header passes the client's other kind through.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

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

/// Reads the headers of one request on a connection from `peer`, without allocation.
pub fn resolve<'a>(
    trusted: &TrustedPeers,
    peer: PeerIp,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Origin {
    if !trusted.trusts(peer) {
        return Origin::default();
    }
    let mut chain = Chain::new(trusted);
    let mut schemes = Schemes::None;
    for (name, value) in fields {
        if name.eq_ignore_ascii_case(b"x-forwarded-for") {
            // Several headers are one list (RFC 9110 5.3).
            for entry in value.split(|&byte| byte == b',') {
                chain.push(parse_node(entry.trim_ascii()));
            }
        } else if name.eq_ignore_ascii_case(b"x-forwarded-proto") {
            for entry in value.split(|&byte| byte == b',') {
                schemes = schemes.and(parse_scheme(entry.trim_ascii()));
            }
        }
    }
    Origin {
        client: chain.client,
        scheme: schemes.agreed(),
    }
}

/// `X-Forwarded-Proto` has no reference to its hop, so a list counts only if all entries agree.
#[derive(Clone, Copy)]
enum Schemes {
    None,
    All(Scheme),
    Unclear,
}

impl Schemes {
    fn and(self, next: Option<Scheme>) -> Self {
        match (self, next) {
            (Self::None, Some(scheme)) => Self::All(scheme),
            (Self::All(before), Some(scheme)) if before == scheme => self,
            _ => Self::Unclear,
        }
    }

    fn agreed(self) -> Option<Scheme> {
        match self {
            Self::All(scheme) => Some(scheme),
            _ => None,
        }
    }
}

/// Selects the right-most untrusted hop while reading from the left, or the left-most if all are trusted.
/// An entry that is not an address invalidates everything left of it.
struct Chain<'a> {
    trusted: &'a TrustedPeers,
    client: Option<(IpAddr, u16)>,
}

impl<'a> Chain<'a> {
    fn new(trusted: &'a TrustedPeers) -> Self {
        Self {
            trusted,
            client: None,
        }
    }

    fn push(&mut self, node: Option<(IpAddr, u16)>) {
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
fn parse_node(text: &[u8]) -> Option<(IpAddr, u16)> {
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

fn parse_port(text: &str) -> Option<u16> {
    // `u16::from_str` would accept a sign.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Parses a scheme. A WebSocket handshake is an HTTP request, so `wss` means https.
fn parse_scheme(text: &[u8]) -> Option<Scheme> {
    if text.eq_ignore_ascii_case(b"https") || text.eq_ignore_ascii_case(b"wss") {
        Some(Scheme::Https)
    } else if text.eq_ignore_ascii_case(b"http") || text.eq_ignore_ascii_case(b"ws") {
        Some(Scheme::Http)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXY: PeerIp = PeerIp::Ip(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn origin(trusted: &str, fields: &[(&str, &str)]) -> (Option<String>, Option<Scheme>) {
        let trusted = TrustedPeers::parse(trusted).unwrap();
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let origin = resolve(&trusted, PROXY, fields);
        (
            origin.client.map(|(ip, port)| format!("{ip} {port}")),
            origin.scheme,
        )
    }

    fn for_x(trusted: &str, value: &str) -> Option<String> {
        origin(trusted, &[("X-Forwarded-For", value)]).0
    }

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

    #[test]
    fn an_untrusted_peer_is_not_believed() {
        let fields = [
            ("x-forwarded-for", "9.9.9.9"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(origin("10.0.0.1", &fields), (None, None));
        assert_eq!(origin("", &fields), (None, None));
    }

    #[test]
    fn the_right_most_untrusted_address_is_the_client() {
        assert_eq!(for_x("127.0.0.1", "6.6.6.6, 9.9.9.9").unwrap(), "9.9.9.9 0");
        assert_eq!(
            for_x("127.0.0.1,10.0.0.0/8", "6.6.6.6, 9.9.9.9, 10.1.1.1").unwrap(),
            "9.9.9.9 0"
        );
        assert_eq!(
            for_x("127.0.0.1,10.0.0.0/8", "10.0.0.1,10.0.0.2").unwrap(),
            "10.0.0.1 0"
        );
        assert_eq!(for_x("*", "6.6.6.6, 9.9.9.9").unwrap(), "6.6.6.6 0");
        let two = [
            ("X-FORWARDED-FOR", "6.6.6.6"),
            ("x-forwarded-for", "9.9.9.9"),
        ];
        assert_eq!(origin("127.0.0.1", &two).0.unwrap(), "9.9.9.9 0");
    }

    #[test]
    fn forms_of_addresses() {
        assert_eq!(for_x("127.0.0.1", "9.9.9.9:1234").unwrap(), "9.9.9.9 1234");
        assert_eq!(
            for_x("127.0.0.1", "[2001:db8::1]:80").unwrap(),
            "2001:db8::1 80"
        );
        assert_eq!(
            for_x("127.0.0.1", "[2001:db8::1]").unwrap(),
            "2001:db8::1 0"
        );
        assert_eq!(for_x("127.0.0.1", "2001:db8::1").unwrap(), "2001:db8::1 0");
        assert_eq!(for_x("127.0.0.1", "::ffff:9.9.9.9").unwrap(), "9.9.9.9 0");
    }

    #[test]
    fn a_malformed_entry_hides_what_stands_left_of_it() {
        for bad in [
            "unknown",
            "",
            "1.2.3",
            "a.b",
            "[::1",
            "[::1]x",
            "1.1.1.1:+5",
            "1.1.1.1:70000",
            "\u{e9}",
        ] {
            assert_eq!(
                for_x("127.0.0.1", &format!("6.6.6.6, {bad}")),
                None,
                "{bad:?}"
            );
            assert_eq!(
                for_x("127.0.0.1,10.0.0.1", &format!("6.6.6.6,{bad},10.0.0.1")).unwrap(),
                "10.0.0.1 0"
            );
            assert_eq!(
                for_x("127.0.0.1", &format!("{bad}, 9.9.9.9")).unwrap(),
                "9.9.9.9 0"
            );
        }
    }

    #[test]
    fn schemes() {
        let scheme = |values: &[&str]| {
            let fields: Vec<_> = values
                .iter()
                .map(|value| ("X-Forwarded-Proto", *value))
                .collect();
            origin("127.0.0.1", &fields).1
        };
        assert_eq!(scheme(&["https"]), Some(Scheme::Https));
        assert_eq!(scheme(&["HTTP "]), Some(Scheme::Http));
        assert_eq!(scheme(&["wss"]), Some(Scheme::Https));
        assert_eq!(scheme(&["https, https"]), Some(Scheme::Https));
        for unclear in [
            &["https, http"][..],
            &["http", "https"],
            &["ftp"],
            &[""],
            &["https,"],
            &[],
        ] {
            assert_eq!(scheme(unclear), None, "{unclear:?}");
        }
    }

    #[test]
    fn forwarded_is_not_read() {
        let both = [
            ("Forwarded", "for=6.6.6.6;proto=https"),
            ("X-Forwarded-For", "9.9.9.9"),
        ];
        assert_eq!(origin("127.0.0.1", &both), (Some("9.9.9.9 0".into()), None));
    }
}
