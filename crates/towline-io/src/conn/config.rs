//! Configuration of the connections of one listener or one client.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use towline_proto::{Field, Limits, ProtocolPolicy};

use crate::conn::addr::PeerAddr;
use crate::serve::forwarded::{self, ForwardedHeaders, Origin, PeerIp, TrustedPeers};
use crate::serve::limits::ConnectionLimits;
use crate::serve::metrics::SlotHandle;
use crate::serve::refusals::Refusals;
use crate::tls::TlsConfig;

/// Decides whether a PROXY header is expected from an address; `None` is a peer on a Unix socket.
pub type ProxyTrust = Box<dyn Fn(Option<IpAddr>) -> bool + Send + Sync>;

/// The part of the server that an address is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Application,
    /// The metrics page and health checks only.
    Metrics,
    /// Redirects to `port`, which has TLS, apart from what the server itself responds to.
    RedirectHttps { port: u16 },
}

/// Configuration shared by the connections of one listener or one client.
#[derive(Default)]
pub struct ConnConfig {
    pub limits: Arc<Limits>,
    /// Allowed protocols; HTTP/1 by default. With `Either`, ALPN decides over TLS (its list is in `tls`), and
    /// the first bytes decide otherwise.
    pub protocols: ProtocolPolicy,
    /// TLS configuration; `None` for plain connections.
    pub tls: Option<TlsConfig>,
    /// Addresses whose connections must start with a PROXY header (version 1 or 2).
    pub proxy_protocol: Option<ProxyTrust>,
    /// Proxies whose headers on the client are used; `None` ignores these headers.
    pub trusted: Option<TrustedPeers>,
    /// The headers that they send.
    pub forwarded: ForwardedHeaders,
    /// Headers of every response that does not have them; names in lower case.
    pub fields: Vec<(&'static [u8], Vec<u8>)>,
    /// The server's certificate in PEM, for applications that ask for it.
    pub certificate_pem: Option<String>,
    pub role: Role,
    /// Counters of connections and bytes.
    pub meter: Option<SlotHandle>,
    /// Limits on the number of connections; their worker is that of `meter`.
    pub connection_limits: Option<Arc<ConnectionLimits>>,
    /// Receives the requests and connections that the protocol refuses.
    pub refusals: Option<Arc<Refusals>>,
    /// The server's end of the last connection, which the next one shares.
    pub last_local: Mutex<Arc<PeerAddr>>,
}

impl ConnConfig {
    /// Plain HTTP with `limits`.
    pub fn plain(limits: Limits) -> Self {
        Self {
            limits: Arc::new(limits),
            ..Self::default()
        }
    }

    /// Client address and scheme of a request, from the headers of trusted proxies.
    #[inline]
    pub fn origin<'a>(&self, peer: PeerIp, fields: impl IntoIterator<Item = Field<'a>>) -> Origin {
        match &self.trusted {
            Some(trusted) => {
                let fields = fields.into_iter().map(|field| (field.name, field.value));
                forwarded::resolve(trusted, self.forwarded.kind, peer, fields)
            }
            None => Origin::default(),
        }
    }

    /// Whether a connection from `remote` must start with a PROXY header.
    pub(crate) fn expects_proxy_header(&self, remote: &PeerAddr) -> bool {
        let ip = remote.inet().map(|address| address.ip());
        self.proxy_protocol
            .as_ref()
            .is_some_and(|trusts| trusts(ip))
    }

    /// A local address in the memory of the last one, if that is equal: a server has few.
    pub(crate) fn shared_addr(&self, address: PeerAddr) -> Arc<PeerAddr> {
        let mut last = self
            .last_local
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if **last != address {
            *last = Arc::new(address);
        }
        Arc::clone(&last)
    }

    /// Tells the other workers whether this one accepts connections.
    pub(crate) fn set_accepting(&self, is_accepting: bool) {
        if let Some(meter) = &self.meter {
            meter.accepting.store(is_accepting.into(), Relaxed);
        }
    }
}

impl fmt::Debug for ConnConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnConfig")
            .field("limits", &self.limits)
            .field("protocols", &self.protocols)
            .field("tls", &self.tls)
            .field("proxy_protocol", &self.proxy_protocol.is_some())
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::forwarded::Scheme;

    #[test]
    fn trusted_proxies_determine_the_client() {
        let config = ConnConfig {
            trusted: Some(TrustedPeers::parse("127.0.0.1").unwrap()),
            ..ConnConfig::default()
        };
        let fields = [
            ("X-Forwarded-For", "9.9.9.9"),
            ("X-Forwarded-Proto", "https"),
        ]
        .map(|(name, value)| Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
        });
        let proxy = PeerIp::Ip([127, 0, 0, 1].into());
        let origin = config.origin(proxy, fields);
        assert_eq!(origin.client, Some(([9, 9, 9, 9].into(), 0)));
        assert_eq!(origin.scheme, Some(Scheme::Https));
        assert_eq!(config.origin(PeerIp::Unix, fields), Origin::default());
        assert_eq!(
            ConnConfig::default().origin(proxy, fields),
            Origin::default()
        );
    }
}
