//! Host, port and prefix of a request's URL, as trusted proxies have received it.
//!
//! The value that the nearest proxy has written is the last one of a list; those before it may be the client's. An
//! invalid value is ignored, and so are those before it.

use towline_proto::is_host;

use super::hops::parse_port;
use super::rfc7239;
use super::trust::{ForwardedHeaders, Kind, TrustedPeers};

/// The host and port that the client has called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The value of Host: without the port if that is the scheme's default.
    pub host: String,
    /// The name or address alone, without brackets.
    pub name: String,
    pub port: u16,
}

/// Host and port of a request from a trusted proxy; `None`: it has named neither.
pub fn authority<'a>(
    headers: ForwardedHeaders,
    trusted: &TrustedPeers,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    is_https: bool,
) -> Option<Authority> {
    let (mut host, mut port, mut received) = (None, None, None);
    if headers.host && headers.kind == Kind::Rfc7239 {
        host = rfc7239::read(trusted, fields.clone()).host;
    }
    let reads_x = headers.kind == Kind::XForwarded;
    for (name, value) in fields {
        if name.eq_ignore_ascii_case(b"host") {
            received = Some(value);
        } else if reads_x && headers.host && name.eq_ignore_ascii_case(b"x-forwarded-host") {
            host = Some(last(value));
        } else if reads_x && headers.port && name.eq_ignore_ascii_case(b"x-forwarded-port") {
            port = std::str::from_utf8(last(value)).ok().and_then(parse_port);
        }
    }
    let host = host.filter(|host| is_host(host));
    let port = port.filter(|&port| port != 0);
    if host.is_none() && port.is_none() {
        return None;
    }
    let host = host.or(received.filter(|host| is_host(host)))?;
    let host = std::str::from_utf8(host).ok()?;
    // The last colon separates the port, unless it stands within brackets.
    let (name, own_port) = match host.rsplit_once(':') {
        Some((name, own_port)) if !own_port.ends_with(']') => (name, parse_port(own_port)),
        _ => (host, None),
    };
    let default_port = if is_https { 443 } else { 80 };
    let port = port.or(own_port).unwrap_or(default_port);
    Some(Authority {
        host: if port == default_port {
            name.to_owned()
        } else {
            format!("{name}:{port}")
        },
        name: name.trim_matches(['[', ']']).to_owned(),
        port,
    })
}

/// The path under which a trusted proxy serves the application, without a slash at its end.
pub fn prefix<'a>(
    headers: ForwardedHeaders,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Option<String> {
    if !headers.prefix || headers.kind != Kind::XForwarded {
        return None;
    }
    let fields = fields.into_iter();
    let prefixes = fields.filter(|(name, _)| name.eq_ignore_ascii_case(b"x-forwarded-prefix"));
    let path = std::str::from_utf8(last(prefixes.last()?.1)).ok()?;
    // A path that begins with two slashes would be a host in a redirect.
    let is_path = path.starts_with('/') && !path.contains("//") && path.bytes().all(is_path_byte);
    is_path.then(|| path.trim_end_matches('/').to_owned())
}

/// `unreserved`, `sub-delims`, `:`, `@` and `/` (RFC 3986 3.3). Escapes are refused: `root_path` and `SCRIPT_NAME` are
/// decoded, and the raw path is not.
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=:@/".contains(&byte)
}

fn last(list: &[u8]) -> &[u8] {
    let mut values = list.rsplit(|&byte| byte == b',');
    values.next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ForwardedHeaders = ForwardedHeaders {
        kind: Kind::XForwarded,
        host: true,
        port: true,
        prefix: true,
    };

    fn pairs<'a>(
        fields: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        let fields = fields.iter();
        fields.map(|(name, value)| (name.as_bytes(), value.as_bytes()))
    }

    fn read(
        headers: ForwardedHeaders,
        fields: &[(&str, &str)],
        is_https: bool,
    ) -> Option<Authority> {
        let trusted = TrustedPeers::parse("127.0.0.1").unwrap();
        let host = [("Host", "inner:8000")];
        let fields = pairs(&host).chain(pairs(fields));
        authority(headers, &trusted, fields, is_https)
    }

    fn host_of(fields: &[(&str, &str)]) -> Option<(String, u16)> {
        read(ALL, fields, true).map(|authority| (authority.host, authority.port))
    }

    #[test]
    fn hosts_and_ports() {
        let expect = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(
            host_of(&[("X-Forwarded-Host", "a.example")]),
            expect("a.example", 443)
        );
        assert_eq!(
            host_of(&[("X-Forwarded-Host", "a:8443")]),
            expect("a:8443", 8443)
        );
        assert_eq!(host_of(&[("X-Forwarded-Host", "a:443")]), expect("a", 443));
        assert_eq!(
            host_of(&[("X-Forwarded-Port", "8443")]),
            expect("inner:8443", 8443)
        );
        assert_eq!(
            host_of(&[("X-Forwarded-Port", "443")]),
            expect("inner", 443)
        );
        let both = [("x-forwarded-host", "a:1"), ("x-forwarded-port", "2")];
        assert_eq!(host_of(&both), expect("a:2", 2));
        let v6 = read(ALL, &[("X-Forwarded-Host", "[2001:db8::1]")], false).unwrap();
        assert_eq!(
            (v6.host, v6.name, v6.port),
            ("[2001:db8::1]".into(), "2001:db8::1".into(), 80)
        );
        let v6 = read(ALL, &[("X-Forwarded-Host", "[::1]:81")], false).unwrap();
        assert_eq!(
            (v6.host, v6.name, v6.port),
            ("[::1]:81".into(), "::1".into(), 81)
        );
    }

    #[test]
    fn the_last_value_counts_alone() {
        assert_eq!(host_of(&[("X-Forwarded-Host", "evil, a")]).unwrap().0, "a");
        let lines = [("X-Forwarded-Host", "evil"), ("X-Forwarded-Host", "a")];
        assert_eq!(host_of(&lines).unwrap().0, "a");
        for bad in [
            "",
            "a b",
            "a/b",
            "evil@a",
            "a:70000",
            "a\rb",
            "http://a",
            "evil,",
            "evil, a/b",
        ] {
            assert_eq!(host_of(&[("X-Forwarded-Host", bad)]), None, "{bad:?}");
        }
        for bad in ["", "0", "70000", "+80", "80x", "-1", "8443,"] {
            assert_eq!(host_of(&[("X-Forwarded-Port", bad)]), None, "{bad:?}");
        }
    }

    #[test]
    fn only_what_is_named_is_read() {
        let fields = [
            ("X-Forwarded-Host", "x"),
            ("X-Forwarded-Port", "1"),
            ("X-Forwarded-Prefix", "/x"),
            ("Forwarded", "for=9.9.9.9;host=f"),
        ];
        let none = ForwardedHeaders::default();
        assert_eq!(read(none, &fields, false), None);
        assert_eq!(prefix(none, pairs(&fields)), None);
        let host = ForwardedHeaders { host: true, ..none };
        assert_eq!(read(host, &fields, false).unwrap().host, "x");
        let rfc = ForwardedHeaders {
            kind: Kind::Rfc7239,
            ..host
        };
        assert_eq!(read(rfc, &fields, false).unwrap().host, "f");
        let rfc = ForwardedHeaders {
            kind: Kind::Rfc7239,
            ..none
        };
        assert_eq!(read(rfc, &fields, false), None);
        assert_eq!(
            prefix(
                ForwardedHeaders {
                    kind: Kind::Rfc7239,
                    ..ALL
                },
                pairs(&fields)
            ),
            None
        );
    }

    #[test]
    fn prefixes() {
        let prefix = |value: &str| super::prefix(ALL, pairs(&[("X-Forwarded-Prefix", value)]));
        assert_eq!(prefix("/api").unwrap(), "/api");
        assert_eq!(prefix("/api/v1/").unwrap(), "/api/v1");
        assert_eq!(prefix("/").unwrap(), "");
        assert_eq!(prefix("/evil, /api").unwrap(), "/api");
        for bad in [
            "",
            "api",
            "//evil.example",
            "/a//b",
            "/a?b",
            "/a#b",
            "/a b",
            "/%2f",
            "/\\a",
            "/a,",
        ] {
            assert_eq!(prefix(bad), None, "{bad:?}");
        }
    }
}
