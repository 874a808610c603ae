//! Error messages for failed TLS connections.

use std::io;
use std::sync::Arc;

use rustls::{
    AlertDescription, CertificateError, Error, InvalidMessage, OtherError, PeerIncompatible,
};

use super::verify::SelfSigned;

/// Describes the failure of a handshake with `peer`.
pub(crate) fn explain(error: &io::Error, peer: &str) -> String {
    if let Some(tls) = rustls_error(error) {
        let text = explain_tls(tls, peer);
        return if is_beyond_rustls(error) {
            text + HINT
        } else {
            text
        };
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("{peer} closed the connection during the TLS handshake")
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            format!("{peer} reset the connection during the TLS handshake")
        }
        // The name in OpenSSL.
        _ if error.to_string().contains("WRONG_VERSION_NUMBER") => no_tls(peer),
        _ => format!("TLS with {peer} failed: {error}"),
    }
}

/// Follows a failure in which rustls and the server have nothing in common.
const HINT: &str = "; rustls has no CBC ciphers and no keys of P-521 or of RSA below 2048 bits: a client with \
     verify=ssl.create_default_context() uses OpenSSL, which may have what the server needs";

fn no_tls(peer: &str) -> String {
    format!("{peer} does not speak TLS; is it http://?")
}

/// Whether a handshake failed because of something that rustls does not have, such as CBC ciphers or keys of P-521, or
/// that the server did not find in its offer. Never for a certificate that is not to be trusted.
pub(super) fn is_beyond_rustls(error: &io::Error) -> bool {
    match rustls_error(error) {
        // OpenSSL has no other versions by default.
        Some(Error::PeerIncompatible(why)) => !is_about_versions(why),
        Some(Error::AlertReceived(alert)) => matches!(
            alert,
            AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity
        ),
        Some(Error::InvalidCertificate(why)) => match why {
            CertificateError::Other(other) => !other.0.is::<SelfSigned>(),
            CertificateError::BadEncoding
            | CertificateError::BadSignature
            | CertificateError::UnhandledCriticalExtension
            | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => true,
            _ => false,
        },
        _ => false,
    }
}

fn is_about_versions(why: &PeerIncompatible) -> bool {
    matches!(
        why,
        PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
    )
}

/// Describes a failure by rustls' text, which is all that QUIC keeps. For some errors the text is an identifier.
pub(crate) fn explain_text(text: &str) -> String {
    let known = [
        CertificateError::UnknownIssuer,
        CertificateError::Revoked,
        CertificateError::BadSignature,
        CertificateError::Other(OtherError(Arc::new(SelfSigned))),
    ];
    let found = known
        .iter()
        .find(|why| Error::InvalidCertificate((*why).clone()).to_string() == text);
    found.map_or_else(
        || text.to_owned(),
        |why| format!("the certificate {}", explain_certificate(why)),
    )
}

/// Describes an alert on an established connection: with TLS 1.3 the server checks the client's certificate
/// after the client's handshake is complete (RFC 8446 4.4.2.4).
pub(crate) fn late_alert(error: &io::Error) -> Option<&'static str> {
    match rustls_error(error)? {
        Error::AlertReceived(alert) => Some(match alert {
            AlertDescription::CertificateRequired => "the server wants a client certificate",
            alert if is_about_our_certificate(*alert) => {
                "the server does not accept the client certificate"
            }
            _ => "the other side ended TLS with an alert",
        }),
        _ => None,
    }
}

pub(crate) const NO_CLIENT_CERTIFICATE: &str = "the client has sent no certificate";

/// Whether a handshake has failed because the client sent no certificate.
pub(crate) fn lacks_client_certificate(error: &io::Error) -> bool {
    matches!(rustls_error(error), Some(Error::NoCertificatesPresented))
}

/// Whether rustls' text says that the client sent no certificate.
pub(crate) fn text_lacks_client_certificate(text: &str) -> bool {
    text.contains(&Error::NoCertificatesPresented.to_string())
}

fn is_about_our_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

fn rustls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn explain_tls(error: &Error, peer: &str) -> String {
    match error {
        Error::InvalidCertificate(why) => {
            format!("the certificate of {peer} {}", explain_certificate(why))
        }
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge
            | InvalidMessage::InvalidEmptyPayload,
        ) => no_tls(peer),
        Error::AlertReceived(alert) => {
            format!(
                "{peer} refused the TLS handshake: {}",
                explain_alert(*alert)
            )
        }
        Error::PeerIncompatible(why) if is_about_versions(why) => {
            format!("{peer} speaks no version of TLS that is allowed here")
        }
        Error::NoApplicationProtocol => {
            format!("{peer} chose a protocol that was not offered (ALPN)")
        }
        other => format!("TLS with {peer} failed: {other}"),
    }
}

/// Completes the sentence "the certificate of PEER".
pub(super) fn explain_certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired; if it should not have, check this machine's clock".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet; check this machine's clock".into()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names = presented.iter().take(8).map(|name| bare_name(name));
            let names = names.collect::<Vec<_>>().join(", ");
            let expected = expected.to_str();
            if names.is_empty() {
                format!(
                    "is not for the name {expected:?}, and names none: a common name does not count (RFC 9110 4.3.4); \
                     it needs a subjectAltName, or verify= an ssl.SSLContext that accepts it"
                )
            } else {
                format!("is not for the name {expected:?}, but for {names}")
            }
        }
        CertificateError::NotValidForName => "is not for that name".into(),
        CertificateError::UnknownIssuer => {
            "is signed by an authority that is not trusted here (unknown CA)".into()
        }
        CertificateError::Revoked => "has been revoked".into(),
        CertificateError::BadSignature => "has a wrong signature, or a key that is too weak".into(),
        CertificateError::Other(other) if other.0.is::<SelfSigned>() => {
            "is self-signed; name it as a CA file to trust it".into()
        }
        // Errors of webpki that rustls has no word for.
        CertificateError::Other(other) => match other.0.to_string().as_str() {
            "UnsupportedCertVersion" => {
                "is of X.509 version 1; it has to be signed with extensions".into()
            }
            "CaUsedAsEndEntity" => "is marked as one of an authority (CA:TRUE)".into(),
            other => format!("is not acceptable: {other}"),
        },
        other => format!("is not acceptable: {other}"),
    }
}

/// Extracts the name from rustls' `DnsName("a")` and `IpAddress(b)`.
fn bare_name(name: &str) -> &str {
    let inside = name
        .split_once('(')
        .and_then(|(_, inside)| inside.strip_suffix(')'));
    inside.unwrap_or(name).trim_matches('"')
}

fn explain_alert(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::HandshakeFailure => "no cipher, key or signature in common",
        AlertDescription::ProtocolVersion => "no version of TLS in common",
        AlertDescription::NoApplicationProtocol => "no protocol in common (ALPN)",
        AlertDescription::UnrecognisedName => "it does not know the requested server name (SNI)",
        AlertDescription::CertificateRequired => "it wants a client certificate",
        alert if is_about_our_certificate(alert) => "it does not accept the client certificate",
        _ => "it sent an alert",
    };
    format!("{why} (alert {alert:?})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_rustls_are_explained() {
        let own = CertificateError::Other(OtherError(Arc::new(SelfSigned)));
        let text = Error::InvalidCertificate(own).to_string();
        assert!(explain_text(&text).starts_with("the certificate is self-signed"));
        assert_eq!(explain_text("no such text"), "no such text");
    }
}
