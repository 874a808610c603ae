//! TLS configuration of a server, from PEM files. Every error has the name of its file.
//!
//! With several certificates the client's server name (SNI, RFC 6066 3) selects one; the first is the default.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateRevocationListDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, SupportedProtocolVersion};

use super::acme::{ALPN_ACME_TLS, AcmeSettings};
use super::ciphers;
use super::client_auth::ClientVerifier;
use super::identity::{Identity, bad, certificates, read};
use super::pem;
use super::sni::ServerCerts;
use super::x509::cert_info;

/// The options `--ssl-*`.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// Certificates of the server, at least one unless they come by ACME.
    pub identities: Vec<Identity>,
    pub acme: Option<AcmeSettings>,
    pub min_version: MinVersion,
    /// Cipher suites by their names in IANA's registry or in OpenSSL; all that rustls supports if empty.
    pub ciphers: Vec<String>,
    pub client_certs: ClientCerts,
    /// Trusted CAs of client certificates.
    pub ca_file: Option<PathBuf>,
    /// Revocation lists for client certificates, PEM.
    pub crl_files: Vec<PathBuf>,
    /// ALPN protocols in order of preference.
    pub alpn: Vec<Vec<u8>>,
}

/// The oldest TLS version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    #[default]
    Tls12,
    Tls13,
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
        let provider = Arc::new(provider(settings)?);
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions(settings.min_version))
            .map_err(|error| unusable(&error))?;
        let builder = match client_verifier(settings)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let acme = settings.acme.as_ref();
        let certs = ServerCerts::load(&settings.identities, acme, &provider)?;
        let mut server = builder.with_cert_resolver(Arc::new(certs));
        server.alpn_protocols.clone_from(&settings.alpn);
        server
            .alpn_protocols
            .extend(acme.map(|_| ALPN_ACME_TLS.to_vec()));
        Ok(Self {
            server: Arc::new(server),
        })
    }
}

/// End of the validity of the first certificate of a file, in seconds since 1970.
pub fn certificate_expiry(file: &Path) -> io::Result<Option<u64>> {
    let chain = certificates(file)?;
    let info = chain.first().and_then(|first| cert_info(first));
    Ok(info.map(|info| info.not_after))
}

impl From<Arc<rustls::ServerConfig>> for TlsConfig {
    fn from(server: Arc<rustls::ServerConfig>) -> Self {
        Self { server }
    }
}

fn versions(min_version: MinVersion) -> &'static [&'static SupportedProtocolVersion] {
    static TLS12: [&SupportedProtocolVersion; 2] =
        [&rustls::version::TLS13, &rustls::version::TLS12];
    match min_version {
        MinVersion::Tls12 => &TLS12,
        MinVersion::Tls13 => &TLS12[..1],
    }
}

fn provider(settings: &TlsSettings) -> io::Result<CryptoProvider> {
    let mut provider = ring::default_provider();
    if !settings.ciphers.is_empty() {
        provider.cipher_suites = ciphers::select(&provider.cipher_suites, &settings.ciphers)
            .map_err(|error| unusable(&error))?;
    }
    Ok(provider)
}

fn unusable(error: &dyn fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
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
    pem::certificates(&read(file)?)
        .and_then(|found| pem::trust(&mut roots, &found))
        .map_err(|error| bad(file, &error))?;
    let provider = Arc::new(ring::default_provider());
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    for crl_file in &settings.crl_files {
        builder = builder.with_crls(revocation_lists(crl_file)?);
    }
    if settings.client_certs == ClientCerts::Optional {
        builder = builder.allow_unauthenticated();
    }
    let verifier = builder.build().map_err(|error| bad(file, &error))?;
    Ok(Some(Arc::new(ClientVerifier(verifier))))
}

fn revocation_lists(file: &Path) -> io::Result<Vec<CertificateRevocationListDer<'static>>> {
    pem::revocation_lists(&read(file)?).map_err(|error| bad(file, &error))
}
