//! TLS by rustls with ring: what a listener needs to speak it, and one connection's session.

#[allow(dead_code)] // until the dial is whole, some commits from now
mod client;
mod config;
mod foreign;
mod key;
mod session;

pub use client::{ClientTls, ClientTlsSettings, Identity, MinVersion, Trust};
pub use config::{ClientCerts, TlsConfig, TlsSettings};
pub use foreign::{ForeignContext, ForeignTls};
pub use key::Password;
pub use session::TlsInfo;
pub(crate) use session::{Recv, Session};
