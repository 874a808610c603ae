//! TLS by rustls with ring: configuration of servers and clients, and the session of one connection.

mod acme;
mod ciphers;
mod client;
mod client_auth;
mod config;
mod distinguished_name;
mod explain;
mod external;
mod identity;
mod info;
mod key;
mod pem;
mod record_layer;
mod seed;
mod session;
mod signatures;
mod sni;
mod trust;
mod verify;
mod x509;

pub use acme::AcmeSettings;
pub(crate) use client::certificate_name;
pub use client::{ClientTls, ClientTlsSettings, Trust};
pub(crate) use client_auth::take_refused;
pub use config::{ClientCerts, MinVersion, TlsConfig, TlsSettings, certificate_expiry};
pub(crate) use explain::{
    NO_CLIENT_CERTIFICATE, explain, explain_text, lacks_client_certificate, late_alert,
    text_lacks_client_certificate,
};
pub use external::{ExternalTls, ExternalTlsContext};
pub use identity::Identity;
pub use info::TlsInfo;
pub use key::Password;
pub use seed::seed;
pub(crate) use session::{HandshakeOutcome, RecvOutcome, Session};

/// ALPN protocol id of HTTP/2 over TLS (RFC 9113 3.2).
pub(crate) const ALPN_H2: &[u8] = b"h2";
