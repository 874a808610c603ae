//! Trusted certificates: the system's store, or a path. Every error has the name of its source.
//!
//! The system's store is read as it is: what cannot be used in it is skipped. In files that the user names every
//! certificate counts.

use std::collections::HashSet;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};

use super::pem;

type Roots = Arc<RootCertStore>;

/// The system's store, read once per process; `fallback` if it is empty.
pub(super) fn system(fallback: Option<&Path>) -> Result<Roots, String> {
    static SYSTEM: OnceLock<Roots> = OnceLock::new();
    if let Some(roots) = SYSTEM.get() {
        return Ok(Arc::clone(roots));
    }
    let mut why = None;
    let roots = if let Some(roots) = named_by_environment()? {
        roots
    } else {
        let found = load_native_certs();
        why = first_error(&found);
        usable(&found)
    };
    if !roots.is_empty() {
        // Created before it is stored: a child of fork must not wait for a thread of its parent.
        let roots = Arc::new(roots);
        return Ok(Arc::clone(SYSTEM.get_or_init(|| roots)));
    }
    instead(why, fallback)
}

/// The system's store without `SSL_CERT_FILE` and `SSL_CERT_DIR`.
pub(super) fn platform(fallback: Option<&Path>) -> Result<Roots, String> {
    static PLATFORM: OnceLock<Roots> = OnceLock::new();
    if let Some(roots) = PLATFORM.get() {
        return Ok(Arc::clone(roots));
    }
    let is_overridden = [FILE_VARIABLE, FOLDERS_VARIABLE]
        .into_iter()
        .any(|name| env::var_os(name).is_some());
    let found = if is_overridden {
        load_certs_from_paths(known(BUNDLES), known(DIRECTORIES))
    } else {
        load_native_certs()
    };
    let roots = usable(&found);
    if !roots.is_empty() {
        let roots = Arc::new(roots);
        return Ok(Arc::clone(PLATFORM.get_or_init(|| roots)));
    }
    instead(first_error(&found), fallback)
}

/// OpenSSL's variables: a file, and folders with colons between them.
const FILE_VARIABLE: &str = "SSL_CERT_FILE";
const FOLDERS_VARIABLE: &str = "SSL_CERT_DIR";

/// The certificates that the environment names now.
pub(super) fn environment() -> Result<Roots, String> {
    named_by_environment().map(|roots| Arc::new(roots.unwrap_or_else(RootCertStore::empty)))
}

/// The certificates that the environment names; `None` if it names none.
fn named_by_environment() -> Result<Option<RootCertStore>, String> {
    let named = |variable| env::var_os(variable).filter(|value| !value.is_empty());
    let (file, folders) = (named(FILE_VARIABLE), named(FOLDERS_VARIABLE));
    if file.is_none() && folders.is_none() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    if let Some(file) = file {
        let read = read(Path::new(&file), &mut roots);
        read.map_err(|error| format!("{FILE_VARIABLE}: {error}"))?;
    }
    // Some of them may be missing, as for OpenSSL.
    for folder in folders
        .iter()
        .flat_map(env::split_paths)
        .filter(|path| path.exists())
    {
        let read = read(&folder, &mut roots);
        read.map_err(|error| format!("{FOLDERS_VARIABLE}: {error}"))?;
    }
    match folders {
        Some(folders) if roots.is_empty() => Err(format!(
            "{FOLDERS_VARIABLE}: no certificate in {}",
            folders.display()
        )),
        _ => Ok(Some(roots)),
    }
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
fn instead(why: Option<String>, fallback: Option<&Path>) -> Result<Roots, String> {
    if let Some(fallback) = fallback {
        return path(fallback).map(|(roots, _)| roots);
    }
    let why = why.map(|error| format!(" ({error})"));
    Err(format!(
        "the system has no trusted certificates{}: install its CA certificates or the package certifi, or \
         name a CA file",
        why.unwrap_or_default()
    ))
}

/// Reads a PEM file or a directory of PEM files: the roots, and the certificates themselves.
pub(super) fn path(path: &Path) -> Result<(Roots, Vec<CertificateDer<'static>>), String> {
    let mut roots = RootCertStore::empty();
    let found = read(path, &mut roots)?;
    if roots.is_empty() {
        return Err(format!("{}: no certificate in this folder", path.display()));
    }
    Ok((Arc::new(roots), found))
}

/// Reads the certificates of a file, or of the files of a folder that have any, and trusts them.
fn read(path: &Path, roots: &mut RootCertStore) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |path: &Path, error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let metadata = fs::metadata(path).map_err(|error| failed(path, &error))?;
    let is_folder = metadata.is_dir();
    let files = if is_folder {
        files(path).map_err(|error| failed(path, &error))?
    } else {
        vec![path.to_owned()]
    };
    let mut all = Vec::new();
    for file in files {
        let bytes = fs::read(&file).map_err(|error| failed(&file, &error))?;
        if !is_folder || pem::has_certificate(&bytes) {
            let found = pem::certificates(&bytes).map_err(|error| failed(&file, &error))?;
            pem::trust(roots, &found).map_err(|error| failed(&file, &error))?;
            all.extend(found.into_iter().map(|(_, certificate)| certificate));
        }
    }
    Ok(all)
}

/// The files of a folder in order, each once: links under the hashes of names lead to most of them.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    paths.sort();
    let mut seen = HashSet::new();
    paths.retain(|path| {
        fs::metadata(path).is_ok_and(|metadata| {
            metadata.is_file() && seen.insert((metadata.dev(), metadata.ino()))
        })
    });
    Ok(paths)
}

/// The store of the system's certificates, without those that cannot be used.
fn usable(found: &CertificateResult) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs.iter().cloned());
    roots
}

fn first_error(found: &CertificateResult) -> Option<String> {
    found.errors.first().map(ToString::to_string)
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
        assert!(usable(&empty).is_empty());
        let error = instead(first_error(&empty), None).unwrap_err();
        assert!(
            error.starts_with("the system has no trusted certificates ("),
            "{error}"
        );
        assert!(error.contains("/nowhere/ca.pem"), "{error}");
        let error = instead(None, Some(Path::new("/nowhere/certifi.pem"))).unwrap_err();
        assert!(error.starts_with("/nowhere/certifi.pem: "), "{error}");
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let file = std::env::temp_dir().join(format!("towline-fallback-{}", std::process::id()));
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        let roots = instead(None, Some(&file));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(roots.unwrap().len(), 1);
    }
}
