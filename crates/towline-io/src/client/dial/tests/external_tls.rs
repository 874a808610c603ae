//! TLS of an external library: here rustls again, fed through memory like an `ssl.MemoryBIO`.

use std::io::{Read, Write};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::certs::{Authority, params, tls_server};
use super::*;
use crate::tls::{ClientTls, ExternalTls, ExternalTlsContext, TlsInfo};

struct Context(Arc<rustls::ClientConfig>);

struct Memory(ClientConnection);

impl ExternalTlsContext for Context {
    fn connect(&self, server_name: &str, alpn: &[Vec<u8>]) -> io::Result<Box<dyn ExternalTls>> {
        let name = ServerName::try_from(server_name.to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new_with_alpn(Arc::clone(&self.0), name, alpn.to_vec());
        let tls = tls.map_err(io::Error::other)?;
        Ok(Box::new(Memory(tls)))
    }
}

impl ExternalTls for Memory {
    fn received(&mut self, mut records: &[u8]) -> io::Result<()> {
        while !records.is_empty() {
            self.0.read_tls(&mut records)?;
            let external = |error| io::Error::other(format!("external: {error}"));
            self.0.process_new_packets().map_err(external)?;
        }
        Ok(())
    }

    fn received_eof(&mut self) {
        let _ = self.0.read_tls(&mut io::empty());
    }

    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        self.0.reader().read(space)
    }

    fn write(&mut self, plain: &[u8]) -> io::Result<usize> {
        self.0.writer().write(plain)
    }

    fn take_records(&mut self, into: &mut Vec<u8>) {
        while self.0.wants_write() {
            self.0.write_tls(into).unwrap();
        }
    }

    fn close_notify(&mut self) {
        self.0.send_close_notify();
    }

    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    fn info(&self) -> Option<TlsInfo> {
        Some(TlsInfo {
            version: self.0.protocol_version()?.into(),
            cipher_suite: 0,
            alpn: self.0.alpn_protocol().map(<[u8]>::to_vec),
            peer_certs: Vec::new(),
            server_name: None,
        })
    }
}

fn context(roots: rustls::RootCertStore) -> Arc<ClientTls> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(ClientTls::external(Box::new(Context(Arc::new(config)))))
}

#[test]
fn external_tls_carries_all_bytes() {
    let authority = Authority::new("external");
    let mut server = authority.server(authority.sign(&params("host")), false);
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let addr = tls_server(server);
    for client in CLIENTS {
        let route = Route::secure("host", addr.port(), context(authority.roots()));
        let mut established = dial(client, &route, &with_overrides("host", &[addr])).unwrap();
        assert_eq!(established.alpn.as_deref(), Some(&b"http/1.1"[..]));
        let large: Vec<u8> = (0..600_000u32).map(|n| (n % 251) as u8).collect();
        for piece in large.chunks(100_000) {
            send(&mut established, piece);
            assert!(receive(&mut established, piece.len()) == piece);
        }
        let tls = established
            .transport
            .stream_mut()
            .unwrap()
            .tls
            .as_mut()
            .unwrap();
        tls.close_notify();
        assert!(!tls.accepts_plaintext());
        send(&mut established, b"");
        let start = Instant::now();
        while established
            .transport
            .stream_mut()
            .unwrap()
            .recv(&mut [0; 16])
            .unwrap()
            != RecvOutcome::Eof
        {
            assert!(start.elapsed() < MAX_WAIT);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn an_external_tls_error_is_passed_on() {
    let authority = Authority::new("external-error");
    let addr = tls_server(authority.server(authority.sign(&params("elsewhere")), false));
    let route = Route::secure("host", addr.port(), context(authority.roots()));
    let error = refused(&route, &with_overrides("host", &[addr]));
    assert_eq!(error.kind, DialErrorKind::Tls);
    assert!(
        error.message.contains("external: invalid peer certificate"),
        "{error}"
    );
}

#[test]
fn a_connection_closed_without_close_notify_is_an_error() {
    let authority = Authority::new("external-cut");
    let server = Arc::new(authority.server(authority.sign(&params("host")), false));
    let (addr, server_thread) = serve(move |stream| {
        let mut tls = super::certs::accept_tls(stream, &server);
        tls.write_all(b"half").unwrap();
        tls.flush().unwrap();
        // The socket closes without close_notify.
        drop(tls);
    });
    let route = Route::secure("host", addr.port(), context(authority.roots()));
    let mut established = dial(Client::Blocking, &route, &with_overrides("host", &[addr])).unwrap();
    assert_eq!(receive(&mut established, 4), b"half");
    server_thread.join().unwrap();
    let error = receive_error(&mut established);
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}
