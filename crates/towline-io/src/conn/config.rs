//! Configuration of the connections of one listener or one client.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use towline_proto::{Limits, ProtocolPolicy};

use crate::serve::metrics::SlotHandle;
use crate::serve::refusals::Refusals;
use crate::tls::TlsConfig;

/// Decides whether a PROXY header is expected from an address; `None` is a peer on a Unix socket.
pub type ProxyTrust = Box<dyn Fn(Option<IpAddr>) -> bool + Send + Sync>;

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
    /// Serves the metrics page only.
    pub metrics_only: bool,
    /// Counters of connections and bytes.
    pub meter: Option<SlotHandle>,
    /// Receives the requests and connections that the protocol refuses.
    pub refusals: Option<Arc<Refusals>>,
}

impl ConnConfig {
    /// Plain HTTP with `limits`.
    pub fn plain(limits: Limits) -> Self {
        Self {
            limits: Arc::new(limits),
            ..Self::default()
        }
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
            .field("metrics_only", &self.metrics_only)
            .finish_non_exhaustive()
    }
}
