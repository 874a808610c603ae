//! What is asked, and what the answer must be.

use std::sync::Arc;

use bytes::Bytes;

use crate::config::LoadError;

/// One kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub secure: bool,
    /// Without the brackets of an IPv6 literal.
    pub host: Box<str>,
    pub port: u16,
    pub method: Box<str>,
    /// Path and query, as they go on the wire.
    pub path: Box<str>,
    /// In the order they leave. Host is added in front when it is not among them.
    pub fields: Vec<(Box<str>, Box<[u8]>)>,
    /// `None`: no body and, but for POST, PUT and PATCH, no Content-Length.
    pub body: Option<Bytes>,
    pub expect: Expect,
    /// Relative frequency in a random mix; targets in turn ignore it.
    pub weight: u32,
}

/// Names and values.
pub(crate) type WholeFields = Vec<(Arc<[u8]>, Arc<[u8]>)>;

/// What is verified of an answer, beside what the parser holds against it anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// `None`: 2xx and 3xx are successes.
    pub status: Option<u16>,
    /// Bytes of the body as transferred, without chunk framing.
    pub length: Option<u64>,
    /// Every byte, compared as it comes: the cheapest check and the strictest.
    pub body: Option<Bytes>,
    /// SHA-256 of the body, for when its bytes are not at hand.
    pub sha256: Option<[u8; 32]>,
}

impl Target {
    /// A GET of `url`: `http[s]://host[:port][/path][?query]`.
    pub fn get(url: &str) -> Result<Self, LoadError> {
        let parts = Url::parse(url).map_err(|why| LoadError::Config(format!("{url}: {why}")))?;
        Ok(Self {
            secure: parts.secure,
            host: parts.host.into(),
            port: parts.port,
            method: "GET".into(),
            path: parts.path.into(),
            fields: Vec::new(),
            body: None,
            expect: Expect::default(),
            weight: 1,
        })
    }

    pub fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }

    /// The value of Host: without the scheme's own port (RFC 9110 4.2).
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.to_string()
        };
        match (self.secure, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    pub(crate) fn origin(&self) -> (bool, &str, u16) {
        (self.secure, &self.host, self.port)
    }

    /// The fields with their Host, as the wire core takes them.
    pub(crate) fn whole_fields(&self) -> WholeFields {
        let has_host = self
            .fields
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"));
        let host = (!has_host).then(|| {
            let authority = self.authority();
            (Arc::from(&b"Host"[..]), Arc::from(authority.as_bytes()))
        });
        let given = self
            .fields
            .iter()
            .map(|(name, value)| (Arc::from(name.as_bytes()), Arc::from(&value[..])));
        host.into_iter().chain(given).collect()
    }
}

struct Url<'a> {
    secure: bool,
    host: &'a str,
    port: u16,
    path: String,
}

impl<'a> Url<'a> {
    fn parse(url: &'a str) -> Result<Self, &'static str> {
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("write what is not ASCII percent-encoded, and host names as A-labels");
        }
        let (scheme, rest) = url
            .split_once("://")
            .ok_or("begin with http:// or https://")?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err("only http and https are spoken"),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err("give credentials as an Authorization field");
        }
        let (host, port) = split_port(authority)?;
        let port = match port {
            Some(digits) => port_number(digits).ok_or("the port is not one")?,
            None if secure => 443,
            None => 80,
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Self {
            secure,
            host,
            port,
            path: format!("{slash}{path}"),
        })
    }
}

fn split_port(authority: &str) -> Result<(&str, Option<&str>), &'static str> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(literal) => literal.split_once(']').ok_or("the ] is missing")?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    match (rest, rest.strip_prefix(':')) {
        ("", _) => Ok((host, None)),
        (_, Some(port)) => Ok((host, Some(port))),
        _ => Err("the authority is not HOST or HOST:PORT"),
    }
}

fn port_number(digits: &str) -> Option<u16> {
    let strict = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    strict
        .then(|| digits.parse().ok())
        .flatten()
        .filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_becomes_origin_and_path() {
        for (url, origin, path, authority) in [
            ("http://a", (false, "a", 80), "/", "a"),
            ("https://a?x=1#y", (true, "a", 443), "/?x=1", "a"),
            ("http://a:443/b/c?d", (false, "a", 443), "/b/c?d", "a:443"),
            ("HTTP://[::1]:8/x", (false, "::1", 8), "/x", "[::1]:8"),
        ] {
            let target = Target::get(url).unwrap();
            assert_eq!(target.origin(), origin, "{url}");
            assert_eq!(&*target.path, path);
            assert_eq!(target.authority(), authority);
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for url in [
            "a",
            "ftp://a",
            "http://",
            "http://a:+5",
            "http://a:0",
            "http://a:",
            "http://a:99999",
            "http://u@a",
            "http://[::1",
            "http://[::1]x",
            "http://a/\u{e4}",
            "http://a b/",
        ] {
            assert!(Target::get(url).is_err(), "{url}");
        }
    }

    #[test]
    fn host_is_added_unless_given() {
        let mut target = Target::get("http://a:8/").unwrap();
        assert_eq!(&*target.whole_fields()[0].1, b"a:8");
        target.fields.push(("hOst".into(), b"x"[..].into()));
        assert_eq!(target.whole_fields().len(), 1);
        assert_eq!(&*target.whole_fields()[0].1, b"x");
    }
}
