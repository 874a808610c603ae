//! Certificates that come by ACME: read from the store in which a process beside the workers keeps them
//! (`python/towline/server/acme_store.py`), and read again when they have changed.
//!
//! ```text
//! FOLDER/NAME.pem               chain and key
//! FOLDER/tls-alpn-01/NAME.pem   certificate and key of a challenge in progress (RFC 8737)
//! ```

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::crypto::CryptoProvider;
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;

use super::identity::Identity;

/// ALPN protocol of a challenge (RFC 8737 6.2).
pub(super) const ALPN_ACME_TLS: &[u8] = b"acme-tls/1";

/// A file is looked at again after this time.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The options `--acme` and `--acme-store`.
#[derive(Clone, Debug)]
pub struct AcmeSettings {
    /// The folder of the CA in the store.
    pub folder: PathBuf,
    /// Host names in lower case, each with a certificate of its own.
    pub names: Vec<String>,
}

/// The certificates of a server that come by ACME.
#[derive(Debug)]
pub(super) struct AcmeCerts {
    settings: AcmeSettings,
    provider: Arc<CryptoProvider>,
    /// One for each name.
    certs: Vec<Mutex<Cert>>,
}

#[derive(Debug, Default)]
struct Cert {
    looked: Option<Instant>,
    /// Inode and time of the change of the file: a renewal puts another file in its place.
    version: Option<(u64, i64, i64)>,
    key: Option<Arc<CertifiedKey>>,
}

impl AcmeCerts {
    pub(super) fn new(settings: &AcmeSettings, provider: &Arc<CryptoProvider>) -> Self {
        Self {
            settings: settings.clone(),
            provider: Arc::clone(provider),
            certs: settings.names.iter().map(|_| Mutex::default()).collect(),
        }
    }

    /// Whether a CA asks for the certificate of a challenge: that is the only protocol it offers (RFC 8737 3).
    pub(super) fn is_challenge(hello: &ClientHello<'_>) -> bool {
        let offered = hello.alpn();
        offered.is_some_and(|mut names| names.next() == Some(ALPN_ACME_TLS))
    }

    /// The certificate of the challenge in progress for the server name, if there is one.
    pub(super) fn challenge(&self, server_name: &str) -> Option<Arc<CertifiedKey>> {
        let name = &self.settings.names[self.position(server_name)?];
        self.read(&self.settings.folder.join(format!("tls-alpn-01/{name}.pem")))
    }

    /// The certificate for a server name.
    pub(super) fn named(&self, server_name: &str) -> Option<Arc<CertifiedKey>> {
        self.current(self.position(server_name)?)
    }

    /// The first certificate that exists, for clients without a server name.
    pub(super) fn first(&self) -> Option<Arc<CertifiedKey>> {
        (0..self.certs.len()).find_map(|index| self.current(index))
    }

    fn position(&self, server_name: &str) -> Option<usize> {
        let mut names = self.settings.names.iter();
        names.position(|name| name.eq_ignore_ascii_case(server_name))
    }

    fn current(&self, index: usize) -> Option<Arc<CertifiedKey>> {
        let mut cert = self.certs[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Before there is a certificate every handshake looks for it.
        let has_looked = |at: Instant| at.elapsed() < LOOK_INTERVAL && cert.key.is_some();
        if cert.looked.is_some_and(has_looked) {
            return cert.key.clone();
        }
        let name = &self.settings.names[index];
        let file = self.settings.folder.join(format!("{name}.pem"));
        let version = fs::metadata(&file).ok();
        let version = version.map(|file| (file.ino(), file.ctime(), file.ctime_nsec()));
        if version.is_some() && version != cert.version {
            cert.version = version;
            // The old certificate is served on if the new file cannot be used.
            cert.key = self.read(&file).or(cert.key.take());
        }
        cert.looked = Some(Instant::now());
        cert.key.clone()
    }

    fn read(&self, file: &Path) -> Option<Arc<CertifiedKey>> {
        let identity = Identity {
            cert_file: file.to_owned(),
            ..Identity::default()
        };
        identity.certified_key(&self.provider).ok().map(Arc::new)
    }
}
