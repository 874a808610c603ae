//! A certificate authority, certificates of every kind, and servers that present them.

use std::io::{Read, Write};
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::tls::{ClientTls, ClientTlsSettings, Trust};

/// A certificate authority of one test, with a directory that is removed with it.
pub(super) struct Authority {
    ca: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

pub(super) struct ServerCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    pub(super) pem: String,
    pub(super) key_pem: String,
}

impl ServerCertificate {
    fn new(cert: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self {
            chain: vec![cert.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            pem: cert.pem(),
            key_pem: key.serialize_pem(),
        }
    }
}

/// A server configuration that lacks only its certificate.
type WithoutCertificate = rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>;

impl ServerCertificate {
    pub(super) fn install(self, builder: WithoutCertificate) -> ServerConfig {
        builder.with_single_cert(self.chain, self.key).unwrap()
    }
}

pub(super) fn params(name: &str) -> CertificateParams {
    CertificateParams::new(vec![name.to_owned()]).unwrap()
}

/// Makes a self-signed certificate, marked as an authority if `ca`, as `openssl req -x509` does.
pub(super) fn self_signed(name: &str, ca: bool) -> ServerCertificate {
    let key = KeyPair::generate().unwrap();
    let mut params = params(name);
    if ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    ServerCertificate::new(&params.self_signed(&key).unwrap(), &key)
}

impl Authority {
    pub(super) fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("towline-dial-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, format!("authority of {test}"));
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
        Self { ca, dir }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(super) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.der().clone()).unwrap();
        roots
    }

    pub(super) fn sign(&self, params: &CertificateParams) -> ServerCertificate {
        let key = KeyPair::generate().unwrap();
        ServerCertificate::new(&params.signed_by(&key, &self.ca).unwrap(), &key)
    }

    pub(super) fn for_years(&self, name: &str, from: i32, to: i32) -> ServerCertificate {
        let mut params = params(name);
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        self.sign(&params)
    }

    pub(super) fn settings(&self) -> ClientTlsSettings {
        ClientTlsSettings {
            trust: Trust::Path(self.path("ca.pem")),
            ..ClientTlsSettings::default()
        }
    }

    /// Client settings that trust this authority.
    pub(super) fn client(&self) -> Arc<ClientTls> {
        Arc::new(ClientTls::new(self.settings()))
    }

    /// Server configuration; it requires client certificates of this authority if `client_auth`.
    pub(super) fn server(&self, certificate: ServerCertificate, client_auth: bool) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if client_auth {
            let roots = self.roots();
            let provider = Arc::new(ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        certificate.install(builder)
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Adds the server's TLS to a stream. The first read runs the handshake.
pub(super) fn accept_tls<S: io::Read + io::Write>(
    stream: S,
    config: &Arc<ServerConfig>,
) -> StreamOwned<ServerConnection, S> {
    StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream)
}

/// Starts a server that echoes over TLS on every connection.
pub(super) fn tls_server(config: ServerConfig) -> SocketAddr {
    let (listener, addr) = listener("127.0.0.1:0");
    let config = Arc::new(config);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = accept_tls(stream.unwrap(), &config);
            thread::spawn(move || {
                echo(&mut stream);
                stream.conn.send_close_notify();
                let _ = stream.flush();
            });
        }
    });
    addr
}

/// Reads until an empty line.
pub(super) fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}
