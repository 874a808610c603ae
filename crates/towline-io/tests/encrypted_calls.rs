//! Calls of the asynchronous client over TLS, and a handshake that stalls.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::support::calls::{DriverHarness, Scripted, get, request};
use crate::support::{MAX_WAIT, Server};
use bytes::Bytes;
use rcgen::{CertificateParams, KeyPair};
use towline_io::client::{
    Body, CallErrorKind, CallOptions, CallPhase, DialConfig, PoolStatus, Route, Timeouts,
};
use towline_io::{
    ClientTls, ClientTlsSettings, ConnConfig, Identity, TlsConfig, TlsSettings, Trust,
};
use towline_proto::ProtocolPolicy;

/// Starts a server for 127.0.0.1; returns it with client settings that trust only its certificate.
fn server(name: &str) -> (Server, Arc<ClientTls>) {
    server_with_alpn(name, &[b"http/1.1"])
}

fn server_with_alpn(name: &str, alpn: &[&[u8]]) -> (Server, Arc<ClientTls>) {
    let dir = std::env::temp_dir().join(format!("towline-calls-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let cert = params.self_signed(&key).unwrap();
    let (cert_file, key_file) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&cert_file, cert.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let settings = TlsSettings {
        identities: vec![Identity {
            cert_file: cert_file.clone(),
            key_file: Some(key_file),
            key_password: None,
        }],
        alpn: alpn.iter().map(|name| name.to_vec()).collect(),
        ..TlsSettings::default()
    };
    let server = Server::start(ConnConfig {
        tls: Some(TlsConfig::load(&settings).unwrap()),
        protocols: ProtocolPolicy::Either,
        ..ConnConfig::default()
    });
    let tls = ClientTls::new(ClientTlsSettings {
        trust: Trust::Path(cert_file),
        ..ClientTlsSettings::default()
    });
    tls.check().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    (server, Arc::new(tls))
}

#[test]
fn one_encrypted_connection_carries_call_after_call() {
    let (server, tls) = server("reuse");
    let route = Arc::new(Route::secure("127.0.0.1", server.addr.port(), tls));
    let mut harness = DriverHarness::new(|_| {});
    for _ in 0..20 {
        assert_eq!(harness.get(&route, "/").response().1, b"alive\r\n");
        assert_eq!(harness.get(&route, "/large").response().1.len(), 64 * 1024);
        let body = Body::Bytes(Bytes::from(vec![b'x'; 300_000]));
        let call = harness.begin(request(&route, "POST", "/upload", body));
        assert_eq!(harness.finish(call).response().1, b"300000");
    }
    let call = harness.begin(get(&route, "/"));
    let tls = harness
        .driver
        .info(call)
        .and_then(|facts| facts.tls.clone());
    assert!(tls.is_some());
    assert_eq!(harness.finish(call).response().0, 200);
    assert_eq!(server.accepted.load(Relaxed), 1);
}

fn harness_with(protocols: ProtocolPolicy) -> DriverHarness {
    DriverHarness::new(|config| {
        config.dial = Arc::new(DialConfig::default().with_protocols(protocols));
    })
}

#[test]
fn alpn_selects_the_protocol_and_only_http2_calls_share_a_connection() {
    for (alpn, at_most, least) in [
        (&[&b"h2"[..], b"http/1.1"][..], 1, 1),
        (&[b"http/1.1"], 30, 2),
        (&[], 30, 2),
    ] {
        let (server, tls) = server_with_alpn("alpn", alpn);
        let route = Arc::new(Route::secure("127.0.0.1", server.addr.port(), tls));
        let mut harness = harness_with(ProtocolPolicy::Either);
        let calls: Vec<_> = (0..30)
            .map(|_| harness.begin(get(&route, "/delay?ms=30")))
            .collect();
        for call in calls {
            assert_eq!(harness.finish(call).response().0, 200);
        }
        let accepted = server.accepted.load(Relaxed);
        assert!((least..=at_most).contains(&accepted), "{accepted}");
    }
}

#[test]
fn a_server_without_http2_is_an_error_if_only_http2_is_allowed() {
    for alpn in [&[][..], &[&b"http/1.1"[..]]] {
        let (server, tls) = server_with_alpn("only", alpn);
        let route = Arc::new(Route::secure("127.0.0.1", server.addr.port(), tls));
        let error = harness_with(ProtocolPolicy::Http2)
            .get(&route, "/")
            .failed();
        assert_eq!(error.kind, CallErrorKind::Tls, "{error}");
    }
}

#[test]
fn routes_with_different_trust_settings_do_not_share_connections() {
    let (server, tls) = server("trust");
    let route = Arc::new(Route::secure("127.0.0.1", server.addr.port(), tls));
    let strict = ClientTls::new(ClientTlsSettings {
        trust: Trust::Path("/nonexistent/store.pem".into()),
        ..ClientTlsSettings::default()
    });
    let strict = Arc::new(Route::secure(
        "127.0.0.1",
        server.addr.port(),
        Arc::new(strict),
    ));
    let mut harness = DriverHarness::new(|_| {});
    assert_eq!(harness.get(&route, "/").response().0, 200);
    assert_eq!(harness.get(&strict, "/").failed().kind, CallErrorKind::Tls);
    assert_eq!(harness.get(&route, "/").response().0, 200);
}

#[test]
fn a_handshake_that_stalls_is_a_connect_timeout() {
    let stalled = Scripted::new(|_, _stream| std::thread::sleep(MAX_WAIT));
    let tls = Arc::new(ClientTls::new(ClientTlsSettings {
        trust: Trust::Insecure,
        ..ClientTlsSettings::default()
    }));
    let route = Arc::new(Route::secure("127.0.0.1", stalled.addr.port(), tls));
    let mut harness = DriverHarness::new(|_| {});
    let options = CallOptions {
        timeouts: Timeouts {
            connect: Some(Duration::from_millis(500)),
            ..Timeouts::default()
        },
        ..CallOptions::default()
    };
    let start = Instant::now();
    let call = harness.driver.begin(get(&route, "/"), options).unwrap();
    let error = harness.finish(call).failed();
    assert_eq!(
        (error.kind, error.phase),
        (CallErrorKind::ConnectTimeout, CallPhase::Tls)
    );
    assert!(error.retryable);
    assert!(start.elapsed() >= Duration::from_millis(495) && start.elapsed() < MAX_WAIT / 2);
    assert_eq!(harness.driver.status(), PoolStatus::default());
}
