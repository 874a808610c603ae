//! Load over TLS: a handshake for each request, whose cost is part of its latency.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::scripted::{HELLO, load};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use towline_load::{Config, SendMode, Target, Trust, Until};

struct RecordReader {
    handshakes: AtomicU64,
    resumed: AtomicU64,
    protocols: Mutex<Vec<Option<Vec<u8>>>>,
    reads: Mutex<Vec<usize>>,
}

struct TlsServer {
    url: String,
    certificate: String,
    seen: Arc<RecordReader>,
}

fn server() -> TlsServer {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "https://localhost:{}/",
        listener.local_addr().unwrap().port()
    );
    let seen = Arc::new(RecordReader {
        handshakes: AtomicU64::new(0),
        resumed: AtomicU64::new(0),
        protocols: Mutex::default(),
        reads: Mutex::default(),
    });
    let noted = Arc::clone(&seen);
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let (config, seen) = (Arc::clone(&config), Arc::clone(&noted));
            thread::spawn(move || serve(socket, config, &seen));
        }
    });
    TlsServer {
        url,
        certificate: made.cert.pem(),
        seen,
    }
}

/// Returns one record at a time, however many have been received.
struct Records {
    socket: TcpStream,
    /// The received part of the current record.
    header: Vec<u8>,
    /// Unread bytes of its payload.
    left: usize,
}

impl Read for Records {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let wanted = if self.header.len() < 5 {
            5 - self.header.len()
        } else {
            self.left
        };
        let most = wanted.min(space.len());
        let n = self.socket.read(&mut space[..most])?;
        if self.header.len() < 5 {
            self.header.extend_from_slice(&space[..n]);
            if let [_, _, _, high, low] = self.header[..] {
                self.left = usize::from(u16::from_be_bytes([high, low]));
            }
        } else {
            self.left -= n;
            if self.left == 0 {
                self.header.clear();
            }
        }
        Ok(n)
    }
}

impl Write for Records {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn serve(socket: TcpStream, config: Arc<ServerConfig>, seen: &RecordReader) {
    let records = Records {
        socket,
        header: Vec::new(),
        left: 0,
    };
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), records);
    let mut request = Vec::new();
    let mut space = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut space) {
        if request.is_empty() {
            seen.handshakes.fetch_add(1, Ordering::Relaxed);
            let protocol = stream.conn.alpn_protocol().map(<[u8]>::to_vec);
            seen.protocols.lock().unwrap().push(protocol);
            let resumed = stream.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
            seen.resumed
                .fetch_add(u64::from(resumed), Ordering::Relaxed);
        }
        request.extend_from_slice(&space[..n]);
        seen.reads.lock().unwrap().push(n);
        if request.ends_with(b"\r\n\r\n") {
            let _ = stream.write_all(HELLO);
            if request.windows(17).any(|w| w == b"Connection: close") {
                stream.conn.send_close_notify();
                let _ = stream.flush();
                return;
            }
            request.clear();
        }
    }
}

fn config(server: &TlsServer, n: u64) -> Config {
    let mut config = Config::new(vec![Target::get(&server.url).unwrap()]);
    config.connections = 4;
    config.until = Until::Requests(n);
    config
}

#[test]
fn every_request_has_its_own_handshake_and_speaks_http_1_1() {
    let server = server();
    let mut config = config(&server, 40);
    config.requests_per_connection = Some(1);
    let report = load(&config).report;
    assert_eq!(
        (report.answered, report.errors.total()),
        (40, 0),
        "{report}"
    );
    assert_eq!(server.seen.handshakes.load(Ordering::Relaxed), 40);
    // A resumed handshake would not measure the full cost.
    assert_eq!(server.seen.resumed.load(Ordering::Relaxed), 0);
    let protocols = server.seen.protocols.lock().unwrap();
    assert!(
        protocols
            .iter()
            .all(|name| name.as_deref() == Some(b"http/1.1"))
    );
    assert_eq!(report.connect.count, 40, "{report}");
    assert!(
        report.service.at(50.0) >= report.connect.at(10.0),
        "{report}"
    );
}

#[test]
fn certificates_are_verified_against_the_trust() {
    let server = server();
    let path = std::env::temp_dir().join(format!("towline-load-ca-{}.pem", std::process::id()));
    std::fs::write(&path, &server.certificate).unwrap();
    let mut config = config(&server, 8);
    config.trust = Trust::Path(path.clone());
    let report = load(&config).report;
    std::fs::remove_file(&path).unwrap();
    assert_eq!((report.answered, report.errors.total()), (8, 0), "{report}");
    config.trust = Trust::System;
    let report = load(&config).report;
    assert_eq!(report.answered, 0, "{report}");
    assert!(report.errors.connect > 0, "{report}");
}

#[test]
fn each_piece_is_a_tls_record() {
    let server = server();
    let mut config = config(&server, 1);
    config.connections = 1;
    config.targets[0].send_mode = SendMode::Pieces {
        pieces: 4,
        gap: Duration::from_millis(20),
    };
    let report = load(&config).report;
    assert_eq!((report.answered, report.errors.total()), (1, 0), "{report}");
    assert!(report.response.min_us >= 60_000.0, "{report}");
    let reads = server.seen.reads.lock().unwrap();
    assert_eq!(reads.len(), 4, "{reads:?}");
}
