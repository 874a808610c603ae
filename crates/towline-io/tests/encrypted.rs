//! TLS of the server: files, handshakes, certificates of both sides, and truncation.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Server, exchange, get, post, read_response};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use towline_io::{
    ClientCerts, ConnConfig, EngineConfig, Identity, Listener, TlsConfig, TlsSettings,
};
use towline_proto::Limits;

/// A directory with the certificates of an authority, a server and a client.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("towline-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
        for name in ["localhost", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let cert = params.signed_by(&key, &ca).unwrap();
            std::fs::write(dir.join(format!("{name}.pem")), cert.pem()).unwrap();
            std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn identity(&self, name: &str) -> Identity {
        Identity {
            cert_file: self.path(&format!("{name}.pem")),
            key_file: Some(self.path(&format!("{name}.key"))),
            key_password: None,
        }
    }

    fn settings(&self, client_certs: ClientCerts) -> TlsSettings {
        TlsSettings {
            identities: vec![self.identity("localhost")],
            client_certs,
            ca_file: Some(self.path("ca.pem")),
            alpn: vec![b"http/1.1".to_vec()],
            ..TlsSettings::default()
        }
    }

    fn server(&self, client_certs: ClientCerts, limits: Limits, config: EngineConfig) -> Server {
        let service = ConnConfig {
            limits: Arc::new(limits),
            tls: Some(TlsConfig::load(&self.settings(client_certs)).unwrap()),
            ..ConnConfig::default()
        };
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 64).unwrap();
        Server::on(listener, service, config)
    }

    fn plain_server(&self) -> Server {
        self.server(
            ClientCerts::NotRequested,
            Limits::server(),
            EngineConfig::default(),
        )
    }

    fn client(&self, with_cert: bool) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = if with_cert {
            let cert = CertificateDer::from_pem_file(self.path("client.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(self.path("client.key")).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }

    fn connect(
        &self,
        server: &Server,
        with_cert: bool,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from("localhost").unwrap();
        let config = Arc::new(self.client(with_cert));
        StreamOwned::new(
            ClientConnection::new(config, name).unwrap(),
            server.connect(),
        )
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn requests_go_through_tls() {
    let files = Files::new("requests");
    let server = files.plain_server();
    let mut stream = files.connect(&server, false);
    for _ in 0..10 {
        assert_eq!(exchange(&mut stream, &get("/")).body, b"alive\r\n");
    }
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let body: Vec<u8> = (0..200_000u32).map(|n| (n % 249) as u8).collect();
    assert!(exchange(&mut stream, &post("/upload", &body)).body == b"200000");
    for _ in 0..20 {
        stream.write_all(&get("/large")).unwrap();
    }
    for _ in 0..20 {
        assert_eq!(read_response(&mut stream).body.len(), 65_536);
    }
}

#[test]
fn a_close_sends_close_notify() {
    let files = Files::new("close");
    let server = files.plain_server();
    let mut stream = files.connect(&server, false);
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut text = Vec::new();
    // rustls gives `UnexpectedEof` when close_notify is missing.
    stream.read_to_end(&mut text).unwrap();
    assert!(text.ends_with(b"alive\r\n"));
}

#[test]
fn a_file_is_sent_encrypted() {
    let files = Files::new("file");
    let server = files.plain_server();
    let content: Vec<u8> = (0..1_000_000u32).map(|n| (n % 253) as u8).collect();
    std::fs::write(files.path("content"), &content).unwrap();
    let mut stream = files.connect(&server, false);
    let target = format!("/file?path={}", files.path("content").display());
    assert!(exchange(&mut stream, &get(&target)).body == content);
    assert_eq!(exchange(&mut stream, &get("/")).status, 200);
}

#[test]
fn client_certificates_are_requested_as_configured() {
    let files = Files::new("client");
    let config = EngineConfig::default;
    let required = files.server(ClientCerts::Required, Limits::server(), config());
    assert_eq!(
        exchange(&mut files.connect(&required, true), &get("/")).status,
        200
    );
    let mut stream = files.connect(&required, false);
    let error = stream
        .write_all(&get("/"))
        .and_then(|()| stream.read_exact(&mut [0; 8]));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("CertificateRequired")
    );
    let optional = files.server(ClientCerts::Optional, Limits::server(), config());
    for with_cert in [true, false] {
        assert_eq!(
            exchange(&mut files.connect(&optional, with_cert), &get("/")).status,
            200
        );
    }
}

#[test]
fn a_handshake_that_stalls_ends_at_the_header_deadline() {
    let files = Files::new("stall");
    let header_timeout = Some(Duration::from_millis(150));
    let limits = Limits {
        header_timeout,
        ..Limits::server()
    };
    let server = files.server(ClientCerts::NotRequested, limits, EngineConfig::default());
    let mut stalled = server.connect();
    let start = Instant::now();
    assert_eq!(stalled.read(&mut [0; 8]).unwrap_or(0), 0);
    assert!(start.elapsed() >= Duration::from_millis(140));
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_oldest_handshake_is_evicted() {
    let files = Files::new("flood");
    let config = EngineConfig {
        max_handshakes: 8,
        ..EngineConfig::default()
    };
    let server = files.server(ClientCerts::NotRequested, Limits::server(), config);
    let mut stalled: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
    assert_eq!(
        exchange(&mut files.connect(&server, false), &get("/")).status,
        200
    );
    assert_eq!(
        stalled[0].read(&mut [0; 8]).unwrap_or(0),
        0,
        "the first one still holds"
    );
    stalled[19]
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    assert!(
        stalled[19].read(&mut [0; 8]).is_err(),
        "the last one was closed"
    );
}

#[test]
fn plain_http_on_a_tls_port_gets_a_readable_refusal() {
    let files = Files::new("plain");
    let server = files.plain_server();
    let mut stream = server.connect();
    stream.write_all(&get("/")).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert!(bytes.starts_with(b"HTTP/1.1 400 "), "{bytes:?}");
}

#[test]
fn errors_name_the_file() {
    let files = Files::new("errors");
    let load = |cert: &Path, key: &Path| {
        let settings = TlsSettings {
            identities: vec![Identity {
                cert_file: cert.to_owned(),
                key_file: Some(key.to_owned()),
                key_password: None,
            }],
            ..TlsSettings::default()
        };
        TlsConfig::load(&settings).unwrap_err().to_string()
    };
    let (cert, key) = (files.path("localhost.pem"), files.path("localhost.key"));
    let missing = files.path("missing.pem");
    assert!(load(&missing, &key).contains("missing.pem: "));
    assert!(load(&cert, &missing).contains("missing.pem: "));
    assert!(load(&key, &key).contains("localhost.key: no certificate"));
    assert!(load(&cert, &cert).contains("localhost.pem: no private key"));
    assert!(load(&cert, &files.path("client.key")).contains("client.key: "));
    let encrypted = files.path("encrypted.key");
    for text in [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nMIIB\n\
         -----END RSA PRIVATE KEY-----\n",
    ] {
        std::fs::write(&encrypted, text).unwrap();
        let error = load(&cert, &encrypted);
        assert!(
            error.contains("encrypted.key: the private key is encrypted"),
            "{error}"
        );
    }
}
