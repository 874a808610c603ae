//! Failures before there is a connection: name lookup, connect, proxy, TLS.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use towline_io::client::{CallErrorKind, CallPhase, Proxy, ProxyScheme, Route};
use towline_io::{ClientTls, ClientTlsSettings};

use super::case::{Case, SHORT, Verdict, Version, close, drain, on_both, verdict};
use crate::support::calls::{Scripted, head, route, send};
use crate::support::refusing_addr;

/// Runs a POST with both versions. Nothing of it is sent, so the versions agree to the letter.
fn on_every_path(route: &Arc<Route>) -> Verdict {
    let case = Case::new("POST");
    let over1 = on_both(&case, Version::Http1, route);
    assert_eq!(over1, on_both(&case, Version::Http2, route));
    over1
}

/// A route with TLS through a proxy.
fn through(scheme: ProxyScheme, proxy: SocketAddr) -> Arc<Route> {
    let tls = Arc::new(ClientTls::new(ClientTlsSettings::default()));
    let proxy = Proxy::new(scheme, &proxy.ip().to_string(), proxy.port());
    Arc::new(Route {
        proxy: Some(Arc::new(proxy)),
        ..Route::secure("origin.test", 443, tls)
    })
}

#[test]
fn a_refused_connection_may_be_retried() {
    let route = route(refusing_addr());
    let case = Case::new("POST");
    let over1 = on_both(&case, Version::Http1, &route);
    assert_eq!(
        over1.is(),
        verdict(CallErrorKind::Connect, CallPhase::Connect, true)
    );
    assert_eq!(over1, on_both(&case, Version::Http2, &route));
}

#[test]
fn a_name_without_an_address_may_be_retried() {
    // A label of 64 bytes cannot be asked for (RFC 1035 2.3.4), so no name server has a part in this.
    let host = format!("{}.test", "x".repeat(64));
    let found = on_every_path(&Arc::new(Route::plain(&host, 80)));
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::Dns, CallPhase::Dns, true)
    );
}

#[test]
fn a_proxy_that_refuses_the_connection_may_be_retried() {
    for scheme in [ProxyScheme::Http, ProxyScheme::Socks5h] {
        let found = on_every_path(&through(scheme, refusing_addr()));
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::Connect, CallPhase::Connect, true)
        );
    }
}

#[test]
fn a_proxy_that_refuses_the_tunnel_is_a_proxy_error() {
    let responses = [
        "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "not HTTP\r\n\r\n",
        "HTTP/1.1 200 OK\r\nconte",
        "",
    ];
    for response in responses {
        let proxy = Scripted::new(move |_, mut stream| {
            if head(&mut stream).is_some() {
                send(&mut stream, response);
                close(&stream);
            }
        });
        let found = on_every_path(&through(ProxyScheme::Http, proxy.addr));
        let expected = verdict(CallErrorKind::Proxy, CallPhase::Proxy, true);
        assert_eq!(found.is(), expected, "{response:?}: {found:?}");
    }
}

#[test]
fn a_socks_proxy_that_refuses_is_a_proxy_error() {
    // No method is acceptable; a reply of another version (RFC 1928 3).
    for response in [[5, 0xff], [4, 0]] {
        let proxy = Scripted::new(move |_, mut stream| {
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(&response);
            close(&stream);
        });
        let found = on_every_path(&through(ProxyScheme::Socks5h, proxy.addr));
        let expected = verdict(CallErrorKind::Proxy, CallPhase::Proxy, true);
        assert_eq!(found.is(), expected, "{response:?}: {found:?}");
    }
}

#[test]
fn a_tls_handshake_that_fails_or_stalls_may_be_retried() {
    let secure = |server: &Scripted| {
        let tls = Arc::new(ClientTls::new(ClientTlsSettings::default()));
        Arc::new(Route::secure("127.0.0.1", server.addr.port(), tls))
    };
    // First no TLS at all, then no response.
    let plain = Scripted::new(|_, mut stream| {
        let _ = stream.read(&mut [0; 512]);
        send(&mut stream, "HTTP/1.1 400 Bad Request\r\n\r\n");
        drain(&stream);
    });
    let timed_out = Scripted::new(|_, stream| drain(&stream));
    for version in Version::ALL {
        let case = Case::new("POST");
        let found = on_both(&case, version, &secure(&plain));
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::Tls, CallPhase::Tls, true)
        );
        let case = case.with_timeouts(|timeouts| timeouts.connect = Some(SHORT));
        let found = on_both(&case, version, &secure(&timed_out));
        assert_eq!(found.kind, CallErrorKind::ConnectTimeout);
        assert!(found.retryable);
    }
}
