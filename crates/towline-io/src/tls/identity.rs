//! Certificates and keys in PEM files. Every error has the name of its file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::key::{Password, private_key};
use super::pem;

/// A certificate with its key, of a client or of a server.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Certificate chain, leaf first; the file may contain the key, too.
    pub cert_file: PathBuf,
    pub key_file: Option<PathBuf>,
    pub key_password: Option<Password>,
}

type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity {
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
