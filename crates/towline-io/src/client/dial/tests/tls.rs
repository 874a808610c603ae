//! TLS handshakes, and the messages of those that fail.

use std::io::{Read, Write};

use rustls::HandshakeKind::{Full, Resumed};

use super::certs::{Authority, ServerCertificate, accept_tls, params, self_signed, tls_server};
use super::*;
use crate::tls::{ClientTls, ClientTlsSettings, Identity, MinVersion, Trust};

fn secure(name: &str, addr: SocketAddr, tls: &Arc<ClientTls>) -> (Route, DialConfig) {
    let route = Route::secure(name, addr.port(), Arc::clone(tls));
    (route, with_overrides(name, &[addr]))
}

/// Error of a client that trusts `authority`, for a server of "host" that presents `certificate`.
fn handshake_error(authority: &Authority, certificate: ServerCertificate) -> String {
    let addr = tls_server(authority.server(certificate, false));
    let (route, config) = secure("host", addr, &authority.client());
    let error = refused(&route, &config);
    assert_eq!(
        (error.kind, error.phase),
        (DialErrorKind::Tls, DialPhase::Tls),
        "{error}"
    );
    let peer = format!("host:{}", addr.port());
    assert!(error.message.contains(&peer), "{error}");
    error.message.replace(&peer, "PEER")
}

#[test]
fn tls_carries_data_and_alpn_is_chosen() {
    let authority = Authority::new("alpn");
    let mut server = authority.server(authority.sign(&params("host")), false);
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let addr = tls_server(server);
    let tls = authority.client();
    for client in CLIENTS {
        let (route, config) = secure("host", addr, &tls);
        let mut established = dial(client, &route, &config).unwrap();
        assert_eq!(established.alpn.as_deref(), Some(&b"http/1.1"[..]));
        assert!(established.timings.tls.is_some());
        assert_echoes(&mut established);
        let large: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        for piece in large.chunks(50_000) {
            send(&mut established, piece);
            assert!(receive(&mut established, piece.len()) == piece);
        }
        let info = established.transport.tls().unwrap().info().unwrap();
        assert_eq!((info.version, info.peer_certs.len()), (0x0304, 1));
    }
}

#[test]
fn invalid_certificates_are_refused_with_the_reason() {
    let authority = Authority::new("certificates");
    let other = Authority::new("other");
    let cases = [
        (
            authority.for_years("host", 2000, 2001),
            "has expired; if it should not have, check this machine's clock",
        ),
        (
            authority.for_years("host", 2090, 2095),
            "is not valid yet; check this machine's clock",
        ),
        (
            authority.sign(&params("elsewhere")),
            "is not for the name \"host\", but for elsewhere",
        ),
        (
            other.sign(&params("host")),
            "is signed by an authority that is not trusted here (unknown CA)",
        ),
        (
            self_signed("host", false),
            "is self-signed; name it as a CA file to trust it",
        ),
        (
            self_signed("host", true),
            "is self-signed; name it as a CA file to trust it",
        ),
    ];
    for (certificate, text) in cases {
        let message = handshake_error(&authority, certificate);
        assert!(
            message.starts_with("the certificate of PEER ") && message.contains(text),
            "{message}"
        );
    }
}

#[test]
fn a_certificate_in_the_ca_file_is_trusted_for_its_name() {
    let authority = Authority::new("pinned");
    for ca in [false, true] {
        let certificate = self_signed("host", ca);
        let trust = Trust::Path(authority.write("own.pem", &certificate.pem));
        let addr = tls_server(authority.server(certificate, false));
        let tls = Arc::new(ClientTls::new(ClientTlsSettings {
            trust,
            ..ClientTlsSettings::default()
        }));
        let (route, config) = secure("host", addr, &tls);
        assert_echoes(&mut dial(Client::Async, &route, &config).unwrap());
        let (route, config) = secure("wrong", addr, &tls);
        let error = refused(&route, &config);
        assert!(
            error
                .message
                .contains("is not for the name \"wrong\", but for"),
            "{error}"
        );
    }
}

#[test]
fn trust_comes_from_a_directory_or_is_switched_off() {
    let authority = Authority::new("directory");
    let addr = tls_server(authority.server(authority.sign(&params("host")), false));
    let echoes = |trust, name| {
        let settings = ClientTlsSettings {
            trust,
            ..ClientTlsSettings::default()
        };
        let (route, config) = secure(name, addr, &Arc::new(ClientTls::new(settings)));
        dial(Client::Blocking, &route, &config)
            .map(|mut established| assert_echoes(&mut established))
    };
    echoes(Trust::Path(authority.path("")), "host").unwrap();
    echoes(Trust::Insecure, "any-name").unwrap();
    let missing = authority.path("missing.pem");
    let error = echoes(Trust::Path(missing.clone()), "host").unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "{}: No such file or directory (os error 2)",
            missing.display()
        )
    );
    let empty = authority.write("empty.pem", "nothing");
    let error = echoes(Trust::Path(empty.clone()), "host").unwrap_err();
    let expected = format!(
        "{}: no certificate (PEM section CERTIFICATE) in it",
        empty.display()
    );
    assert_eq!((error.kind, error.message), (DialErrorKind::Tls, expected));
}

#[test]
fn another_server_name_is_sent_and_verified() {
    let authority = Authority::new("sni");
    let server = Arc::new(authority.server(authority.sign(&params("inner")), false));
    let (addr, server_thread) = serve(move |stream| {
        let mut tls = accept_tls(stream, &server);
        tls.read_exact(&mut [0]).unwrap();
        tls.conn.server_name().map(str::to_owned)
    });
    let (mut route, config) = secure("outer", addr, &authority.client());
    route.sni = Some("inner".into());
    send(&mut dial(Client::Blocking, &route, &config).unwrap(), b"x");
    assert_eq!(server_thread.join().unwrap().as_deref(), Some("inner"));
    // For an IP address, the certificate must name that address.
    let addr = tls_server(authority.server(authority.sign(&params("127.0.0.1")), false));
    let route = Route::secure("127.0.0.1", addr.port(), authority.client());
    assert_echoes(&mut dial(Client::Async, &route, &DialConfig::default()).unwrap());
}

#[test]
fn a_client_certificate_is_sent_and_its_absence_reported() {
    let authority = Authority::new("client");
    let server = authority.server(authority.sign(&params("host")), true);
    let addr = tls_server(server);
    let certificate = authority.sign(&params("client"));
    let identity = Identity {
        cert_file: authority.write("client.pem", &certificate.pem),
        key_file: Some(authority.write("client.key", &certificate.key_pem)),
        key_password: None,
    };
    let with = |identity, min_version| {
        let settings = ClientTlsSettings {
            identity,
            min_version,
            ..authority.settings()
        };
        secure("host", addr, &Arc::new(ClientTls::new(settings)))
    };
    let (route, config) = with(Some(identity.clone()), MinVersion::Tls13);
    assert_echoes(&mut dial(Client::Async, &route, &config).unwrap());
    let wrong = Identity {
        key_file: Some(authority.path("ca.pem")),
        ..identity
    };
    let (route, config) = with(Some(wrong), MinVersion::Tls12);
    let error = refused(&route, &config);
    assert!(error.message.contains("ca.pem: no private key"), "{error}");
    // In TLS 1.3 the client finishes before the server has verified it (RFC 8446 4.4.2.4).
    let (route, config) = with(None, MinVersion::Tls12);
    let mut established = dial(Client::Blocking, &route, &config).unwrap();
    let error = receive_error(&mut established);
    let text = crate::tls::explain(&error, "PEER");
    assert_eq!(
        text,
        "PEER refused the TLS handshake: it wants a client certificate (alert CertificateRequired)"
    );
}

#[test]
fn sessions_are_resumed() {
    let authority = Authority::new("resumed");
    let server = Arc::new(authority.server(authority.sign(&params("host")), false));
    let (listener, addr) = listener("127.0.0.1:0");
    let kinds = thread::spawn(move || {
        let mut kinds = Vec::new();
        for stream in listener.incoming().take(2) {
            let mut tls = accept_tls(stream.unwrap(), &server);
            let mut byte = [0];
            tls.read_exact(&mut byte).unwrap();
            kinds.push(tls.conn.handshake_kind().unwrap());
            tls.write_all(&byte).unwrap();
            let _ = tls.read(&mut byte);
        }
        kinds
    });
    let tls = authority.client();
    for client in CLIENTS {
        let (route, config) = secure("host", addr, &tls);
        let mut established = dial(client, &route, &config).unwrap();
        send(&mut established, b"x");
        // The session ticket arrives before this byte.
        receive(&mut established, 1);
    }
    assert_eq!(kinds.join().unwrap(), [Full, Resumed]);
}

#[test]
fn failed_handshakes_are_described() {
    let authority = Authority::new("handshake-failures");
    let tls = authority.client();
    let failure_of = |work: fn(TcpStream), client, expected| {
        let (addr, server) = serve(work);
        let (route, mut config) = secure("host", addr, &tls);
        let is_silent = expected == DialErrorKind::Timeout;
        config.connect_timeout = Some(if is_silent {
            Duration::from_millis(400)
        } else {
            MAX_WAIT
        });
        let Err(error) = dial(client, &route, &config) else {
            panic!("the handshake succeeded");
        };
        server.join().unwrap();
        assert_eq!(error.phase, DialPhase::Tls);
        (
            error.kind,
            error
                .message
                .replace(&format!("host:{}", addr.port()), "PEER"),
        )
    };
    let cases: [(fn(TcpStream), _, _); 4] = [
        (
            |mut stream| {
                let _ = stream.read(&mut [0; 2000]).unwrap();
                stream
                    .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    .unwrap();
                let _ = stream.read(&mut [0; 2000]);
            },
            DialErrorKind::Tls,
            "PEER does not speak TLS; is it http://?",
        ),
        (
            |mut stream| {
                let _ = stream.read(&mut [0; 2000]).unwrap();
            },
            DialErrorKind::Tls,
            "PEER closed the connection during the TLS handshake",
        ),
        (
            |mut stream| {
                let _ = stream.read(&mut [0; 2000]).unwrap();
                // handshake_failure (RFC 8446 6.2)
                stream.write_all(b"\x15\x03\x03\x00\x02\x02\x28").unwrap();
                let _ = stream.read(&mut [0; 2000]);
            },
            DialErrorKind::Tls,
            "PEER refused the TLS handshake: no cipher, key or signature in common (alert HandshakeFailure)",
        ),
        (
            |mut stream| while matches!(stream.read(&mut [0; 2000]), Ok(1..)) {},
            DialErrorKind::Timeout,
            "no end of the TLS handshake with PEER within 0.4 s",
        ),
    ];
    for client in CLIENTS {
        for (work, kind, message) in &cases {
            let (failure, text) = failure_of(*work, client, *kind);
            let (text, hint) = text.split_once("; rustls has").unwrap_or((&text, ""));
            assert_eq!((failure, text), (*kind, *message));
            let is_beyond_rustls = text.contains("HandshakeFailure");
            assert_eq!(hint.contains("verify=ssl"), is_beyond_rustls, "{hint}");
        }
    }
}

#[test]
fn a_server_below_the_minimum_version_is_refused() {
    let authority = Authority::new("versions");
    let server = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS12])
    .unwrap()
    .with_no_client_auth();
    let certificate = authority.sign(&params("host"));
    let addr = tls_server(certificate.install(server));
    let with = |min_version| {
        let settings = ClientTlsSettings {
            min_version,
            ..authority.settings()
        };
        secure("host", addr, &Arc::new(ClientTls::new(settings)))
    };
    let (route, config) = with(MinVersion::Tls12);
    assert_echoes(&mut dial(Client::Async, &route, &config).unwrap());
    let (route, config) = with(MinVersion::Tls13);
    let error = refused(&route, &config);
    assert!(error.message.contains("no version of TLS"), "{error}");
}

#[test]
fn tls_files_are_read_once_on_a_helper_thread() {
    let authority = Authority::new("lazy");
    let tls = authority.client();
    let first = tls.load().unwrap();
    let start = Instant::now();
    while first.as_ref().is_some_and(|task| task.outcome().is_none()) {
        assert!(start.elapsed() < MAX_WAIT);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(first.is_some());
    assert!(tls.load().unwrap().is_none());
    // The file is not needed any more.
    std::fs::remove_file(authority.path("ca.pem")).unwrap();
    tls.check().unwrap();
}
