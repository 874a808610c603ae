//! What a listener does with the connections it accepts.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use towline_proto::{Limits, ProtocolPolicy};

use crate::serve::metrics::SlotHandle;
use crate::tls::TlsConfig;

/// Says whether a PROXY header is expected from a peer; `None` is a peer on a Unix socket.
pub type ProxyTrust = Box<dyn Fn(Option<IpAddr>) -> bool + Send + Sync>;

/// The rules for the connections of one listener.
#[derive(Default)]
pub struct ConnConfig {
    pub limits: Arc<Limits>,
    /// What is spoken; HTTP/1 by default. `Either`: under TLS the word of ALPN (its list stands in `tls`), else
    /// the first bytes.
    pub protocols: ProtocolPolicy,
    /// Connections speak TLS when this is given.
    pub tls: Option<TlsConfig>,
    /// Peers for which this holds must begin with a PROXY header (version 1 or 2).
    pub proxy_protocol: Option<ProxyTrust>,
    /// Answers the metrics page and nothing else.
    pub metrics_only: bool,
    /// Where connections and their bytes are counted.
    pub meter: Option<SlotHandle>,
}

impl ConnConfig {
    /// Plain HTTP within `limits`.
    pub fn plain(limits: Limits) -> Self {
        Self {
            limits: Arc::new(limits),
            ..Self::default()
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
