//! Every failure that all client paths can have gives the same error on each of them: asynchronous and blocking,
//! HTTP/1 and HTTP/2. The scripts are servers over real sockets.

mod support;

use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use support::calls::{DriverHarness, Outcome, Scripted, head, ok, request, send};
use support::frames::{DATA, END_HEADERS, Frames, HEADERS, OK, RESET, frame, goaway};
use towline_io::client::{
    BlockingClient, BlockingConfig, BlockingError, Body, CallError, CallErrorKind, CallEvent,
    CallOptions, CallPhase, DialConfig, OutgoingRequest, PoolLimits, Route, StaleRetry, Timeouts,
    WaitPolicy,
};
use towline_io::{ClientTls, ClientTlsSettings};
use towline_proto::ProtocolPolicy;

const SHORT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Asynchronous,
    Blocking,
}

/// The part of an error that must not depend on the path.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    kind: CallErrorKind,
    phase: CallPhase,
    retryable: bool,
    text: String,
}

/// A call that is made on every path.
struct Case {
    method: &'static str,
    /// A complete body.
    body: Bytes,
    /// A streamed body, which the program writes in one piece and finishes.
    streamed: Option<Bytes>,
    /// The body waits for `100 Continue`.
    expects: bool,
    options: CallOptions,
}

impl Case {
    fn new(method: &'static str) -> Self {
        Self {
            method,
            body: Bytes::new(),
            streamed: None,
            expects: false,
            options: CallOptions {
                stale: StaleRetry::Never,
                connect_retries: 0,
                ..CallOptions::default()
            },
        }
    }

    fn with_timeouts(mut self, change: impl FnOnce(&mut Timeouts)) -> Self {
        change(&mut self.options.timeouts);
        self
    }

    fn with_body(mut self, bytes: usize) -> Self {
        self.body = Bytes::from(vec![b'x'; bytes]);
        self
    }

    fn streaming(mut self, bytes: &'static [u8]) -> Self {
        self.streamed = Some(Bytes::from_static(bytes));
        self
    }

    fn body(&self) -> Body {
        match &self.streamed {
            Some(_) => Body::Unknown,
            None if self.body.is_empty() => Body::Empty,
            None => Body::Bytes(self.body.clone()),
        }
    }

    fn request(&self, route: &Arc<Route>) -> OutgoingRequest {
        let mut request = request(route, self.method, "/", self.body());
        if self.expects {
            request.head.push(b"expect", b"100-continue");
        }
        request
    }

    fn run(&self, client: Client, version: Version, route: &Arc<Route>) -> Verdict {
        let protocols = match version {
            Version::Http1 => ProtocolPolicy::Http1,
            Version::Http2 => ProtocolPolicy::Http2,
        };
        let dial = Arc::new(DialConfig::default().with_protocols(protocols));
        let error = match client {
            Client::Asynchronous => self.run_asynchronous(dial, route),
            Client::Blocking => self.run_blocking(dial, route),
        };
        Verdict {
            kind: error.kind,
            phase: error.phase,
            retryable: error.retryable,
            text: error.rule.into_owned(),
        }
    }

    fn run_asynchronous(&self, dial: Arc<DialConfig>, route: &Arc<Route>) -> CallError {
        let mut harness = DriverHarness::new(|config| config.dial = dial);
        let request = self.request(route);
        let call = match harness.driver.begin(request, self.options) {
            Ok(call) => call,
            Err(error) => return *error,
        };
        if let Some(data) = &self.streamed {
            match harness.event(call) {
                CallEvent::Writable => {
                    let _ = harness.driver.write(call, data.clone());
                    let _ = harness.driver.finish(call, &[]);
                }
                CallEvent::Failed(error) => return *error,
                event => panic!("{event:?}"),
            }
        }
        match harness.finish(call) {
            Outcome::Failed(error) => *error,
            Outcome::Response(status, _) => panic!("the call succeeded: {status}"),
        }
    }

    fn run_blocking(&self, dial: Arc<DialConfig>, route: &Arc<Route>) -> CallError {
        let client = BlockingClient::new(BlockingConfig {
            dial,
            ..BlockingConfig::default()
        });
        let request = self.request(route);
        let mut never = || false;
        let mut policy = WaitPolicy::new(&mut never, None);
        let result = client
            .begin(request, self.options, &mut policy)
            .and_then(|mut call| {
                if let Some(data) = &self.streamed {
                    call.write(data.clone(), &mut policy)?;
                    call.finish(&[], &mut policy)?;
                }
                call.await_head(&mut policy)?;
                call.read_all(&mut Vec::new(), &mut policy)
            });
        match result {
            Err(BlockingError::Failed(error)) => *error,
            Err(BlockingError::Interrupted) => panic!("interrupted"),
            Ok(()) => panic!("the call succeeded"),
        }
    }
}

/// Runs a case on both clients with one version and asserts that they agree.
fn on_both(case: &Case, version: Version, route: &Arc<Route>) -> Verdict {
    let verdict = case.run(Client::Asynchronous, version, route);
    let blocking = case.run(Client::Blocking, version, route);
    assert_eq!(
        verdict, blocking,
        "asynchronous, then blocking; {version:?}"
    );
    verdict
}

fn route_to(server: &Scripted) -> Arc<Route> {
    Arc::new(Route::plain(
        &server.addr.ip().to_string(),
        server.addr.port(),
    ))
}

/// Starts an HTTP/1 server that reads the head of a request and runs `script` on the connection.
fn http1(script: impl Fn(TcpStream) + Send + Sync + 'static) -> Scripted {
    Scripted::new(move |_, mut stream| {
        if head(&mut stream).is_some() {
            script(stream);
        }
    })
}

/// Starts an HTTP/2 server that reads the head of a request and runs `script` with the stream.
fn http2(script: impl Fn(Frames, u32) + Send + Sync + 'static) -> Scripted {
    Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        if let Some(stream) = frames.request() {
            script(frames, stream);
        }
    })
}

/// Closes with RST.
fn reset(stream: &TcpStream) {
    SockRef::from(stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

/// Reads until the client has closed.
fn drain(mut stream: &TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Closes the connection with FIN. Dropping it could reset it instead, if input (an ACK of SETTINGS) is unread.
fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
    drain(stream);
}

/// Runs a case against a script of each version and asserts that the four paths agree. The text may differ
/// between the versions only where it cites a rule of one of them.
fn on_all(
    case: &Case,
    script1: impl Fn(TcpStream) + Send + Sync + 'static,
    script2: impl Fn(Frames, u32) + Send + Sync + 'static,
) -> Verdict {
    let (server1, server2) = (http1(script1), http2(script2));
    let verdict = on_both(case, Version::Http1, &route_to(&server1));
    let over2 = on_both(case, Version::Http2, &route_to(&server2));
    if verdict.text.contains("(RFC ") && over2.text.contains("(RFC ") {
        assert_eq!(verdict.is(), over2.is(), "HTTP/1, then HTTP/2");
    } else {
        assert_eq!(verdict, over2, "HTTP/1, then HTTP/2");
    }
    verdict
}

fn verdict(
    kind: CallErrorKind,
    phase: CallPhase,
    retryable: bool,
) -> (CallErrorKind, CallPhase, bool) {
    (kind, phase, retryable)
}

impl Verdict {
    fn is(&self) -> (CallErrorKind, CallPhase, bool) {
        verdict(self.kind, self.phase, self.retryable)
    }
}

#[test]
fn a_refused_connection_may_be_retried() {
    let addr = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let route = Arc::new(Route::plain(&addr.ip().to_string(), addr.port()));
    let case = Case::new("POST");
    let over1 = on_both(&case, Version::Http1, &route);
    assert_eq!(
        over1.is(),
        verdict(CallErrorKind::Connect, CallPhase::Connect, true)
    );
    assert_eq!(over1, on_both(&case, Version::Http2, &route));
}

#[test]
fn an_end_before_the_head_may_be_retried_if_idempotent() {
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let case = Case::new(method);
        let eof = on_all(&case, |stream| close(&stream), |frames, _| close(&frames.0));
        assert_eq!(
            eof.is(),
            verdict(
                CallErrorKind::ServerDisconnected,
                CallPhase::Head,
                retryable
            )
        );
        let rst = on_all(&case, |stream| reset(&stream), |frames, _| reset(&frames.0));
        assert_eq!(
            rst.is(),
            verdict(CallErrorKind::Read, CallPhase::Head, retryable)
        );
    }
}

#[test]
fn an_end_within_the_body_may_be_retried_if_idempotent() {
    const PART: &str = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc";
    fn part(frames: &mut Frames, stream: u32) {
        frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
        frames.send(&frame(DATA, 0, stream, b"abc"));
    }
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let case = Case::new(method);
        let eof = on_all(
            &case,
            |mut stream| {
                send(&mut stream, PART);
                let _ = stream.shutdown(Shutdown::Write);
                drain(&stream);
            },
            |mut frames, stream| {
                part(&mut frames, stream);
                let _ = frames.0.shutdown(Shutdown::Write);
                drain(&frames.0);
            },
        );
        assert_eq!(
            eof.is(),
            verdict(
                CallErrorKind::ServerDisconnected,
                CallPhase::Body,
                retryable
            )
        );
    }
}

#[test]
fn a_malformed_head_is_a_protocol_error() {
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let case = Case::new(method);
        let server = http1(|mut stream| {
            send(&mut stream, "HTTP/1.1 2x0 OK\r\n\r\n");
            drain(&stream);
        });
        let found = on_both(&case, Version::Http1, &route_to(&server));
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::RemoteProtocol, CallPhase::Head, retryable)
        );
        let server = http2(|mut frames, stream| {
            // The index 0 is an error of HPACK (RFC 7541 6.1).
            frames.send(&frame(HEADERS, END_HEADERS, stream, &[0x80]));
            drain(&frames.0);
        });
        let found = on_both(&case, Version::Http2, &route_to(&server));
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::RemoteProtocol, CallPhase::Head, retryable)
        );
    }
}

#[test]
fn an_end_within_the_head_is_a_disconnect() {
    let server = http1(|mut stream| {
        send(&mut stream, "HTTP/1.1 200 OK\r\nconte");
        let _ = stream.shutdown(Shutdown::Write);
        drain(&stream);
    });
    let found = on_both(&Case::new("GET"), Version::Http1, &route_to(&server));
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::ServerDisconnected, CallPhase::Head, true)
    );
}

#[test]
fn a_read_timeout_reports_head_or_body() {
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let case = Case::new(method).with_timeouts(|timeouts| timeouts.read = Some(SHORT));
        let timed_out = on_all(&case, |stream| drain(&stream), |frames, _| drain(&frames.0));
        assert_eq!(
            timed_out.is(),
            verdict(CallErrorKind::ReadTimeout, CallPhase::Head, retryable)
        );
        let stalled = on_all(
            &case,
            |mut stream| {
                send(
                    &mut stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
                );
                drain(&stream);
            },
            |mut frames, stream| {
                frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
                frames.send(&frame(DATA, 0, stream, b"abc"));
                drain(&frames.0);
            },
        );
        assert_eq!(
            stalled.is(),
            verdict(CallErrorKind::ReadTimeout, CallPhase::Body, retryable)
        );
    }
}

#[test]
fn the_total_timeout_reports_the_phase_it_ended() {
    let case = Case::new("GET").with_timeouts(|timeouts| timeouts.total = Some(SHORT));
    let timed_out = on_all(&case, |stream| drain(&stream), |frames, _| drain(&frames.0));
    assert_eq!(
        timed_out.is(),
        verdict(CallErrorKind::TotalTimeout, CallPhase::Head, true)
    );
}

#[test]
fn a_write_timeout_ends_an_upload_that_is_not_read() {
    // More than the buffers of both kernels hold.
    let case = Case::new("PUT")
        .with_body(32 << 20)
        .with_timeouts(|timeouts| timeouts.write = Some(SHORT));
    let found = on_all(
        &case,
        |stream| {
            std::thread::sleep(6 * SHORT);
            drop(stream);
        },
        |frames, _| {
            std::thread::sleep(6 * SHORT);
            drop(frames);
        },
    );
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::WriteTimeout, CallPhase::Send, true)
    );
}

#[test]
fn a_streamed_body_is_not_sent_again() {
    let case = Case::new("PUT").streaming(b"once");
    let found = on_all(
        &case,
        |mut stream| {
            let _ = stream.read(&mut [0; 1]);
            std::thread::sleep(SHORT);
            close(&stream);
        },
        |mut frames, _| {
            frames.until(DATA);
            std::thread::sleep(SHORT);
            close(&frames.0);
        },
    );
    assert!(!found.retryable, "{found:?}");
    assert_eq!(found.phase, CallPhase::Head);
}

#[test]
fn http2_resets_are_retryable_if_unprocessed_or_idempotent() {
    // REFUSED_STREAM, CANCEL, INTERNAL_ERROR (RFC 9113 7).
    for (method, code, retryable) in [
        ("GET", 7_u32, true),
        ("POST", 7, true),
        ("GET", 8, true),
        ("POST", 8, false),
        ("GET", 2, true),
        ("POST", 2, false),
    ] {
        let server = http2(move |mut frames, stream| {
            frames.send(&frame(RESET, 0, stream, &code.to_be_bytes()));
            drain(&frames.0);
        });
        let found = on_both(&Case::new(method), Version::Http2, &route_to(&server));
        let expected = verdict(CallErrorKind::RemoteProtocol, CallPhase::Head, retryable);
        assert_eq!(found.is(), expected, "{method} {code}");
    }
    for method in ["GET", "POST"] {
        let server = http2(|mut frames, _| {
            frames.send(&goaway(0, 0));
            drain(&frames.0);
        });
        let found = on_both(&Case::new(method), Version::Http2, &route_to(&server));
        assert!(found.retryable, "{found:?}");
        assert_eq!(found.phase, CallPhase::Head);
    }
}

#[test]
fn a_reset_within_the_body_may_be_retried_if_idempotent() {
    for (method, retryable) in [("GET", true), ("POST", false)] {
        let found = on_all(
            &Case::new(method),
            |mut stream| {
                send(
                    &mut stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
                );
                // The client reads the head before the reset discards what is unread.
                std::thread::sleep(SHORT);
                reset(&stream);
            },
            |mut frames, stream| {
                frames.send(&frame(HEADERS, END_HEADERS, stream, OK));
                frames.send(&frame(DATA, 0, stream, b"abc"));
                std::thread::sleep(SHORT);
                reset(&frames.0);
            },
        );
        assert_eq!(
            found.is(),
            verdict(CallErrorKind::Read, CallPhase::Body, retryable)
        );
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
    for version in [Version::Http1, Version::Http2] {
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

#[test]
fn a_connection_that_ends_before_100_continue_has_sent_the_head() {
    let mut case = Case::new("PUT").with_body(100);
    case.expects = true;
    let found = on_all(&case, |stream| close(&stream), |frames, _| close(&frames.0));
    assert_eq!(
        found.is(),
        verdict(CallErrorKind::ServerDisconnected, CallPhase::Head, true)
    );
}

#[test]
fn the_pool_timeout_is_the_same_error_in_both_clients() {
    let server = http1(|stream| drain(&stream));
    let route = route_to(&server);
    let limits = PoolLimits {
        max_connections: 1,
        ..PoolLimits::default()
    };
    let case = Case::new("POST").with_timeouts(|timeouts| timeouts.pool = Some(SHORT));
    let mut harness = DriverHarness::new(|config| config.pool = limits);
    let first = harness.begin(request(&route, "GET", "/", Body::Empty));
    let call = request(&route, "POST", "/", Body::Empty);
    let call = harness.driver.begin(call, case.options).unwrap();
    let asynchronous = harness.finish(call).failed();
    harness.driver.cancel(first);

    let client = BlockingClient::new(BlockingConfig {
        pool: limits,
        ..BlockingConfig::default()
    });
    let mut never = || false;
    let mut policy = WaitPolicy::new(&mut never, None);
    let get = request(&route, "GET", "/", Body::Empty);
    let first = client.begin(get, CallOptions::default(), &mut policy);
    let post = request(&route, "POST", "/", Body::Empty);
    let Err(BlockingError::Failed(blocking)) = client.begin(post, case.options, &mut policy) else {
        panic!("a connection was found")
    };
    drop(first);
    for error in [&asynchronous, &*blocking] {
        assert_eq!(error.kind, CallErrorKind::PoolTimeout);
        assert_eq!(error.phase, CallPhase::Pool);
        assert!(error.retryable);
    }
    assert_eq!(asynchronous.rule, blocking.rule);
}

#[test]
fn a_stale_connection_is_replaced_for_an_idempotent_request() {
    // Each connection sends one response and closes when the next request arrives.
    let server = Scripted::new(|_, mut stream| {
        if head(&mut stream).is_some() {
            send(&mut stream, &ok("first"));
            let _ = head(&mut stream);
        }
    });
    let route = route_to(&server);
    let options = CallOptions::default();
    let mut harness = DriverHarness::new(|_| {});
    assert_eq!(harness.get(&route, "/").response().1, b"first");
    assert_eq!(harness.get(&route, "/").response().1, b"first");
    let post = request(&route, "POST", "/", Body::Empty);
    let call = harness.driver.begin(post, options).unwrap();
    let asynchronous = harness.finish(call).failed();

    let client = BlockingClient::new(BlockingConfig::default());
    let mut never = || false;
    let mut policy = WaitPolicy::new(&mut never, None);
    let mut call = |method| {
        let request = request(&route, method, "/", Body::Empty);
        let mut call = client.begin(request, options, &mut policy)?;
        call.await_head(&mut policy)?;
        call.read_all(&mut Vec::new(), &mut policy)
    };
    call("GET").unwrap();
    call("GET").unwrap();
    let Err(BlockingError::Failed(blocking)) = call("POST") else {
        panic!("a request that may have been processed was sent again")
    };
    for error in [&asynchronous, &*blocking] {
        assert_eq!(error.kind, CallErrorKind::ServerDisconnected);
        assert_eq!(
            (error.phase, error.retryable, error.reused),
            (CallPhase::Head, false, true)
        );
    }
    assert_eq!(asynchronous.rule, blocking.rule);
}
