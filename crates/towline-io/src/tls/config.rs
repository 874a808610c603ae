//! TLS configuration of a server, from PEM files. Every error has the name of its file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::key::{Password, private_key, without_encrypted_keys};

/// The options `--ssl-*`.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// Certificate chain of the server, leaf first; the file may contain the key, too.
    pub cert_file: PathBuf,
    /// Key in PKCS#8, PKCS#1 or SEC1; defaults to the file of the certificate.
    pub key_file: Option<PathBuf>,
    /// Password of an encrypted key.
    pub key_password: Option<Password>,
    pub client_certs: ClientCerts,
    /// Trusted CAs of client certificates.
    pub ca_file: Option<PathBuf>,
    /// ALPN protocols in order of preference.
    pub alpn: Vec<Vec<u8>>,
}

/// Policy for client certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCerts {
    #[default]
    NotRequested,
    /// Requested; a certificate that is sent must be valid.
    Optional,
    Required,
}

/// A loaded configuration, shared by all connections of a listener.
#[derive(Clone)]
pub struct TlsConfig {
    pub(crate) server: Arc<rustls::ServerConfig>,
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("alpn", &self.server.alpn_protocols)
            .finish()
    }
}

impl TlsConfig {
    /// Loads the files. Fails with `NotFound`, `PermissionDenied` or `InvalidData`, with the file's name.
    pub fn load(settings: &TlsSettings) -> io::Result<Self> {
        let key_file = settings.key_file.as_deref().unwrap_or(&settings.cert_file);
        let chain = certificates(&settings.cert_file)?;
        let key = private_key(&read(key_file)?, settings.key_password.as_ref())
            .map_err(|error| bad(key_file, &error))?;
        let builder =
            rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?;
        let builder = match client_verifier(settings)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder
            .with_single_cert(chain, key)
            .map_err(|error| bad(key_file, &error))?;
        server.alpn_protocols.clone_from(&settings.alpn);
        Ok(Self {
            server: Arc::new(server),
        })
    }
}

impl From<Arc<rustls::ServerConfig>> for TlsConfig {
    fn from(server: Arc<rustls::ServerConfig>) -> Self {
        Self { server }
    }
}

pub(super) fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = without_encrypted_keys(&read(file)?);
    let certs: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| bad(file, &error))?;
    if certs.is_empty() {
        return Err(bad(file, &"no certificate (PEM section CERTIFICATE) in it"));
    }
    Ok(certs)
}

fn client_verifier(settings: &TlsSettings) -> io::Result<Option<Arc<dyn ClientCertVerifier>>> {
    if settings.client_certs == ClientCerts::NotRequested {
        return Ok(None);
    }
    let file = settings.ca_file.as_deref().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "client certificates need a file of CAs",
        )
    })?;
    let mut roots = RootCertStore::empty();
    for cert in certificates(file)? {
        roots.add(cert).map_err(|error| bad(file, &error))?;
    }
    let provider = Arc::new(ring::default_provider());
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if settings.client_certs == ClientCerts::Optional {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map(Some).map_err(|error| bad(file, &error))
}

pub(super) fn read(file: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(file)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

pub(super) fn bad(file: &Path, why: &dyn fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}: {why}", file.display()),
    )
}
