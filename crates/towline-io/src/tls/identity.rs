//! Certificates and keys in PEM files. Every error has the name of its file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::key::{Password, private_key};
use super::pem;
use super::x509::has_public_key;

/// A certificate with its key, of a client or of a server.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Certificate chain, leaf first; the file may contain the key, too.
    pub cert_file: PathBuf,
    pub key_file: Option<PathBuf>,
    pub key_password: Option<Password>,
}

const UNSUPPORTED_KEY: &str = "the private key cannot be used: RSA keys of 2048 to 4096 bits and keys of P-256, P-384 and \
    Ed25519 are supported, neither P-521 nor RSA-PSS";

type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity {
    /// Reads the files of a server. Fails if the key is not that of the certificate.
    pub(super) fn certified_key(&self, provider: &CryptoProvider) -> io::Result<CertifiedKey> {
        let key_file = self.key_file.as_deref().unwrap_or(&self.cert_file);
        let (chain, key) = self.read(key_file)?;
        let key = provider.key_provider.load_private_key(key);
        let key = key.map_err(|_| bad(key_file, &UNSUPPORTED_KEY))?;
        // `CertifiedKey::from_der` would refuse a certificate of version 1, which clients may have pinned.
        let matches = match key.public_key() {
            Some(public) => has_public_key(&chain[0], &public),
            None => Some(true),
        };
        match matches {
            Some(true) => Ok(CertifiedKey::new(chain, key)),
            Some(false) => Err(bad(
                key_file,
                &format_args!(
                    "the private key is not that of the certificate in {}",
                    self.cert_file.display()
                ),
            )),
            None => Err(bad(
                &self.cert_file,
                &"the certificate is not X.509 (RFC 5280 4.1)",
            )),
        }
    }

    pub(super) fn read(&self, key_file: &Path) -> io::Result<ChainAndKey> {
        let chain = certificates(&self.cert_file)?;
        let key = private_key(&read(key_file)?, self.key_password.as_ref())
            .map_err(|error| bad(key_file, &error))?;
        Ok((chain, key))
    }
}

pub(super) fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = pem::certificates(&read(file)?).map_err(|error| bad(file, &error))?;
    Ok(found
        .into_iter()
        .map(|(_, certificate)| certificate)
        .collect())
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
