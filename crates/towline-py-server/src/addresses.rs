//! From the settings of addresses to the configuration of their connections.
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use towline_io::serve::features::FeatureConfig;
use towline_io::serve::forwarded::{PeerIp, TrustedPeers};
use towline_io::serve::limits::ConnectionLimits;
use towline_io::{
    ClientCerts, ConnConfig, Identity, MinVersion, Password, Role, TlsConfig, TlsSettings,
};
use towline_proto::{Limits, ProtocolPolicy};

use super::options::{AddressSettings, Bind, ClientCertificate, Options, TlsVersion};
use towline_py_common::errors;

/// Preferred if several addresses have TLS.
const HTTPS_PORT: u16 = 443;

/// The interface of the application. A WSGI application needs a socket for a WebSocket, so its server does not offer
/// them over HTTP/2 (RFC 8441 3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    Asgi,
    Wsgi,
}

/// The open addresses of a server, with what the configurations of their connections share.
pub struct Addresses<'a> {
    pub options: &'a Options,
    pub binds: &'a [Bind],
    features: &'a FeatureConfig,
    limits: Arc<Limits>,
    key_password: Option<Password>,
    /// Addresses with equal settings share a configuration, and so their session tickets.
    tls: Vec<(&'a AddressSettings, TlsConfig)>,
}

impl<'a> Addresses<'a> {
    /// Takes the password of the keys out of the options.
    pub fn new(
        options: &'a mut Options,
        binds: &'a [Bind],
        features: &'a FeatureConfig,
        interface: Interface,
    ) -> Self {
        let key_password = options.ssl_keyfile_password.take();
        let mut limits = options.limits();
        limits.http2.extended_connect = interface == Interface::Asgi && options.ws;
        limits.http3.extended_connect = limits.http2.extended_connect;
        Self {
            options,
            binds,
            features,
            limits: Arc::new(limits),
            key_password,
            tls: Vec::new(),
        }
    }

    /// The sockets of HTTP/3.
    pub fn over_udp(&self) -> impl Iterator<Item = &'a Bind> + use<'a> {
        self.binds.iter().filter(|bind| bind.udp)
    }

    pub fn settings(&self, bind: &'a Bind) -> &'a AddressSettings {
        bind.settings
            .as_ref()
            .unwrap_or(&self.options.plain_settings)
    }

    /// The configuration of the connections of an address of the application.
    pub fn conn_config(&mut self, bind: &'a Bind) -> PyResult<ConnConfig> {
        let settings = self.settings(bind);
        let trusted = || trusted_peers(bind, settings);
        let mut config = ConnConfig {
            limits: Arc::clone(&self.limits),
            protocols: protocols(bind, settings),
            tls: self.tls(settings)?,
            fields: self.fields(bind, settings),
            // With several, the handshake selects one.
            certificate_pem: match settings.certfile.as_slice() {
                [file] if self.options.acme_folder.is_none() => std::fs::read_to_string(file).ok(),
                _ => None,
            },
            role: self.role(bind, settings)?,
            meter: self.features.slot.clone(),
            connection_limits: self.connection_limits(trusted()?),
            refusals: self.features.refusals.clone(),
            ..ConnConfig::default()
        };
        if let Some(forwarded) = self.options.forwarded() {
            config.forwarded = forwarded;
            config.trusted = Some(trusted()?).filter(|trusted| !trusted.is_empty());
        }
        if settings.proxy_protocol && !bind.udp {
            let trusted = trusted()?;
            config.proxy_protocol = Some(Box::new(move |ip| {
                trusted.trusts(ip.map_or(PeerIp::Unix, PeerIp::Ip))
            }));
        }
        Ok(config)
    }

    /// Redirects on plain addresses with a port, if they are wanted.
    fn role(&self, bind: &Bind, settings: &AddressSettings) -> PyResult<Role> {
        let wanted = self.options.redirect_https;
        let Some(port) = wanted.filter(|_| !settings.tls && !is_unix(bind)) else {
            return Ok(Role::Application);
        };
        let with_tls = self
            .binds
            .iter()
            .filter(|bind| !bind.udp && !bind.metrics && !is_unix(bind) && self.settings(bind).tls);
        let ports = with_tls.filter_map(|bind| bind.address.rsplit_once(':')?.1.parse().ok());
        let port = Some(port)
            .filter(|&port| port != 0)
            .or_else(|| ports.min_by_key(|&port: &u16| port != HTTPS_PORT))
            .ok_or_else(|| PyValueError::new_err("redirect_https: no address has TLS"))?;
        Ok(Role::RedirectHttps { port })
    }

    /// `--limit-connections` and `--limit-connections-per-client`, which do not count the clients of `proxies`.
    fn connection_limits(&self, proxies: TrustedPeers) -> Option<Arc<ConnectionLimits>> {
        let options = self.options;
        let slot = self.features.slot.clone();
        let slot = slot.filter(|_| options.limits_connections())?;
        let per_client = options.limit_connections_per_client;
        slot.counts_clients
            .store(per_client.is_some().into(), Relaxed);
        Some(Arc::new(ConnectionLimits {
            total: options.limit_connections,
            per_client,
            proxies,
            memory: slot.slots().limits().cloned()?,
            slot,
            refusals: self.features.refusals.clone(),
        }))
    }

    /// `None` on a plain address.
    fn tls(&mut self, settings: &'a AddressSettings) -> PyResult<Option<TlsConfig>> {
        if !settings.tls {
            return Ok(None);
        }
        if let Some((_, tls)) = self.tls.iter().find(|(known, _)| *known == settings) {
            return Ok(Some(tls.clone()));
        }
        let options = self.options;
        let tls_settings = TlsSettings {
            identities: self.identities(settings),
            acme: options.acme(),
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
            alpn: alpn(settings),
        };
        let tls = TlsConfig::load(&tls_settings).map_err(|error| errors::setup(&error, "TLS"))?;
        self.tls.push((settings, tls.clone()));
        Ok(Some(tls))
    }

    /// The certificates with their keys; the password is that of every encrypted key.
    fn identities(&self, settings: &AddressSettings) -> Vec<Identity> {
        let files = settings.certfile.iter().enumerate();
        let identity = |(index, cert_file): (usize, &PathBuf)| Identity {
            cert_file: cert_file.clone(),
            key_file: settings.keyfile.get(index).cloned(),
            key_password: self.key_password.clone(),
        };
        files.map(identity).collect()
    }

    /// Headers of the responses of an address, without those that `--header` sets.
    fn fields(&self, bind: &Bind, settings: &AddressSettings) -> Vec<(&'static [u8], Vec<u8>)> {
        if !settings.tls {
            return Vec::new();
        }
        let mut fields: Vec<(&'static [u8], _)> = Vec::new();
        if let Some(alt_svc) = self.alt_svc(bind, settings) {
            fields.push((b"alt-svc", alt_svc));
        }
        if let Some(hsts) = &self.options.strict_transport_security {
            fields.push((b"strict-transport-security", hsts.clone().into_bytes()));
        }
        let set = &self.options.headers;
        fields.retain(|(name, _)| {
            !set.iter()
                .any(|(other, _)| other.eq_ignore_ascii_case(name))
        });
        fields
    }

    /// The value of `alt-svc` (RFC 7838) for clients of HTTP/1 and HTTP/2: HTTP/3 on the port of the address itself,
    /// else on the first one that has it.
    fn alt_svc(&self, bind: &Bind, settings: &AddressSettings) -> Option<Vec<u8>> {
        let max_age = self.options.http3_alt_svc_max_age;
        if bind.udp || max_age == 0 {
            return None;
        }
        let own = self.over_udp().find(|other| other.address == bind.address);
        let any = self.over_udp().next().filter(|_| settings.announces_http3);
        let (_, port) = own.or(any)?.address.rsplit_once(':')?;
        let port = self.options.http3_alt_svc_port.or(port.parse().ok())?;
        Some(format!("h3=\":{port}\"; ma={max_age}").into_bytes())
    }
}

fn is_unix(bind: &Bind) -> bool {
    bind.address.starts_with("unix:")
}

/// The versions of HTTP of a socket. With TLS, ALPN selects one of those over TCP.
fn protocols(bind: &Bind, settings: &AddressSettings) -> ProtocolPolicy {
    let has = |version| settings.http.contains(&version);
    match (has(1), has(2)) {
        _ if bind.udp => ProtocolPolicy::Http3,
        (true, false) => ProtocolPolicy::Http1,
        (false, true) => ProtocolPolicy::Http2,
        _ => ProtocolPolicy::Either,
    }
}

fn alpn(settings: &AddressSettings) -> Vec<Vec<u8>> {
    let known = [(2, b"h2".as_slice()), (1, b"http/1.1")];
    let served = known
        .iter()
        .filter(|(version, _)| settings.http.contains(version));
    served.map(|(_, name)| name.to_vec()).collect()
}

/// The proxies whose forwarding headers are trusted (`--forwarded-allow-ips`).
fn trusted_peers(bind: &Bind, settings: &AddressSettings) -> PyResult<TrustedPeers> {
    TrustedPeers::parse(&settings.forwarded_allow_ips.join(",")).map_err(|error| {
        PyValueError::new_err(format!("{}: forwarded_allow_ips: {error}", bind.address))
    })
}
