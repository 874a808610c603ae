//! The certificate of a handshake: by server name (SNI, RFC 6066 3) and by the client's signature schemes.

use std::io;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::acme::{AcmeCerts, AcmeSettings};
use super::identity::Identity;

/// The certificates of a server; the first is for clients without a server name, or with one that none of them has.
#[derive(Debug)]
pub(super) struct ServerCerts {
    /// Read once from files. Each serves its own names before ACME does.
    fixed: Vec<Arc<CertifiedKey>>,
    acme: Option<AcmeCerts>,
}

impl ServerCerts {
    pub(super) fn load(
        identities: &[Identity],
        acme: Option<&AcmeSettings>,
        provider: &Arc<CryptoProvider>,
    ) -> io::Result<Self> {
        if identities.is_empty() && acme.is_none() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a server needs a certificate",
            ));
        }
        let keys = identities
            .iter()
            .map(|identity| identity.certified_key(provider).map(Arc::new));
        Ok(Self {
            fixed: keys.collect::<io::Result<_>>()?,
            acme: acme.map(|settings| AcmeCerts::new(settings, provider)),
        })
    }
}

impl ResolvesServerCert for ServerCerts {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let acme = self.acme.as_ref();
        if let Some(acme) = acme.filter(|_| AcmeCerts::is_challenge(&hello)) {
            return acme.challenge(hello.server_name()?);
        }
        let usable =
            |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let name = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok());
        let named = name
            .filter(|_| self.fixed.len() > 1 || acme.is_some())
            .and_then(|name| {
                let mut fixed = self.fixed.iter().filter(usable);
                fixed.find(|key| names(key, &name))
            });
        named
            .cloned()
            .or_else(|| acme?.named(hello.server_name()?))
            .or_else(|| self.fixed.iter().find(usable).cloned())
            .or_else(|| self.fixed.first().cloned())
            .or_else(|| acme?.first())
    }
}

/// Whether the leaf certificate is for this name, wildcards included.
fn names(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    key.end_entity_cert()
        .and_then(ParsedCertificate::try_from)
        .is_ok_and(|leaf| verify_server_name(&leaf, name).is_ok())
}
