//! `Forwarded` (RFC 7239): a list of elements, one for each proxy, each with parameters.

use std::net::IpAddr;

use towline_proto::is_token_bytes;

use super::hops::{Chain, Origin, Scheme, parse_node, parse_scheme};
use super::trust::{PeerIp, TrustedPeers};

/// One element of the list. `by` and unknown parameters change nothing.
#[derive(Default)]
struct Element<'v> {
    node: Option<(IpAddr, u16)>,
    scheme: Option<Scheme>,
    host: Option<&'v [u8]>,
}

/// The address of the client, and the parameters of the element that the outermost trusted proxy has appended.
pub(super) struct Elected<'v, 't> {
    chain: Chain<'t>,
    scheme: Option<Scheme>,
    pub host: Option<&'v [u8]>,
    is_empty: bool,
}

impl<'v> Elected<'v, '_> {
    pub fn origin(&self) -> Origin {
        Origin {
            client: self.chain.client,
            scheme: self.scheme,
        }
    }

    /// Takes the next element from the left. The one before it counts only if this element names a trusted proxy,
    /// which has then appended it. An obfuscated or unknown node names none, and its own `proto` and `host` count.
    fn push(&mut self, element: &Element<'v>) {
        let trusted = self.chain.trusted;
        let mut node = element.node.iter();
        let names_proxy = node.any(|node| trusted.trusts(PeerIp::Ip(node.0)));
        if self.is_empty || !names_proxy {
            (self.scheme, self.host) = (element.scheme, element.host);
        }
        self.is_empty = false;
        self.chain.push(element.node);
    }

    /// Takes the elements of one header; `None` if it violates the grammar (section 4).
    fn push_all(&mut self, value: &'v [u8]) -> Option<()> {
        let mut rest = value;
        let mut element = Element::default();
        loop {
            rest = rest.trim_ascii_start();
            if let Some((name, text, after)) = next_pair(rest) {
                if name.eq_ignore_ascii_case(b"for") {
                    element.node = parse_node(text);
                } else if name.eq_ignore_ascii_case(b"proto") {
                    element.scheme = parse_scheme(text);
                } else if name.eq_ignore_ascii_case(b"host") {
                    element.host = Some(text);
                }
                rest = after.trim_ascii_start();
            }
            match rest.split_first() {
                Some((b';', after)) => rest = after,
                Some((b',', after)) => {
                    self.push(&std::mem::take(&mut element));
                    rest = after;
                }
                Some(_) => return None,
                None => {
                    self.push(&element);
                    return Some(());
                }
            }
        }
    }
}

/// Reads all `Forwarded` headers of a request, which are one list (RFC 9110 5.3).
pub(super) fn read<'v, 't>(
    trusted: &'t TrustedPeers,
    fields: impl IntoIterator<Item = (&'v [u8], &'v [u8])>,
) -> Elected<'v, 't> {
    let mut elected = Elected {
        chain: Chain::new(trusted),
        scheme: None,
        host: None,
        is_empty: true,
    };
    for (name, value) in fields {
        if name.eq_ignore_ascii_case(b"forwarded") && elected.push_all(value).is_none() {
            // Everything up to here may be forged.
            elected.push(&Element::default());
        }
    }
    elected
}

/// Parses `name=token` or `name="quoted"`, and returns the rest. Escapes do not occur in addresses, schemes and
/// hosts: a quoted string with one is not decoded, and no valid value.
fn next_pair(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, value) = split_token(text);
    let value = value.strip_prefix(b"=")?;
    if name.is_empty() {
        return None;
    }
    if let Some(quoted) = value.strip_prefix(b"\"") {
        let mut escaped = false;
        let end = quoted.iter().position(|&byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        return Some((name, &quoted[..end], &quoted[end + 1..]));
    }
    let (token, rest) = split_token(value);
    (!token.is_empty()).then_some((name, token, rest))
}

fn split_token(text: &[u8]) -> (&[u8], &[u8]) {
    let mut bytes = text.iter();
    let end = bytes.position(|&byte| !is_token_bytes(&[byte]));
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Read = (Option<String>, Option<Scheme>, Option<String>);

    fn forwarded(trusted: &str, values: &[&str]) -> Read {
        let trusted = TrustedPeers::parse(trusted).unwrap();
        let fields = values
            .iter()
            .map(|value| (&b"Forwarded"[..], value.as_bytes()));
        let elected = read(&trusted, fields);
        let Origin { client, scheme } = elected.origin();
        let host = elected
            .host
            .map(|host| String::from_utf8_lossy(host).into_owned());
        (
            client.map(|(ip, port)| format!("{ip} {port}")),
            scheme,
            host,
        )
    }

    #[test]
    fn elements() {
        let client = |value| forwarded("127.0.0.1,10.0.0.0/8", &[value]).0;
        assert_eq!(
            client("for=192.0.2.60;proto=http;by=203.0.113.43").unwrap(),
            "192.0.2.60 0"
        );
        assert_eq!(
            client("For=\"[2001:db8:cafe::17]:4711\"").unwrap(),
            "2001:db8:cafe::17 4711"
        );
        assert_eq!(client("for=\"192.0.2.43:80\"").unwrap(), "192.0.2.43 80");
        assert_eq!(
            client("for=6.6.6.6, for=9.9.9.9;proto=https , for=10.0.0.1").unwrap(),
            "9.9.9.9 0"
        );
        assert_eq!(
            client("for=6.6.6.6, for=_hidden, for=10.0.0.1").unwrap(),
            "10.0.0.1 0"
        );
        assert_eq!(client("for=6.6.6.6, for=unknown"), None);
        assert_eq!(client("for=6.6.6.6, for=\"9.9.9.9:_port\""), None);
        assert_eq!(
            client("for=6.6.6.6, by=1.1.1.1"),
            None,
            "an element without for hides the rest"
        );
        let two = ["for=6.6.6.6", "for=9.9.9.9"];
        assert_eq!(forwarded("127.0.0.1", &two).0.unwrap(), "9.9.9.9 0");
    }

    #[test]
    fn proto_and_host_are_those_of_the_outermost_trusted_proxy() {
        let (https, http) = (Some(Scheme::Https), Some(Scheme::Http));
        let read = |value| {
            let (_, scheme, host) = forwarded("10.0.0.0/8", &[value]);
            (scheme, host)
        };
        assert_eq!(
            read("for=6.6.6.6;host=evil;proto=http, for=9.9.9.9;host=\"a:81\";proto=https"),
            (https, Some("a:81".into()))
        );
        assert_eq!(
            read("for=9.9.9.9;host=a;proto=https, for=10.0.0.1;host=inner;proto=http"),
            (https, Some("a".into()))
        );
        assert_eq!(
            read("host=evil;proto=https, for=9.9.9.9"),
            (None, None),
            "a proxy that names neither does not vouch for those of the client"
        );
        assert_eq!(
            read("for=6.6.6.6;host=evil, for=_a;proto=https;host=a, for=10.0.0.1;proto=http"),
            (https, Some("a".into())),
            "an obfuscated client"
        );
        assert_eq!(
            read("for=6.6.6.6;host=evil, for=_proxy;proto=http"),
            (http, None),
            "an obfuscated proxy is not known to be trusted"
        );
    }

    #[test]
    fn broken_lists_are_ignored() {
        for bad in [
            "for=\"9.9.9.9",
            "for",
            "=x",
            "for=9.9.9.9 junk",
            "for=",
            "for=[::1]",
            "for=9.9.9.9;host=a b",
            "for=9.9.9.9;;\"",
            "proto=https;host=a@",
        ] {
            assert_eq!(
                forwarded("127.0.0.1", &[bad]),
                (None, None, None),
                "{bad:?}"
            );
            let after = forwarded("127.0.0.1", &[bad, "for=9.9.9.9;host=a"]);
            let expected = (Some("9.9.9.9 0".into()), None, Some("a".into()));
            assert_eq!(after, expected, "{bad:?}");
        }
        let (client, _, host) = forwarded(
            "127.0.0.1",
            &["secret=\"a,b;for=6.6.6.6\\\"\";for=9.9.9.9;host=\"a\\b\""],
        );
        assert_eq!(client.unwrap(), "9.9.9.9 0");
        assert_eq!(host.unwrap(), "a\\b", "refused as a host later");
    }

    proptest! {
        /// A header line of the client never changes the meaning of the proxy's; on one line it can only void it.
        #[test]
        fn a_client_forges_nothing(forged in "[ -~\\t]{0,40}|(for|host|by)=[\"a-z0-9.,;=\\\\]{0,30}") {
            let own = "for=\"9.9.9.9:1\";proto=https;host=a";
            let (none, all) = ((None, None, None), forwarded("127.0.0.1", &[own]));
            prop_assert_eq!(forwarded("127.0.0.1", &[&forged, own]), all.clone());
            let joined = forwarded("127.0.0.1", &[&format!("{forged}, {own}")]);
            prop_assert!(joined == all || joined == none, "{joined:?}");
        }
    }
}
