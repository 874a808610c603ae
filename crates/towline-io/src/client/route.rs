//! Destination of a call and how to connect to it. Everything that affects trust is part of the route, so
//! the route is the key of the pool.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::tls::ClientTls;

/// Calls with equal routes may share connections. Created once per origin and shared as `Arc<Route>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// TLS to the origin (`https`).
    pub secure: bool,
    /// An A-label or an IP literal without brackets, in lower case.
    pub host: Box<str>,
    pub port: u16,
    /// Unix socket to connect to instead; the certificate must still name `host`. No proxy is used.
    pub uds: Option<PathBuf>,
    pub proxy: Option<Arc<Proxy>>,
    /// Required if `secure`, and for an https proxy without its own.
    pub tls: Option<Arc<ClientTls>>,
    /// The address to connect from.
    pub local_address: Option<IpAddr>,
    /// Server name for SNI and certificate verification instead of `host`.
    pub sni: Option<Box<str>>,
    /// HTTP/2 is not offered: the server has required HTTP/1.1 for a request.
    pub http1_only: bool,
    /// For `WebSockets` only: uses a tunnel through an HTTP proxy (RFC 6455 4.1).
    pub websocket: bool,
    /// Where the origin is reached over HTTP/3. `None`: TCP only.
    pub alternative: Option<Box<Alternative>>,
}

/// A service of the origin that speaks HTTP/3 (RFC 7838). The certificate must still name the origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alternative {
    /// As in [`Route::host`].
    pub host: Box<str>,
    pub port: u16,
    /// TCP does not replace QUIC when QUIC fails or is slow.
    pub is_only: bool,
    /// Number of the times for which it was not tried, after a failure, and that are over. Connections that TCP has won
    /// before carry no further calls, so that QUIC is tried again.
    pub generation: u32,
    /// Value of the header `Alt-Used` of requests over it (RFC 7838 5). `None`: it is the origin itself, known in advance.
    pub alt_used: Option<Box<str>>,
}

impl Route {
    /// A direct route without TLS.
    pub fn plain(host: &str, port: u16) -> Self {
        Self {
            secure: false,
            host: host.into(),
            port,
            uds: None,
            proxy: None,
            tls: None,
            local_address: None,
            sni: None,
            http1_only: false,
            websocket: false,
            alternative: None,
        }
    }

    /// Returns the same route over HTTP/1.1 only, for a request that the server requires it for
    /// (`HTTP_1_1_REQUIRED`, RFC 9113 7).
    #[must_use]
    pub fn over_http1(&self) -> Self {
        Self {
            http1_only: true,
            alternative: None,
            ..self.clone()
        }
    }

    /// Returns the same route over TCP.
    #[must_use]
    pub fn over_tcp(&self) -> Self {
        Self {
            alternative: None,
            ..self.clone()
        }
    }

    /// A direct route with TLS.
    pub fn secure(host: &str, port: u16, tls: Arc<ClientTls>) -> Self {
        Self {
            secure: true,
            tls: Some(tls),
            ..Self::plain(host, port)
        }
    }

    /// Returns the same route for `WebSockets` only, over HTTP/1.1.
    pub fn for_websocket(&self) -> Arc<Self> {
        Arc::new(Self {
            http1_only: true,
            websocket: true,
            alternative: None,
            ..self.clone()
        })
    }

    /// Returns the proxy that connections of this route use.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_deref().filter(|_| self.uds.is_none())
    }

    /// Whether its origin may be called over HTTP/3. Proxies would need MASQUE (RFC 9298), and TLS in QUIC that of this
    /// crate.
    pub fn may_use_http3(&self) -> bool {
        self.no_http3_reason().is_none()
    }

    /// The reason why its origin cannot be called over HTTP/3, for the user.
    pub(super) fn no_http3_reason(&self) -> Option<&'static str> {
        if !self.secure {
            return Some("http:// has no HTTP/3 (RFC 9114 3.1)");
        }
        if self.uds.is_some() {
            return Some("a Unix socket has no HTTP/3");
        }
        if self.proxy.is_some() {
            return Some("proxies are used over TCP only, not for HTTP/3 (MASQUE, RFC 9298)");
        }
        if self.http1_only {
            return Some("this request needs HTTP/1.1");
        }
        let supports_quic = self.tls.as_ref().is_some_and(|tls| tls.supports_quic());
        (!supports_quic)
            .then_some("an ssl.SSLContext cannot be used for HTTP/3; pass TLS(...) as verify=")
    }

    /// The value of `Alt-Used` for requests over its alternative (RFC 7838 5).
    pub(super) fn alt_used(&self) -> Option<&str> {
        self.alternative.as_deref()?.alt_used.as_deref()
    }

    /// Whether requests use the absolute form of the target, since they go to an HTTP proxy (RFC 9112 3.2.2). They
    /// then also carry the proxy's `authorization` and `headers`.
    pub fn absolute_form(&self) -> bool {
        let forwards = !self.secure && !self.websocket;
        forwards && self.proxy().is_some_and(|proxy| !proxy.scheme.is_socks())
    }

    /// Returns the name that the origin's certificate must match.
    pub fn server_name(&self) -> &str {
        self.sni.as_deref().unwrap_or(&self.host)
    }

    /// Returns `host:port`, with brackets around an IPv6 address (RFC 3986 3.2.2).
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }
}

pub(super) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Protocol spoken to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyScheme {
    Http,
    Https,
    /// RFC 1928; names are resolved locally.
    Socks5,
    /// RFC 1928; names are resolved by the proxy.
    Socks5h,
}

impl ProxyScheme {
    pub fn is_socks(self) -> bool {
        matches!(self, Self::Socks5 | Self::Socks5h)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Socks5 => "socks5",
            Self::Socks5h => "socks5h",
        }
    }
}

/// User and password; never printed, wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: Zeroizing<Vec<u8>>,
    password: Zeroizing<Vec<u8>>,
}

impl Credentials {
    pub fn new(user: impl Into<Vec<u8>>, password: impl Into<Vec<u8>>) -> Self {
        Self {
            user: Zeroizing::new(user.into()),
            password: Zeroizing::new(password.into()),
        }
    }

    pub(super) fn user(&self) -> &[u8] {
        &self.user
    }

    pub(super) fn password(&self) -> &[u8] {
        &self.password
    }

    /// Returns the value of `proxy-authorization` or `authorization` (RFC 7617 2).
    pub fn basic(&self) -> Vec<u8> {
        let pair = Zeroizing::new([&self.user[..], b":", &self.password[..]].concat());
        let mut value = b"Basic ".to_vec();
        base64(&pair, &mut value);
        value
    }
}

impl Hash for Credentials {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.user.as_slice().hash(state);
        self.password.as_slice().hash(state);
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// A proxy server.
#[derive(Clone)]
pub struct Proxy {
    pub scheme: ProxyScheme,
    /// As in [`Route::host`].
    pub host: Box<str>,
    pub port: u16,
    pub credentials: Option<Credentials>,
    /// Headers for the proxy only: sent in CONNECT, or added to a forwarded request.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// TLS settings for an https proxy; those of the route if `None`.
    pub tls: Option<Arc<ClientTls>>,
    /// The environment variable that names it, for messages.
    pub variable: Option<Box<str>>,
}

impl Proxy {
    pub fn new(scheme: ProxyScheme, host: &str, port: u16) -> Self {
        Self {
            scheme,
            host: host.into(),
            port,
            credentials: None,
            headers: Vec::new(),
            tls: None,
            variable: None,
        }
    }

    /// Returns the value of `proxy-authorization`, if there are credentials (RFC 9110 11.7.2).
    pub fn authorization(&self) -> Option<Vec<u8>> {
        self.credentials.as_ref().map(Credentials::basic)
    }

    /// Returns every field as one value to compare and hash.
    fn key(&self) -> impl PartialEq + Hash + '_ {
        (
            self.scheme,
            (&*self.host, self.port),
            &self.credentials,
            &self.headers,
            &self.tls,
        )
    }
}

impl PartialEq for Proxy {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Proxy {}

impl Hash for Proxy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// The URL without credentials, and the variable that it comes from.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, authority) = (self.scheme.as_str(), authority(&self.host, self.port));
        write!(f, "{scheme}://{authority}")?;
        match &self.variable {
            Some(variable) => write!(f, " ({variable})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header values may be tokens.
        f.debug_struct("Proxy")
            .field("url", &self.to_string())
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

/// Appends the base64 encoding of `bytes` (RFC 4648 4).
fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            out.push(if at <= chunk.len() {
                ALPHABET[(word >> (18 - 6 * at) & 63) as usize]
            } else {
                b'='
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            base64(plain.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), coded);
        }
        // The example of RFC 7617 2.
        let basic = Credentials::new("Aladdin", "open sesame").basic();
        assert_eq!(basic, b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    #[test]
    fn everything_that_changes_trust_changes_the_key() {
        let plain = Route::plain("a", 80);
        let tls = || Arc::new(ClientTls::default());
        let shared = tls();
        let secure = Route::secure("a", 80, Arc::clone(&shared));
        assert_eq!(secure, Route::secure("a", 80, shared));
        assert_ne!(secure, Route::secure("a", 80, tls()));
        let mut proxied = plain.clone();
        let mut proxy = Proxy::new(ProxyScheme::Http, "p", 3128);
        proxied.proxy = Some(Arc::new(proxy.clone()));
        assert_ne!(plain, proxied);
        proxy.credentials = Some(Credentials::new("u", "p"));
        let mut other = plain.clone();
        other.proxy = Some(Arc::new(proxy));
        assert_ne!(proxied, other);
        assert!(proxied.absolute_form() && !plain.absolute_form());
        let websocket = Route {
            websocket: true,
            ..proxied.clone()
        };
        assert_ne!(websocket, proxied);
        assert!(!websocket.absolute_form());
        proxied.uds = Some("/socket".into());
        assert!(!proxied.absolute_form());
    }

    #[test]
    fn secrets_are_not_printed() {
        let mut proxy = Proxy::new(ProxyScheme::Socks5h, "::1", 1080);
        proxy.credentials = Some(Credentials::new("somebody", "hunter2"));
        proxy
            .headers
            .push((b"x-token".to_vec(), b"hunter2".to_vec()));
        let text = format!("{proxy:?}");
        assert!(text.contains("socks5h://[::1]:1080"), "{text}");
        assert!(
            !text.contains("hunter2") && !text.contains("somebody"),
            "{text}"
        );
    }
}
