//! Verification of signatures in TLS handshakes, the same for certificates of servers and of clients.

use std::sync::LazyLock;

use rustls::crypto::{WebPkiSupportedAlgorithms, ring};

pub(super) static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> =
    LazyLock::new(|| ring::default_provider().signature_verification_algorithms);

/// The methods of a verifier that concern signatures.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
            let algorithms = &$crate::tls::signatures::ALGORITHMS;
            rustls::crypto::verify_tls12_signature(message, cert, signed, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
            let algorithms = &$crate::tls::signatures::ALGORITHMS;
            rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            $crate::tls::signatures::ALGORITHMS.supported_schemes()
        }
    };
}

pub(super) use verify_signatures;
