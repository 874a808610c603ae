//! TLS by rustls with ring: configuration of servers and clients, and the session of one connection.

mod client;
mod config;
mod explain;
mod external;
mod info;
mod key;
mod record_layer;
mod seed;
mod session;
mod trust;
mod verify;
mod x509;

pub use client::{ClientTls, ClientTlsSettings, Identity, MinVersion, Trust};
pub use config::{ClientCerts, TlsConfig, TlsSettings};
pub(crate) use explain::{explain, late_alert};
pub use external::{ExternalTls, ExternalTlsContext};
pub use info::TlsInfo;
pub use key::Password;
pub use seed::seed;
pub(crate) use session::{HandshakeOutcome, RecvOutcome, Session};
