//! TLS by rustls with ring: what a listener needs to speak it, and one connection's session.

mod config;
mod key;
mod session;

pub use config::{ClientCerts, TlsConfig, TlsSettings};
pub use key::Password;
pub use session::TlsInfo;
pub(crate) use session::{Recv, Session};
