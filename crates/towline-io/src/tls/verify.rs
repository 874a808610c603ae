//! Verification of a server's certificate: webpki's, with two additions. A self-signed certificate is
//! reported as such; and a certificate that the user has given as a file is accepted even if it is marked as
//! an authority, as those of `openssl req -x509` are.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, OtherError, RootCertStore};

use super::signatures::verify_signatures;
use super::x509;

#[derive(Debug)]
pub(super) struct Verifier {
    /// `None` disables verification.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    /// Certificates given by the user.
    given: Vec<CertificateDer<'static>>,
}

impl Verifier {
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        given: Vec<CertificateDer<'static>>,
    ) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let webpki = WebPkiServerVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            webpki: Some(webpki),
            given,
        })
    }

    pub(super) fn insecure() -> Self {
        Self {
            webpki: None,
            given: Vec::new(),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(webpki) = &self.webpki else {
            return Ok(ServerCertVerified::assertion());
        };
        let verdict =
            webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let Err(error) = verdict else {
            return verdict;
        };
        if self.given.contains(end_entity) {
            return verify_given(end_entity, server_name, now);
        }
        Err(match error {
            Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_),
            ) if x509::cert_info(end_entity).is_some_and(|facts| facts.self_issued) => {
                CertificateError::Other(OtherError(Arc::new(SelfSigned))).into()
            }
            other => other,
        })
    }

    verify_signatures!();
}

/// Verifies a certificate that is itself a trust anchor: its names and its validity.
fn verify_given(
    end_entity: &CertificateDer<'_>,
    server_name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    let facts = x509::cert_info(end_entity).ok_or(CertificateError::BadEncoding)?;
    if now.as_secs() < facts.not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > facts.not_after {
        return Err(CertificateError::Expired.into());
    }
    verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
    Ok(ServerCertVerified::assertion())
}

/// The certificate is self-signed and not trusted.
#[derive(Debug)]
pub(super) struct SelfSigned;

impl fmt::Display for SelfSigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("self-signed certificate")
    }
}

impl std::error::Error for SelfSigned {}
