//! From options and open sockets to a listening engine.
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use towline_io::serve::features::FeatureConfig;
use towline_io::serve::forwarded::{PeerIp, TrustedPeers};
use towline_io::{
    ClientCerts, ConnConfig, Drain, Engine, Identity, Listener, MinVersion, TlsConfig, TlsSettings,
};
use towline_proto::ProtocolPolicy;

use super::http3;
use super::options::{Bind, ClientCertificate, HttpVersions, Options, TlsVersion};
use towline_py_common::errors;

/// The interface of the application. A WSGI application needs a socket for a WebSocket, so its server does not offer
/// them over HTTP/2 (RFC 8441 3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    Asgi,
    Wsgi,
}

/// The protocols of `--http1` and `--http2`. With TLS, ALPN selects one of them.
fn protocols(options: &Options) -> (ProtocolPolicy, Vec<Vec<u8>>) {
    let (h1, h2) = (b"http/1.1".to_vec(), b"h2".to_vec());
    match options.http {
        HttpVersions::Auto => (ProtocolPolicy::Either, vec![h2, h1]),
        HttpVersions::Http1 => (ProtocolPolicy::Http1, vec![h1]),
        HttpVersions::Http2 => (ProtocolPolicy::Http2, vec![h2]),
    }
}

/// The proxies whose forwarding headers are trusted (`--forwarded-allow-ips`).
pub fn trusted_peers(options: &Options) -> PyResult<TrustedPeers> {
    TrustedPeers::parse(&options.forwarded_allow_ips.join(","))
        .map_err(|error| PyValueError::new_err(format!("forwarded_allow_ips: {error}")))
}

/// The service for the connections of all listeners of the application.
pub fn service(options: &mut Options, interface: Interface) -> PyResult<ConnConfig> {
    let (protocols, alpn) = protocols(options);
    let mut limits = options.limits();
    limits.http2.extended_connect = interface == Interface::Asgi && options.ws;
    limits.http3.extended_connect = limits.http2.extended_connect;
    let mut service = ConnConfig {
        protocols,
        ..ConnConfig::plain(limits)
    };
    if !options.ssl_certfile.is_empty() {
        let settings = TlsSettings {
            identities: identities(options),
            min_version: match options.ssl_min_version {
                TlsVersion::Tls12 => MinVersion::Tls12,
                TlsVersion::Tls13 => MinVersion::Tls13,
            },
            ciphers: options.ssl_ciphers.clone(),
            client_certs: match options.ssl_cert_reqs {
                ClientCertificate::None => ClientCerts::NotRequested,
                ClientCertificate::Optional => ClientCerts::Optional,
                ClientCertificate::Required => ClientCerts::Required,
            },
            ca_file: options.ssl_ca_certs.clone(),
            crl_files: options.ssl_crl.clone(),
            alpn,
        };
        service.tls =
            Some(TlsConfig::load(&settings).map_err(|error| errors::setup(&error, "TLS"))?);
    }
    if options.proxy_protocol {
        let trusted = trusted_peers(options)?;
        service.proxy_protocol = Some(Box::new(move |ip| {
            trusted.trusts(ip.map_or(PeerIp::Unix, PeerIp::Ip))
        }));
    }
    Ok(service)
}

/// The certificates with their keys. Takes the password, which is that of every encrypted key.
fn identities(options: &mut Options) -> Vec<Identity> {
    let key_password = options.ssl_keyfile_password.take();
    let files = options.ssl_certfile.iter().enumerate();
    let identity = |(index, cert_file): (usize, &PathBuf)| Identity {
        cert_file: cert_file.clone(),
        key_file: options.ssl_keyfile.get(index).cloned(),
        key_password: key_password.clone(),
    };
    files.map(identity).collect()
}

/// Listens on every bind, on duplicates of the descriptors. Takes the password of the key out of the options. The
/// metrics page of `--metrics-address` is always plain HTTP.
pub fn listen<S: Default>(
    engine: &mut Engine<S>,
    options: &mut Options,
    binds: &[Bind],
    features: &FeatureConfig,
    interface: Interface,
) -> PyResult<()> {
    let application = ConnConfig {
        meter: features.slot.clone(),
        refusals: features.refusals.clone(),
        ..service(options, interface)?
    };
    let over_udp: Vec<&Bind> = binds.iter().filter(|bind| bind.udp).collect();
    if !over_udp.is_empty() {
        http3::listen(engine, options, &over_udp, &application)?;
        options.alt_svc = http3::alt_svc(options, &over_udp);
    }
    let application = Arc::new(application);
    let metrics = Arc::new(ConnConfig {
        metrics_only: true,
        ..ConnConfig::plain(options.limits())
    });
    for bind in binds.iter().filter(|bind| !bind.udp) {
        let service = if bind.metrics { &metrics } else { &application };
        listener(bind, options)
            .and_then(|listener| engine.add_listener(listener, Arc::clone(service)))
            .map_err(|error| errors::setup(&error, &bind.address))?;
    }
    Ok(())
}

fn listener(bind: &Bind, options: &Options) -> io::Result<Listener> {
    // SAFETY: the descriptor is borrowed for the one call that duplicates it.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(bind.fd) };
    let own: OwnedFd = fd.try_clone_to_owned()?;
    Listener::inherited(own.into_raw_fd(), options.backlog)
}

/// The drain that Python's `close_idle` names.
pub fn drain(close_idle: bool) -> Drain {
    if close_idle {
        Drain::CloseIdle
    } else {
        Drain::Graceful
    }
}

/// Maximum wait of a turn that a foreign event loop calls.
pub const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

/// Maximum time for writing the last lines of the access log at the end.
pub const LOG_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
