//! Trusted certificates: the system's store, or a path. Every error has the name of its source.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};

type Roots = Arc<RootCertStore>;

/// The system's store, read once per process; `fallback` if it is empty.
pub(super) fn system(fallback: Option<&Path>) -> Result<Roots, String> {
    static SYSTEM: OnceLock<Roots> = OnceLock::new();
    if let Some(roots) = SYSTEM.get() {
        return Ok(Arc::clone(roots));
    }
    let found = load_native_certs();
    if let Some(roots) = store(&found) {
        // Created before it is stored: a child of fork must not wait for a thread of its parent.
        return Ok(Arc::clone(SYSTEM.get_or_init(|| roots)));
    }
    instead(&found, fallback)
}

/// The system's store without `SSL_CERT_FILE` and `SSL_CERT_DIR`.
pub(super) fn platform(fallback: Option<&Path>) -> Result<Roots, String> {
    static PLATFORM: OnceLock<Roots> = OnceLock::new();
    if let Some(roots) = PLATFORM.get() {
        return Ok(Arc::clone(roots));
    }
    let is_overridden = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        .into_iter()
        .any(|name| std::env::var_os(name).is_some());
    let found = if is_overridden {
        load_certs_from_paths(known(BUNDLES), known(DIRECTORIES))
    } else {
        load_native_certs()
    };
    if let Some(roots) = store(&found) {
        return Ok(Arc::clone(PLATFORM.get_or_init(|| roots)));
    }
    instead(&found, fallback)
}

/// Certificate bundles of Unix systems: Debian and derivatives, Red Hat, SUSE; Alpine, BSD and macOS.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const DIRECTORIES: &[&str] = &["/etc/ssl/certs", "/etc/pki/tls/certs"];

fn known(places: &[&'static str]) -> Option<&'static Path> {
    let places = places.iter().map(|place| Path::new(*place));
    places.into_iter().find(|place| place.exists())
}

/// The fallback for an empty system store.
fn instead(found: &CertificateResult, fallback: Option<&Path>) -> Result<Roots, String> {
    if let Some(fallback) = fallback {
        return path(fallback).map(|(roots, _)| roots);
    }
    let why = found.errors.first().map(|error| format!(" ({error})"));
    Err(format!(
        "the system has no trusted certificates{}: install its CA certificates or the package certifi, or \
         name a CA file",
        why.unwrap_or_default()
    ))
}

/// Reads a PEM file or a directory of PEM files: the roots, and the certificates themselves.
pub(super) fn path(path: &Path) -> Result<(Roots, Vec<CertificateDer<'static>>), String> {
    let name = path.display();
    let metadata = std::fs::metadata(path).map_err(|error| format!("{name}: {error}"))?;
    let found = if metadata.is_dir() {
        load_certs_from_paths(None, Some(path))
    } else {
        load_certs_from_paths(Some(path), None)
    };
    if let Some(roots) = store(&found) {
        return Ok((roots, found.certs));
    }
    Err(match found.errors.first() {
        Some(error) => format!("{name}: {error}"),
        None => format!("{name}: no certificate (PEM section CERTIFICATE) in it"),
    })
}

/// Builds the store; certificates that cannot be used are skipped.
fn store(found: &CertificateResult) -> Option<Roots> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs.iter().cloned());
    (added > 0).then(|| Arc::new(roots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_store_is_read_once() {
        match system(None) {
            Ok(roots) => {
                assert!(!roots.is_empty());
                assert!(Arc::ptr_eq(&roots, &system(None).unwrap()));
            }
            Err(error) => assert!(error.contains("install its CA certificates"), "{error}"),
        }
    }

    #[test]
    fn an_empty_store_needs_a_fallback() {
        let empty = load_certs_from_paths(Some(Path::new("/nowhere/ca.pem")), None);
        assert!(store(&empty).is_none());
        let error = instead(&empty, None).unwrap_err();
        assert!(
            error.starts_with("the system has no trusted certificates ("),
            "{error}"
        );
        assert!(error.contains("/nowhere/ca.pem"), "{error}");
        let error = instead(&empty, Some(Path::new("/nowhere/certifi.pem"))).unwrap_err();
        assert!(error.starts_with("/nowhere/certifi.pem: "), "{error}");
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let file = std::env::temp_dir().join(format!("towline-fallback-{}", std::process::id()));
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        let roots = instead(&empty, Some(&file));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(roots.unwrap().len(), 1);
    }
}
