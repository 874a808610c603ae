//! Dials through proxies that the tests implement.

use std::io::{Read, Write};

use super::certs::{Authority, accept_tls, params, read_head, tls_server};
use super::*;
use crate::client::dial::resolve::LookupError;
use crate::client::route::{Credentials, Proxy, ProxyScheme};

/// Copies bytes between two streams, in both directions, until one ends.
fn forward(near: &TcpStream, far: &TcpStream) {
    let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
    let other = thread::spawn(move || {
        let _ = io::copy(&mut &back.0, &mut &back.1);
        let _ = back.1.shutdown(std::net::Shutdown::Both);
    });
    let _ = io::copy(&mut &*near, &mut &*far);
    let _ = far.shutdown(std::net::Shutdown::Both);
    other.join().unwrap();
}

fn through(route: &Route, scheme: ProxyScheme, proxy: SocketAddr) -> Route {
    let proxy = Proxy::new(scheme, &proxy.ip().to_string(), proxy.port());
    Route {
        proxy: Some(Arc::new(proxy)),
        ..route.clone()
    }
}

/// Accepts CONNECT and forwards the bytes. The thread returns the head of the request.
fn connect_proxy(origin: SocketAddr) -> (SocketAddr, JoinHandle<String>) {
    serve(move |mut stream| {
        let head = read_head(&mut stream);
        let far = TcpStream::connect(origin).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        forward(&stream, &far);
        head
    })
}

#[test]
fn https_goes_through_a_tunnel() {
    let authority = Authority::new("tunnel");
    let origin = tls_server(authority.server(authority.sign(&params("origin")), false));
    for client in CLIENTS {
        let (addr, requests) = connect_proxy(origin);
        let route = Route::secure("origin", 443, authority.client());
        let route = through(&route, ProxyScheme::Http, addr);
        let mut established = dial(client, &route, &DialConfig::default()).unwrap();
        assert_eq!(established.remote, PeerAddr::Inet(addr));
        let timings = established.timings;
        assert!(timings.proxy.is_some() && timings.tls.is_some() && timings.dns.is_none());
        assert_echoes(&mut established);
        drop(established);
        assert_eq!(
            requests.join().unwrap(),
            "CONNECT origin:443 HTTP/1.1\r\nHost: origin:443\r\n\r\n"
        );
    }
}

#[test]
fn plain_http_is_forwarded() {
    let (addr, proxy) = serve(|mut stream| echo(&mut stream));
    let route = through(&Route::plain("origin", 80), ProxyScheme::Http, addr);
    let mut established = dial(Client::Async, &route, &DialConfig::default()).unwrap();
    assert!(route.absolute_form() && established.timings.proxy.is_none());
    assert_echoes(&mut established);
    drop(established);
    proxy.join().unwrap();
}

/// Starts a proxy that is reached over TLS and forwards the bytes inside.
fn https_proxy(authority: &Authority, origin: SocketAddr) -> SocketAddr {
    let config = Arc::new(authority.server(authority.sign(&params("proxy")), false));
    serve(move |stream| {
        let mut near = accept_tls(stream, &config);
        read_head(&mut near);
        let mut far = TcpStream::connect(origin).unwrap();
        near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        near.sock.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let start = Instant::now();
        while start.elapsed() < MAX_WAIT {
            if copy_available(&mut near, &mut far) == Some(0)
                || copy_available(&mut far, &mut near) == Some(0)
            {
                return;
            }
            thread::sleep(Duration::from_micros(100));
        }
    })
    .0
}

/// Copies the bytes available; `Some(0)` at the end of the stream.
fn copy_available(from: &mut impl Read, to: &mut impl Write) -> Option<usize> {
    let mut space = [0; 8 * 1024];
    let bytes = match from.read(&mut space) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
        Err(_) => 0,
    };
    let mut rest = &space[..bytes];
    while !rest.is_empty() {
        match to.write(rest) {
            Ok(sent) => rest = &rest[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Some(0),
        }
    }
    while to
        .flush()
        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    {}
    Some(bytes)
}

#[test]
fn tls_runs_within_tls_to_the_proxy() {
    let authority = Authority::new("within");
    let origin = tls_server(authority.server(authority.sign(&params("origin")), false));
    for client in CLIENTS {
        let proxy = https_proxy(&authority, origin);
        let route = Route::secure("origin", 443, authority.client());
        let mut route = through(&route, ProxyScheme::Https, proxy);
        let named = Proxy::new(ProxyScheme::Https, "proxy", proxy.port());
        route.proxy = Some(Arc::new(named));
        let mut established = dial(client, &route, &with_overrides("proxy", &[proxy])).unwrap();
        let large: Vec<u8> = (0..2_000_000u32).map(|n| (n % 251) as u8).collect();
        for piece in large.chunks(200_000) {
            send(&mut established, piece);
            assert!(receive(&mut established, piece.len()) == piece);
        }
        let info = established.transport.tls().unwrap().info().unwrap();
        assert_eq!(info.peer_certs.len(), 1);
    }
    // The certificate of the proxy is verified too.
    let proxy = https_proxy(&authority, origin);
    let route = Route::secure("origin", 443, authority.client());
    let error = refused(
        &through(&route, ProxyScheme::Https, proxy),
        &DialConfig::default(),
    );
    assert_eq!(error.kind, DialErrorKind::Tls);
    let expected =
        format!("the certificate of the proxy https://{proxy} is not for the name \"127.0.0.1\"");
    assert!(error.message.starts_with(&expected), "{error}");
}

#[test]
fn plain_http_goes_through_tls_to_the_proxy() {
    let authority = Authority::new("alone");
    let proxy = tls_server(authority.server(authority.sign(&params("127.0.0.1")), false));
    let mut route = through(&Route::plain("origin", 80), ProxyScheme::Https, proxy);
    let error = refused(&route, &DialConfig::default());
    assert_eq!(error.message, "no TLS settings for a route that needs them");
    route.tls = Some(authority.client());
    let mut established = dial(Client::Async, &route, &DialConfig::default()).unwrap();
    assert!(established.alpn.is_none() && established.timings.proxy.is_some());
    assert_echoes(&mut established);
}

/// Implements SOCKS 5 without a password, byte by byte. The thread returns the request.
fn socks_proxy(reply: &'static [u8], request_bytes: usize) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    serve(move |mut stream| {
        let mut methods = [0; 3];
        stream.read_exact(&mut methods).unwrap();
        assert_eq!(methods, *b"\x05\x01\x00");
        stream.set_nodelay(true).unwrap();
        for byte in b"\x05\x00" {
            stream.write_all(&[*byte]).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        let mut request = vec![0; request_bytes];
        stream.read_exact(&mut request).unwrap();
        for byte in reply {
            stream.write_all(&[*byte]).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        echo(&mut stream);
        request
    })
}

const GRANTED: &[u8] = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00";

#[test]
fn socks5_sends_an_address_and_socks5h_a_name() {
    for client in CLIENTS {
        let (addr, requests) = socks_proxy(GRANTED, 13);
        let unresolved = DialConfig {
            resolver: Arc::new(Resolver::with(|_| Err(LookupError::NoSuchHost))),
            ..DialConfig::default()
        };
        let named = through(&Route::plain("origin", 80), ProxyScheme::Socks5h, addr);
        let mut established = dial(client, &named, &unresolved).unwrap();
        assert!(!named.absolute_form());
        assert_echoes(&mut established);
        drop(established);
        assert_eq!(
            requests.join().unwrap(),
            b"\x05\x01\x00\x03\x06origin\x00\x50"
        );

        let (addr, requests) = socks_proxy(GRANTED, 10);
        let found = DialConfig {
            resolver: Arc::new(Resolver::with(|_| Ok(vec!["192.0.2.7:0".parse().unwrap()]))),
            ..DialConfig::default()
        };
        let route = through(&Route::plain("origin", 80), ProxyScheme::Socks5, addr);
        let established = dial(client, &route, &found).unwrap();
        assert!(established.timings.dns.is_some());
        drop(established);
        assert_eq!(
            requests.join().unwrap(),
            b"\x05\x01\x00\x01\xc0\x00\x02\x07\x00\x50"
        );
        let error = refused(
            &through(&Route::plain("origin", 80), ProxyScheme::Socks5, addr),
            &unresolved,
        );
        assert_eq!(error.message, "cannot resolve \"origin\": no such host");
    }
    let (addr, _) = socks_proxy(b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00", 13);
    let route = through(&Route::plain("origin", 80), ProxyScheme::Socks5h, addr);
    let error = refused(&route, &DialConfig::default());
    assert_eq!(
        (error.kind, error.phase),
        (DialErrorKind::Proxy, DialPhase::Proxy)
    );
    let expected =
        format!("the proxy socks5h://{addr} cannot connect: connection refused (reply 5)");
    assert_eq!(error.message, expected);
}

#[test]
fn bytes_of_the_origin_that_follow_a_socks_reply_are_kept() {
    for client in CLIENTS {
        let (addr, proxy) = serve(|mut stream| {
            stream.read_exact(&mut [0; 3]).unwrap();
            stream.write_all(b"\x05\x00").unwrap();
            stream.read_exact(&mut [0; 13]).unwrap();
            stream.write_all(&[GRANTED, b"first"].concat()).unwrap();
        });
        let route = through(&Route::plain("origin", 80), ProxyScheme::Socks5h, addr);
        let mut established = dial(client, &route, &DialConfig::default()).unwrap();
        assert_eq!(receive(&mut established, 5), b"first");
        proxy.join().unwrap();
    }
}

#[test]
fn a_proxy_that_cannot_be_reached_is_named() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = closed.local_addr().unwrap();
    drop(closed);
    let unresolved = DialConfig {
        resolver: Arc::new(Resolver::with(|_| Err(LookupError::NoSuchHost))),
        ..DialConfig::default()
    };
    let origin = Route::plain("origin", 80);
    let mut proxy = Proxy::new(ProxyScheme::Http, "127.0.0.1", addr.port());
    proxy.credentials = Some(Credentials::new("user", "hunter2"));
    proxy.variable = Some("HTTP_PROXY".into());
    let error_of = |proxy: &Proxy| {
        let mut route = origin.clone();
        route.proxy = Some(Arc::new(proxy.clone()));
        refused(&route, &unresolved)
    };
    assert_eq!(
        error_of(&proxy).message,
        format!("cannot connect to the proxy http://{addr} (HTTP_PROXY): Connection refused")
    );
    proxy = Proxy::new(ProxyScheme::Socks5h, "proxy.example", 1080);
    assert_eq!(
        error_of(&proxy).message,
        "the proxy socks5h://proxy.example:1080: cannot resolve \"proxy.example\": no such host"
    );
}

/// Refuses `times` connections with `code` and then grants one. The thread returns the requests.
fn socks_that_refuses(code: u8, times: usize) -> (SocketAddr, JoinHandle<Vec<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let proxy = thread::spawn(move || {
        let mut requests = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut methods = [0; 3];
            stream.read_exact(&mut methods).unwrap();
            stream.write_all(b"\x05\x00").unwrap();
            let mut request = vec![0; 4];
            stream.read_exact(&mut request).unwrap();
            let rest = if request[3] == 1 { 6 } else { 18 };
            request.resize(4 + rest, 0);
            stream.read_exact(&mut request[4..]).unwrap();
            requests.push(request);
            if requests.len() > times {
                stream.write_all(GRANTED).unwrap();
                echo(&mut stream);
                break;
            }
            stream
                .write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0])
                .unwrap();
            if code == 7 {
                break;
            }
        }
        requests
    });
    (addr, proxy)
}

#[test]
fn socks5_tries_every_address_of_the_origin() {
    let found = DialConfig {
        resolver: Arc::new(Resolver::with(|_| {
            let addrs = ["[2001:db8::7]:0", "192.0.2.7:0", "192.0.2.8:0"];
            Ok(addrs.map(|addr| addr.parse().unwrap()).to_vec())
        })),
        ..DialConfig::default()
    };
    for client in CLIENTS {
        let (addr, proxy) = socks_that_refuses(5, 2);
        let route = through(&Route::plain("origin", 80), ProxyScheme::Socks5, addr);
        let mut established = dial(client, &route, &found).unwrap();
        assert_echoes(&mut established);
        drop(established);
        let requests = proxy.join().unwrap();
        let kinds: Vec<_> = requests.iter().map(|request| request[3]).collect();
        assert_eq!(kinds, [4, 1, 1]);
        assert_eq!(requests[2][4..8], [192, 0, 2, 8]);
    }
    let (addr, _proxy) = socks_that_refuses(4, 9);
    let route = through(&Route::plain("origin", 80), ProxyScheme::Socks5, addr);
    let error = refused(&route, &found);
    assert!(
        error.message.ends_with("host unreachable (reply 4)"),
        "{error}"
    );
    // A reply that does not depend on the address ends the dial.
    let (addr, proxy) = socks_that_refuses(7, 9);
    let route = through(&Route::plain("origin", 80), ProxyScheme::Socks5, addr);
    refused(&route, &found);
    assert_eq!(proxy.join().unwrap().len(), 1);
}

#[test]
fn an_https_proxy_receives_close_notify() {
    let authority = Authority::new("close-notify");
    let origin = tls_server(authority.server(authority.sign(&params("origin")), false));
    let config = Arc::new(authority.server(authority.sign(&params("127.0.0.1")), false));
    let (addr, proxy) = serve(move |stream| {
        let mut near = accept_tls(stream, &config);
        read_head(&mut near);
        let mut far = TcpStream::connect(origin).unwrap();
        near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        near.sock.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let mut space = [0; 8 * 1024];
        loop {
            // Without close_notify it would be `UnexpectedEof`.
            match near.read(&mut space) {
                Ok(0) => return true,
                Ok(bytes) => far.write_all(&space[..bytes]).unwrap(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
            copy_available(&mut far, &mut near);
            thread::sleep(Duration::from_micros(100));
        }
    });
    let route = Route::secure("origin", 443, authority.client());
    let route = through(&route, ProxyScheme::Https, addr);
    let mut established = dial(Client::Blocking, &route, &DialConfig::default()).unwrap();
    let transport = established.transport.stream_mut().unwrap();
    let tls = transport.tls.as_mut().unwrap();
    tls.close_notify();
    tls.flush(&transport.socket).unwrap();
    assert!(proxy.join().unwrap());
    // Not before: a close with unread input is a reset, which can overtake the alert.
    drop(established);
}

#[test]
fn a_proxy_that_refuses_closes_or_stalls_is_reported() {
    let authority = Authority::new("refuse");
    let secure = Route::secure("origin", 443, authority.client());
    let failure_of = |work: fn(TcpStream), client, expected| {
        let (addr, server) = serve(work);
        let mut route = through(&secure, ProxyScheme::Http, addr);
        let mut proxy = Proxy::clone(route.proxy.as_ref().unwrap());
        proxy.credentials = Some(Credentials::new("user", "hunter2"));
        route.proxy = Some(Arc::new(proxy));
        let is_silent = expected == DialErrorKind::Timeout;
        let timeout = if is_silent {
            Duration::from_millis(300)
        } else {
            MAX_WAIT
        };
        let config = DialConfig {
            connect_timeout: Some(timeout),
            ..DialConfig::default()
        };
        let Err(error) = dial(client, &route, &config) else {
            panic!("connected");
        };
        server.join().unwrap();
        assert_eq!(error.phase, DialPhase::Proxy);
        assert!(!error.message.contains("hunter2"));
        (
            error.kind,
            error.proxy_status,
            error.message.replace(&addr.to_string(), "P"),
        )
    };
    let cases: [(fn(TcpStream), _, _, _); 4] = [
        (
            |mut stream| {
                read_head(&mut stream);
                stream
                    .write_all(b"HTTP/1.1 407 Authenticate\r\ncontent-length: 0\r\n\r\n")
                    .unwrap();
            },
            DialErrorKind::Proxy,
            Some(407),
            "the proxy http://P does not accept the credentials (407)",
        ),
        (
            |mut stream| {
                read_head(&mut stream);
                stream.write_all(b"HTTP/1.1 503 Busy\r\n\r\n").unwrap();
            },
            DialErrorKind::Proxy,
            Some(503),
            "the proxy http://P refuses the tunnel: 503 Busy",
        ),
        (
            |mut stream| {
                read_head(&mut stream);
            },
            DialErrorKind::Proxy,
            None,
            "the proxy http://P closed the connection before its response",
        ),
        (
            |mut stream| while matches!(stream.read(&mut [0; 2000]), Ok(1..)) {},
            DialErrorKind::Timeout,
            None,
            "no response from the proxy http://P within 0.3 s",
        ),
    ];
    for client in CLIENTS {
        for (work, kind, status, message) in &cases {
            assert_eq!(
                failure_of(*work, client, *kind),
                (*kind, *status, (*message).to_owned())
            );
        }
    }
}
