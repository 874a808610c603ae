//! The requests to send, and the responses to expect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use towline_proto::ws::Kind;

use crate::capture::Capture;
use crate::error::LoadError;
use crate::hosts::serialized;

/// Default size of a WebSocket message: that of the catalogue.
pub(crate) const MESSAGE_BYTES: usize = 1024;

/// One kind of request or message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// In reports, if the URL does not say enough.
    pub name: Option<Box<str>>,
    pub secure: bool,
    /// Without the brackets of an IPv6 literal.
    pub host: Box<str>,
    pub port: u16,
    pub method: Box<str>,
    /// Path and query as sent.
    pub path: Box<str>,
    /// In the order they are sent. Host is added in front unless it is given.
    pub fields: Vec<(Box<str>, Box<[u8]>)>,
    /// `None`: no body and, except for POST, PUT and PATCH, no Content-Length. For a WebSocket: the
    /// message.
    #[serde(with = "serialized::bytes")]
    pub body: Option<Bytes>,
    /// Sends the body in chunks of this size (RFC 9112 7.1), without Content-Length.
    pub chunk_bytes: Option<u64>,
    pub expect: Expect,
    /// Relative frequency in a random mix; ignored if targets are used in turn.
    pub weight: u32,
    pub send_mode: SendMode,
    /// `None`: requests. Otherwise each connection becomes a WebSocket (RFC 6455), and the load is its
    /// messages, which must be echoed unless something else is expected.
    pub messages: Option<Messages>,
}

/// The messages of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    #[serde(with = "serialized::KindDef")]
    pub kind: Kind,
    /// Offers permessage-deflate (RFC 7692); a server that declines is an error.
    pub deflate: bool,
}

/// The destination of a connection: `WebSockets` need one per resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Destination<'a> {
    pub(crate) origin: (bool, &'a str, u16),
    resource: Option<Resource<'a>>,
}

/// Path and headers of the handshake, and whether it offers compression.
type Resource<'a> = (&'a str, &'a [(Box<str>, Box<[u8]>)], bool);

/// The way a request is sent. Latency counts from the intended start in all modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SendMode {
    /// At once.
    #[default]
    Whole,
    /// In this number of pieces of about the same size, head and body together, with a pause before each
    /// but the first: a slow client.
    Pieces { pieces: u32, gap: Duration },
    /// The head with `Expect: 100-continue`, the body after 100 Continue. A final response in its place
    /// counts as the response, and the connection is not reused (RFC 9110 10.1.1).
    AwaitContinue,
    /// The head and this many bytes of the body, then a close; then the same request, whole, on a new
    /// connection, whose response is checked. Both together are one operation.
    DropAfterBytes(u64),
}

/// Names and values.
pub(crate) type WholeFields = Vec<(Arc<[u8]>, Arc<[u8]>)>;

/// The expected response, in addition to the rules that the parser verifies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expect {
    /// `None`: 2xx and 3xx are successes.
    pub status: Option<u16>,
    /// Bytes of the body as transferred, without chunk framing.
    pub length: Option<u64>,
    /// The body, compared as it arrives: the cheapest and strictest check.
    #[serde(with = "serialized::bytes")]
    pub body: Option<Bytes>,
    /// SHA-256 of the body, if its bytes are not available.
    pub sha256: Option<[u8; 32]>,
    /// The required Content-Encoding; `body` and `sha256` then apply to the decoded bytes.
    pub coding: Option<Coding>,
    /// Required headers with their values; names are case-insensitive.
    pub fields: Vec<(Box<str>, Box<[u8]>)>,
    /// Required trailers with their values.
    pub trailers: Vec<(Box<str>, Box<[u8]>)>,
    /// Values to take from the response; without them it has failed.
    pub captures: Vec<Capture>,
}

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Coding {
    Gzip,
    /// The zlib format (RFC 9110 8.4.1.2).
    Deflate,
}

impl Coding {
    /// The registered name.
    pub fn name(self) -> &'static str {
        ["gzip", "deflate"][self as usize]
    }
}

impl Expect {
    /// Whether the check of a response keeps something of its body.
    pub(crate) fn keeps(&self) -> bool {
        self.sha256.is_some() || self.coding.is_some() || !self.captures.is_empty()
    }
}

impl Target {
    /// A GET of `url`: `http[s]://host[:port][/path][?query]`. With `ws[s]`: a WebSocket with text
    /// messages of 1024 bytes.
    pub fn get(url: &str) -> Result<Self, LoadError> {
        let parts = Url::parse(url).map_err(|why| LoadError::Config(format!("{url}: {why}")))?;
        Ok(Self {
            name: None,
            secure: parts.secure,
            host: parts.host.into(),
            port: parts.port,
            method: "GET".into(),
            path: parts.path.into(),
            fields: Vec::new(),
            body: parts.websocket.then(|| message(MESSAGE_BYTES)),
            chunk_bytes: None,
            expect: Expect::default(),
            weight: 1,
            send_mode: SendMode::default(),
            messages: parts.websocket.then_some(Messages {
                kind: Kind::Text,
                deflate: false,
            }),
        })
    }

    pub fn url(&self) -> String {
        let scheme = match (self.messages, self.secure) {
            (None, false) => "http",
            (None, true) => "https",
            (Some(_), false) => "ws",
            (Some(_), true) => "wss",
        };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }

    /// The value of Host, without the default port of the scheme (RFC 9110 4.2).
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

    /// The longest message that may be received.
    pub(crate) fn longest_message(&self) -> usize {
        let body = self.expect.body.as_ref().or(self.body.as_ref());
        let length = self.expect.length.unwrap_or(0);
        body.map_or(0, Bytes::len)
            .max(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// The name of the target in reports.
    pub(crate) fn title(&self) -> String {
        let Some(messages) = self.messages else {
            return format!("{} {}", self.method, self.url());
        };
        let kind = match messages.kind {
            Kind::Text => "text",
            Kind::Binary => "binary",
        };
        let bytes = self.body.as_ref().map_or(0, Bytes::len);
        let deflate = if messages.deflate { ", deflate" } else { "" };
        format!("{} ({kind}, {bytes} bytes{deflate})", self.url())
    }

    /// The name of the target among those of a load: as given, or method and path.
    pub(crate) fn step_name(&self) -> String {
        match &self.name {
            Some(name) => name.to_string(),
            None if self.messages.is_some() => self.url(),
            None => format!("{} {}", self.method, self.path),
        }
    }

    pub(crate) fn destination(&self) -> Destination<'_> {
        Destination {
            origin: self.origin(),
            resource: (self.messages)
                .map(|messages| (&*self.path, &*self.fields, messages.deflate)),
        }
    }

    /// Expects an echo of WebSocket messages, unless something else is expected.
    pub(crate) fn expect_echo(&mut self) {
        let expect = &mut self.expect;
        let says_something =
            expect.body.is_some() || expect.length.is_some() || expect.sha256.is_some();
        if self.messages.is_some() {
            expect.status = Some(101);
            if !says_something {
                expect.body = Some(self.body.clone().unwrap_or_default());
            }
        }
    }

    /// All headers, with Host and, for `AwaitContinue`, Expect, as the protocol core takes them.
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
        let has_expect = (self.fields.iter()).any(|(name, _)| name.eq_ignore_ascii_case("expect"));
        let expect = (self.send_mode == SendMode::AwaitContinue && !has_expect)
            .then(|| (Arc::from(&b"Expect"[..]), Arc::from(&b"100-continue"[..])));
        host.into_iter().chain(given).chain(expect).collect()
    }
}

/// A text of this size: letters in order, so that displaced bytes are detected.
pub(crate) fn message(bytes: usize) -> Bytes {
    (b'a'..=b'z').cycle().take(bytes).collect()
}

struct Url<'a> {
    secure: bool,
    websocket: bool,
    host: &'a str,
    port: u16,
    path: String,
}

impl<'a> Url<'a> {
    fn parse(url: &'a str) -> Result<Self, &'static str> {
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("percent-encode what is not ASCII, and write host names as A-labels");
        }
        let (scheme, rest) = url
            .split_once("://")
            .ok_or("begin with http://, https://, ws:// or wss://")?;
        let (secure, websocket) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (false, false),
            "https" => (true, false),
            "ws" => (false, true),
            "wss" => (true, true),
            _ => return Err("the scheme must be http, https, ws or wss"),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err("give credentials in an Authorization header");
        }
        let (host, port) = split_port(authority)?;
        let port = match port {
            Some(digits) => port_number(digits).ok_or("invalid port")?,
            None if secure => 443,
            None => 80,
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Self {
            secure,
            websocket,
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
            ("ws://a/b", (false, "a", 80), "/b", "a"),
            ("wss://a", (true, "a", 443), "/", "a"),
        ] {
            let target = Target::get(url).unwrap();
            assert_eq!(target.messages.is_some(), url.starts_with("ws"), "{url}");
            assert_eq!(target.origin(), origin, "{url}");
            assert_eq!(&*target.path, path);
            assert_eq!(target.authority(), authority);
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
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
    fn a_websocket_expects_an_echo_by_default() {
        let mut target = Target::get("ws://a/").unwrap();
        target.expect_echo();
        assert_eq!(target.body.as_ref().unwrap().len(), MESSAGE_BYTES);
        assert_eq!(target.expect.body, target.body);
        target.expect.body = Some("pong".into());
        target.expect_echo();
        assert_eq!(target.expect.body.as_deref(), Some(&b"pong"[..]));
        let mut request = Target::get("http://a/").unwrap();
        request.expect_echo();
        assert_eq!(request.expect, Expect::default());
    }

    #[test]
    fn a_websocket_has_a_destination_of_its_own_for_each_resource() {
        let target = |url: &str| Target::get(url).unwrap();
        assert_eq!(
            target("http://a/b").destination(),
            target("http://a/c").destination()
        );
        assert_eq!(
            target("ws://a/b").destination(),
            target("ws://a/b").destination()
        );
        assert_ne!(
            target("ws://a/b").destination(),
            target("ws://a/c").destination()
        );
        assert_ne!(
            target("ws://a/b").destination(),
            target("http://a/b").destination()
        );
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
