//! Verification of client certificates: webpki's, which tells the log of the server why one was refused.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DistinguishedName, Error};

use super::distinguished_name;
use super::explain::explain_certificate;
use super::signatures::verify_signatures;

thread_local! {
    static REFUSED: Cell<Option<String>> = const { Cell::new(None) };
}

/// The certificate that a handshake on this thread has refused just now, and the reason.
pub(crate) fn take_refused() -> Option<String> {
    REFUSED.take()
}

/// Passes everything on, and remembers what was refused.
pub(super) struct ClientVerifier(pub Arc<dyn ClientCertVerifier>);

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verdict = self.0.verify_client_cert(end_entity, intermediates, now);
        if let Err(error) = &verdict {
            let why = match error {
                Error::InvalidCertificate(why) => explain_certificate(why),
                other => other.to_string(),
            };
            let subject = distinguished_name::subject(end_entity).unwrap_or_default();
            REFUSED.set(Some(format!("the client certificate \"{subject}\" {why}")));
        }
        verdict
    }

    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    verify_signatures!();
}
