//! TLS by rustls with ring: what a listener needs to speak it, and one connection's session.

mod config;
mod session;

pub use config::{ClientCerts, TlsConfig, TlsSettings};
pub use session::TlsInfo;
pub(crate) use session::{Recv, Session};
