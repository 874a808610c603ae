//! The client's side: what is trusted, what is shown, and what is asked for.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::ptr;

use super::foreign::ForeignContext;
use super::key::Password;

/// Whom a client believes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The system's store, loaded once per process when it is first needed.
    #[default]
    System,
    /// A PEM file, or a directory of such files.
    Path(PathBuf),
    /// Everybody: the peer's certificate is not verified.
    Anybody,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    #[default]
    Tls12,
    Tls13,
}

/// A client certificate.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The chain, leaf first; the key may stand in the same file.
    pub cert_file: PathBuf,
    pub key_file: Option<PathBuf>,
    pub key_password: Option<Password>,
}

#[derive(Clone, Debug, Default)]
pub struct ClientTlsSettings {
    pub trust: Trust,
    /// A PEM file that stands in for the system's store where that is empty (certifi's).
    pub fallback: Option<PathBuf>,
    pub identity: Option<Identity>,
    pub min_version: MinVersion,
}

/// Built once and shared by all connections on the same terms; sessions are resumed within it. Equal
/// only to itself.
pub struct ClientTls(Terms);

enum Terms {
    Own(ClientTlsSettings),
    Foreign(Box<dyn ForeignContext>),
}

impl ClientTls {
    /// Cheap: files are read when a connection needs them, on a helper thread.
    pub fn new(settings: ClientTlsSettings) -> Self {
        Self(Terms::Own(settings))
    }

    /// TLS by somebody else, with their own trust and certificates.
    pub fn foreign(context: Box<dyn ForeignContext>) -> Self {
        Self(Terms::Foreign(context))
    }
}

impl Default for ClientTls {
    fn default() -> Self {
        Self::new(ClientTlsSettings::default())
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Terms::Own(settings) => f.debug_tuple("ClientTls").field(settings).finish(),
            Terms::Foreign(_) => f.write_str("ClientTls(foreign)"),
        }
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for ClientTls {}

impl Hash for ClientTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::hash(self, state);
    }
}
