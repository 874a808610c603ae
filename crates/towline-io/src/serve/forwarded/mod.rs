//! Address of the client behind trusted proxies.
//!
//! The headers of a proxy count only if the connection comes from an address that the operator has
//! configured (`--forwarded-allow-ips`). The chain of addresses is then walked from the nearest hop: the
//! client is the right-most address that is *not* a trusted proxy, because everything left of it may be
//! forged. `--forwarded-headers` selects the headers: `X-Forwarded-For` and `X-Forwarded-Proto`, as in Uvicorn, or
//! `Forwarded` (RFC 7239), never both, since a proxy that writes one kind passes the client's other kind through. For
//! the same reason `X-Forwarded-Host`, `-Port` and `-Prefix` are read only if they are named ([`public_url`]).

mod hops;
mod public_url;
mod rfc7239;
mod trust;

use hops::{Chain, parse_node, parse_scheme};
pub use hops::{Origin, Scheme};
pub use public_url::{Authority, authority, prefix};
pub use trust::{ForwardedHeaders, Kind, PeerIp, TrustedPeers, TrustedPeersError};

/// Reads the headers of one request on a connection from `peer`, without allocation.
pub fn resolve<'a>(
    trusted: &TrustedPeers,
    kind: Kind,
    peer: PeerIp,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Origin {
    if !trusted.trusts(peer) {
        return Origin::default();
    }
    match kind {
        Kind::XForwarded => x_forwarded(trusted, fields),
        Kind::Rfc7239 => rfc7239::read(trusted, fields).origin(),
    }
}

fn x_forwarded<'a>(
    trusted: &TrustedPeers,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Origin {
    let mut chain = Chain::new(trusted);
    let mut schemes = Schemes::None;
    for (name, value) in fields {
        // One comparison for most headers.
        if name.len() < b"x-forwarded-for".len() {
            continue;
        }
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const PROXY: PeerIp = PeerIp::Ip(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn origin(trusted: &str, fields: &[(&str, &str)]) -> (Option<String>, Option<Scheme>) {
        let trusted = TrustedPeers::parse(trusted).unwrap();
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let origin = resolve(&trusted, Kind::XForwarded, PROXY, fields);
        (
            origin.client.map(|(ip, port)| format!("{ip} {port}")),
            origin.scheme,
        )
    }

    fn for_x(trusted: &str, value: &str) -> Option<String> {
        origin(trusted, &[("X-Forwarded-For", value)]).0
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
