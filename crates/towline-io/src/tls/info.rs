//! The result of a TLS handshake.

use rustls::pki_types::CertificateDer;

use super::distinguished_name;

/// The parameters that the handshake has negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// The code point: 0x0303 is TLS 1.2, 0x0304 is TLS 1.3.
    pub version: u16,
    /// The code point of the cipher suite (IANA registry).
    pub cipher_suite: u16,
    pub alpn: Option<Vec<u8>>,
    /// The certificate chain of the peer in DER, leaf first; empty if it presented none.
    pub peer_certs: Vec<CertificateDer<'static>>,
    /// The server name indication of the client.
    pub server_name: Option<String>,
}

impl TlsInfo {
    /// The subject of the peer's certificate (RFC 4514); empty if it has none, or none that can be read.
    pub fn peer_subject(&self) -> Option<String> {
        let certificate = self.peer_certs.first()?;
        Some(distinguished_name::subject(certificate).unwrap_or_default())
    }

    /// The name of the cipher suite in the IANA registry.
    pub fn cipher_name(&self) -> Option<String> {
        let suite = rustls::CipherSuite::from(self.cipher_suite);
        Some(suite.as_str()?.replace("TLS13_", "TLS_"))
    }
}
