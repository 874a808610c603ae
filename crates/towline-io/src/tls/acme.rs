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

impl AcmeSettings {
    pub fn cert_files(&self) -> impl Iterator<Item = PathBuf> {
        self.names.iter().map(|name| cert_file(&self.folder, name))
    }
}

fn cert_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.pem"))
}

/// The certificates of a server that come by ACME.
#[derive(Debug)]
pub(super) struct AcmeCerts {
    challenges: PathBuf,
    certs: Vec<AcmeCert>,
    provider: Arc<CryptoProvider>,
}

impl AcmeCerts {
    pub(super) fn new(settings: &AcmeSettings, provider: &Arc<CryptoProvider>) -> Self {
        let cert = |name: &String| AcmeCert {
            name: name.clone(),
            file: cert_file(&settings.folder, name),
            loaded: Mutex::default(),
        };
        Self {
            challenges: settings.folder.join("tls-alpn-01"),
            certs: settings.names.iter().map(cert).collect(),
            provider: Arc::clone(provider),
        }
    }

    /// Whether a CA asks for the certificate of a challenge: that is the only protocol it offers (RFC 8737 3).
    pub(super) fn is_challenge(hello: &ClientHello<'_>) -> bool {
        hello
            .alpn()
            .is_some_and(|mut offered| offered.next() == Some(ALPN_ACME_TLS))
    }

    /// The certificate of the challenge in progress for the server name, if there is one.
    pub(super) fn challenge(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let cert = self.find(hello.server_name()?)?;
        read(&cert_file(&self.challenges, &cert.name), &self.provider)
    }

    /// The certificate for a server name.
    pub(super) fn named(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.find(name)?.current(&self.provider)
    }

    /// The first certificate that exists, for clients without a server name.
    pub(super) fn first(&self) -> Option<Arc<CertifiedKey>> {
        self.certs
            .iter()
            .find_map(|cert| cert.current(&self.provider))
    }

    fn find(&self, name: &str) -> Option<&AcmeCert> {
        let mut certs = self.certs.iter();
        certs.find(|cert| cert.name.eq_ignore_ascii_case(name))
    }
}

#[derive(Debug)]
struct AcmeCert {
    name: String,
    file: PathBuf,
    loaded: Mutex<Loaded>,
}

#[derive(Debug, Default)]
struct Loaded {
    looked: Option<Instant>,
    /// Inode and time of the change of the file: a renewal puts another file in its place.
    version: Option<(u64, i64, i64)>,
    key: Option<Arc<CertifiedKey>>,
}

impl AcmeCert {
    fn current(&self, provider: &CryptoProvider) -> Option<Arc<CertifiedKey>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_due = loaded
            .looked
            .is_none_or(|at| now.duration_since(at) >= LOOK_INTERVAL);
        if is_due {
            // Before there is a certificate every handshake looks for it.
            loaded.looked = loaded.key.is_some().then_some(now);
            let found = fs::metadata(&self.file).ok();
            let version = found.map(|file| (file.ino(), file.ctime(), file.ctime_nsec()));
            if version.is_some() && version != loaded.version {
                // The old certificate is served on if the new file cannot be used.
                if let Some(key) = read(&self.file, provider) {
                    loaded.key = Some(key);
                    loaded.looked = Some(now);
                }
                loaded.version = version;
            }
        }
        loaded.key.clone()
    }
}

fn read(file: &Path, provider: &CryptoProvider) -> Option<Arc<CertifiedKey>> {
    let identity = Identity {
        cert_file: file.to_owned(),
        ..Identity::default()
    };
    identity.certified_key(provider).ok().map(Arc::new)
}
