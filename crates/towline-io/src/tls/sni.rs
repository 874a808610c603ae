//! The certificate of a handshake: by server name (SNI, RFC 6066 3) and by the client's signature schemes.

use std::io;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::identity::{Identity, bad};
use super::x509::has_public_key;

/// The certificates of a server; the first is for clients without a server name, or with one that none of them has.
#[derive(Debug)]
pub(super) struct ServerCerts(Vec<Arc<CertifiedKey>>);

impl ServerCerts {
    pub(super) fn load(identities: &[Identity], provider: &CryptoProvider) -> io::Result<Self> {
        if identities.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a server needs a certificate",
            ));
        }
        let keys = identities
            .iter()
            .map(|identity| certified_key(identity, provider).map(Arc::new));
        keys.collect::<io::Result<_>>().map(Self)
    }
}

fn certified_key(identity: &Identity, provider: &CryptoProvider) -> io::Result<CertifiedKey> {
    let key_file = identity.key_file.as_deref().unwrap_or(&identity.cert_file);
    let (chain, key) = identity.read(key_file)?;
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
                identity.cert_file.display()
            ),
        )),
        None => Err(bad(
            &identity.cert_file,
            &"the certificate is not X.509 (RFC 5280 4.1)",
        )),
    }
}

const UNSUPPORTED_KEY: &str = "the private key cannot be used: RSA keys of 2048 to 4096 bits and keys of P-256, P-384 and \
    Ed25519 are supported, neither P-521 nor RSA-PSS";

impl ResolvesServerCert for ServerCerts {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let usable =
            |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let name = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok());
        let named = name
            .filter(|_| self.0.len() > 1)
            .and_then(|name| self.0.iter().filter(usable).find(|key| names(key, &name)));
        named
            .or_else(|| self.0.iter().find(usable))
            .or(self.0.first())
            .map(Arc::clone)
    }
}

/// Whether the leaf certificate is for this name, wildcards included.
fn names(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    key.end_entity_cert()
        .and_then(ParsedCertificate::try_from)
        .is_ok_and(|leaf| verify_server_name(&leaf, name).is_ok())
}
