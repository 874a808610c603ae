//! Requests and responses over real sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::{
    MAX_WAIT, Server, exchange, get, post, read_response, read_to_end, with_timeouts,
};
use towline_io::{ConnConfig, EngineConfig, Listener};
use towline_proto::Limits;

const HELLO: &[u8] = b"alive\r\n";

#[test]
fn one_connection_serves_many_requests() {
    let server = Server::plain();
    let mut stream = server.connect();
    for _ in 0..50 {
        let response = exchange(&mut stream, &get("/"));
        assert_eq!((response.status, &response.body[..]), (200, HELLO));
    }
}

#[test]
fn pipelined_requests_get_their_responses_in_order() {
    let server = Server::plain();
    let mut stream = server.connect();
    let mut wire = Vec::new();
    for n in 0..40 {
        wire.extend(if n % 4 == 3 {
            post("/echo", format!("body {n}").as_bytes())
        } else {
            get("/")
        });
    }
    stream.write_all(&wire).unwrap();
    for n in 0..40 {
        let body = read_response(&mut stream).body;
        if n % 4 == 3 {
            assert_eq!(body, format!("body {n}").as_bytes());
        } else {
            assert_eq!(body, HELLO);
        }
    }
}

#[test]
fn a_delayed_response_precedes_that_of_the_next_request() {
    let server = Server::plain();
    let mut stream = server.connect();
    stream
        .write_all(&[get("/delay?ms=50"), get("/large")].concat())
        .unwrap();
    let start = Instant::now();
    assert_eq!(read_response(&mut stream).body, HELLO);
    assert!(start.elapsed() >= Duration::from_millis(40));
    assert_eq!(read_response(&mut stream).body.len(), 65_536);
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let server = Server::plain();
    let mut stream = server.connect();
    for byte in post("/echo", b"abc") {
        stream.write_all(&[byte]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(read_response(&mut stream).body, b"abc");
}

#[test]
fn a_body_is_echoed_with_bounded_buffers_on_both_sides() {
    let server = Server::plain();
    let mut stream = server.connect();
    let body: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let request = post("/echo", &body);
    let writing = std::thread::spawn(move || writer.write_all(&request).unwrap());
    let response = read_response(&mut stream);
    writing.join().unwrap();
    assert!(response.body == body, "the echo differs");
}

#[test]
fn a_large_upload_arrives_completely() {
    let server = Server::plain();
    let response = exchange(&mut server.connect(), &post("/upload", &vec![7; 3_000_000]));
    assert_eq!(response.body, b"3000000");
}

#[test]
fn a_slow_reader_gets_the_complete_body() {
    let server = Server::plain();
    let mut stream = server.connect();
    let count = 400;
    let mut writer = stream.try_clone().unwrap();
    let requests = get("/large").repeat(count);
    let writing = std::thread::spawn(move || writer.write_all(&requests).unwrap());
    std::thread::sleep(Duration::from_millis(200));
    // Other connections are served meanwhile.
    assert_eq!(exchange(&mut server.connect(), &get("/")).body, HELLO);
    for _ in 0..count {
        assert_eq!(read_response(&mut stream).body.len(), 65_536);
    }
    writing.join().unwrap();
}

#[test]
fn a_half_closed_client_gets_its_response() {
    let server = Server::plain();
    let mut stream = server.connect();
    stream.write_all(&get("/delay?ms=30")).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let text = String::from_utf8(read_to_end(&mut stream)).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 200 ") && text.ends_with("alive\r\n"),
        "{text}"
    );
}

#[test]
fn a_chunked_response_ends() {
    let server = Server::plain();
    let mut stream = server.connect();
    stream
        .write_all(b"GET /chunked HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
        .unwrap();
    let text = String::from_utf8(read_to_end(&mut stream)).unwrap();
    assert!(text.ends_with("\r\n0\r\n\r\n"), "{text}");
}

#[test]
fn a_malformed_request_is_refused_and_the_connection_closed() {
    let server = Server::plain();
    let mut stream = server.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost : x\r\n\r\n")
        .unwrap();
    let text = String::from_utf8(read_to_end(&mut stream)).unwrap();
    assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
}

#[test]
fn a_client_that_resets_does_not_affect_others() {
    let server = Server::plain();
    for _ in 0..50 {
        let mut stream = server.connect();
        stream.write_all(&get("/large").repeat(20)).unwrap();
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }
    assert_eq!(exchange(&mut server.connect(), &get("/")).body, HELLO);
}

#[test]
fn a_thousand_idle_connections_do_not_slow_a_new_one() {
    let server = Server::plain();
    let mut idle: Vec<TcpStream> = (0..400).map(|_| server.connect()).collect();
    for stream in &mut idle {
        assert_eq!(exchange(stream, &get("/")).status, 200);
    }
    let idle: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    let start = Instant::now();
    assert_eq!(exchange(&mut server.connect(), &get("/")).body, HELLO);
    assert!(start.elapsed() < MAX_WAIT / 2);
    assert_eq!(idle.len(), 100);
}

#[test]
fn a_file_is_sent_completely() {
    let path = std::env::temp_dir().join(format!("towline-file-{}", std::process::id()));
    let content: Vec<u8> = (0..4_000_000u32).map(|n| (n % 253) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let server = Server::plain();
    let mut stream = server.connect();
    for _ in 0..3 {
        let response = exchange(&mut stream, &get(&format!("/file?path={}", path.display())));
        assert!(response.body == content, "the file differs");
    }
    // The response to HEAD has the length of the file and no body.
    let head = format!(
        "HEAD /file?path={} HTTP/1.1\r\nhost: test\r\n\r\n",
        path.display()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        text.extend(byte);
    }
    assert!(
        String::from_utf8(text)
            .unwrap()
            .contains("content-length: 4000000\r\n")
    );
    // The connection can be reused.
    assert_eq!(exchange(&mut stream, &get("/")).body, HELLO);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_silent_connection_is_closed_at_its_deadline() {
    let limits = Limits {
        header_timeout: Some(Duration::from_millis(500)),
        ..Limits::server()
    };
    let server = Server::start(ConnConfig::plain(limits));
    let start = Instant::now();
    read_to_end(&mut server.connect());
    assert!(start.elapsed() >= Duration::from_millis(490));
    let mut slow = server.connect();
    slow.write_all(b"GET / HT").unwrap();
    let text = String::from_utf8(read_to_end(&mut slow)).unwrap();
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
}

#[test]
fn an_idle_connection_is_closed_after_the_keep_alive_time() {
    let keep_alive_timeout = Some(Duration::from_secs(2));
    let limits = Limits {
        keep_alive_timeout,
        ..Limits::server()
    };
    let server = Server::start(ConnConfig::plain(limits));
    let mut stream = server.connect();
    // Together longer than the timeout, which each request restarts.
    for _ in 0..4 {
        assert_eq!(exchange(&mut stream, &get("/")).status, 200);
        std::thread::sleep(Duration::from_millis(600));
    }
    assert_eq!(read_to_end(&mut stream), b"");
}

#[test]
fn unix_sockets_are_served_and_cleaned_up() {
    let path = std::env::temp_dir().join(format!("towline-unix-{}", std::process::id()));
    let listener = Listener::unix(&path, Some(0o600), 64).unwrap();
    let taken = Listener::unix(&path, None, 64).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    assert!(taken.to_string().contains("towline-unix-"), "{taken}");
    let server = Server::on(
        listener,
        ConnConfig::plain(Limits::server()),
        EngineConfig::default(),
    );
    let mut stream = UnixStream::connect(&path).unwrap();
    for _ in 0..5 {
        assert_eq!(exchange(&mut stream, &get("/")).body, HELLO);
        assert_eq!(exchange(&mut stream, &get("/large")).body.len(), 65_536);
    }
    drop(server);
    assert!(!path.exists());
    // A socket file left by a killed process is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Listener::unix(&path, None, 64).unwrap());
    assert!(!path.exists());
}

#[test]
fn the_unspecified_ipv6_address_serves_both_families() {
    let Ok(listener) = Listener::tcp("[::]:0".parse().unwrap(), 64) else {
        return; // a machine without IPv6
    };
    let port = listener.local_addr().unwrap().inet().unwrap().port();
    let _server = Server::on(
        listener,
        ConnConfig::plain(Limits::server()),
        EngineConfig::default(),
    );
    for host in ["127.0.0.1", "::1"] {
        let mut stream = with_timeouts(TcpStream::connect((host, port)).unwrap());
        assert_eq!(exchange(&mut stream, &get("/")).body, HELLO);
    }
}

#[test]
fn an_inherited_descriptor_is_served() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = std::os::fd::IntoRawFd::into_raw_fd(listener);
    let listener = Listener::inherited(fd, 64).unwrap();
    let server = Server::on(
        listener,
        ConnConfig::plain(Limits::server()),
        EngineConfig::default(),
    );
    assert_eq!(exchange(&mut server.connect(), &get("/")).body, HELLO);
    assert!(
        Listener::inherited(9_999, 64)
            .unwrap_err()
            .to_string()
            .contains("fd://9999")
    );
}

#[test]
fn a_bind_error_names_the_address() {
    let server = Server::plain();
    let error = Listener::tcp(server.addr, 64).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(
        error.to_string().contains(&server.addr.port().to_string()),
        "{error}"
    );
    for bad in ["nowhere", "host:99999", "fd://x"] {
        assert!(
            Listener::open(bad, 64)
                .unwrap_err()
                .to_string()
                .contains(bad)
        );
    }
}

#[test]
fn a_proxy_header_precedes_http_and_gives_the_addresses() {
    let mut service = ConnConfig::plain(Limits::server());
    service.proxy_protocol = Some(Box::new(|addr| addr.is_some_and(|addr| addr.is_loopback())));
    let server = Server::start(service);
    let mut stream = server.connect();
    let header = b"PROXY TCP4 192.0.2.7 192.0.2.8 40000 443\r\n";
    assert_eq!(
        exchange(&mut stream, &[&header[..], &get("/")].concat()).body,
        HELLO
    );
    assert_eq!(exchange(&mut stream, &get("/")).body, HELLO);
    // Without a header: closed without a response.
    let mut bare = server.connect();
    bare.write_all(&get("/")).unwrap();
    let mut response = Vec::new();
    let _ = bare.read_to_end(&mut response);
    assert_eq!(response, b"");
}
