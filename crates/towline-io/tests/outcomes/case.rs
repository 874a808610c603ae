//! A call that is made on every path, and the scripted servers of the tests.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use towline_io::client::{
    BlockingClient, BlockingConfig, BlockingError, Body, CallError, CallErrorKind, CallEvent,
    CallOptions, CallPhase, DialConfig, OutgoingRequest, Route, StaleRetry, Timeouts,
};
use towline_proto::ProtocolPolicy;

use crate::support::blocking::uninterrupted;
use crate::support::calls::{DriverHarness, Outcome, Scripted, head, request};
use crate::support::frames::Frames;

pub const SHORT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
}

impl Version {
    pub const ALL: [Self; 2] = [Self::Http1, Self::Http2];

    pub fn dial(self) -> Arc<DialConfig> {
        let protocols = match self {
            Self::Http1 => ProtocolPolicy::Http1,
            Self::Http2 => ProtocolPolicy::Http2,
        };
        Arc::new(DialConfig::default().with_protocols(protocols))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Asynchronous,
    Blocking,
}

/// Status and body of a response, or the error.
pub type Reply = Result<(u16, Vec<u8>), Verdict>;

/// The part of an error that must not depend on the path.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    pub kind: CallErrorKind,
    pub phase: CallPhase,
    pub retryable: bool,
    pub text: String,
}

/// A call that is made on every path.
pub struct Case {
    method: &'static str,
    /// A complete body.
    body: Bytes,
    /// A streamed body, which the program writes in one piece and finishes.
    streamed: Option<Bytes>,
    /// The body waits for `100 Continue`.
    expects: bool,
    pub options: CallOptions,
}

impl Case {
    pub fn new(method: &'static str) -> Self {
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

    pub fn with_timeouts(mut self, change: impl FnOnce(&mut Timeouts)) -> Self {
        change(&mut self.options.timeouts);
        self
    }

    pub fn with_body(mut self, bytes: usize) -> Self {
        self.body = Bytes::from(vec![b'x'; bytes]);
        self
    }

    pub fn streaming(mut self, bytes: &'static [u8]) -> Self {
        self.streamed = Some(Bytes::from_static(bytes));
        self
    }

    pub fn expecting(mut self) -> Self {
        self.expects = true;
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
            Arc::make_mut(&mut request.head).push(b"expect", b"100-continue");
        }
        request
    }

    fn run(&self, client: Client, version: Version, route: &Arc<Route>) -> Reply {
        let result = match client {
            Client::Asynchronous => self.run_asynchronous(version.dial(), route),
            Client::Blocking => self.run_blocking(version.dial(), route),
        };
        result.map_err(Verdict::of)
    }

    fn run_asynchronous(
        &self,
        dial: Arc<DialConfig>,
        route: &Arc<Route>,
    ) -> Result<(u16, Vec<u8>), CallError> {
        let mut harness = DriverHarness::new(|config| config.dial = dial);
        let begun = harness.driver.begin(self.request(route), self.options);
        let call = begun.map_err(|error| *error)?;
        let mut outcome = None;
        if let Some(data) = &self.streamed {
            match harness.event(call) {
                CallEvent::Writable => {
                    let _ = harness.driver.write(call, data.clone());
                    let _ = harness.driver.finish(call, &[]);
                }
                CallEvent::Failed(error) => return Err(*error),
                // The response came first: the body is not sent.
                CallEvent::Head { .. } => {
                    let head = harness.driver.take_head(call).unwrap();
                    outcome = Some(harness.body(call, head.view().status()));
                }
                event => panic!("{event:?}"),
            }
        }
        match outcome.unwrap_or_else(|| harness.finish(call)) {
            Outcome::Failed(error) => Err(*error),
            Outcome::Response(status, body) => Ok((status, body)),
        }
    }

    fn run_blocking(
        &self,
        dial: Arc<DialConfig>,
        route: &Arc<Route>,
    ) -> Result<(u16, Vec<u8>), CallError> {
        let client = BlockingClient::new(BlockingConfig {
            dial,
            ..BlockingConfig::default()
        });
        let request = self.request(route);
        failed(uninterrupted(|policy| {
            let mut call = client.begin(request, self.options, policy)?;
            if let Some(data) = &self.streamed {
                call.write(data.clone(), policy)?;
                call.finish(&[], policy)?;
            }
            let status = call.await_head(policy)?.view().status();
            let mut body = Vec::new();
            call.read_all(&mut body, policy)?;
            Ok((status, body))
        }))
    }
}

/// The error of the call itself.
pub fn failed<T>(result: Result<T, BlockingError>) -> Result<T, CallError> {
    result.map_err(|error| match error {
        BlockingError::Failed(error) => *error,
        BlockingError::Interrupted => panic!("interrupted"),
    })
}

/// Runs a case on both clients with one version and asserts that they agree.
pub fn replies_on_both(case: &Case, version: Version, route: &Arc<Route>) -> Reply {
    let reply = case.run(Client::Asynchronous, version, route);
    let blocking = case.run(Client::Blocking, version, route);
    assert_eq!(reply, blocking, "asynchronous, then blocking; {version:?}");
    reply
}

/// Outcome of a case that fails.
pub fn on_both(case: &Case, version: Version, route: &Arc<Route>) -> Verdict {
    replies_on_both(case, version, route).expect_err("the call succeeded")
}

pub fn route_to(server: &Scripted) -> Arc<Route> {
    Arc::new(Route::plain(
        &server.addr.ip().to_string(),
        server.addr.port(),
    ))
}

/// Starts an HTTP/1 server that reads the head of a request and runs `script` on the connection.
pub fn http1(script: impl Fn(TcpStream) + Send + Sync + 'static) -> Scripted {
    Scripted::new(move |_, mut stream| {
        if head(&mut stream).is_some() {
            script(stream);
        }
    })
}

/// Starts an HTTP/2 server that reads the head of a request and runs `script` with the stream.
pub fn http2(script: impl Fn(Frames, u32) + Send + Sync + 'static) -> Scripted {
    Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        if let Some(stream) = frames.request() {
            script(frames, stream);
        }
    })
}

/// Closes with RST.
pub fn reset(stream: &TcpStream) {
    SockRef::from(stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

/// Reads until the client has closed.
pub fn drain(mut stream: &TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Closes the connection with FIN. Dropping it could reset it instead, if input (an ACK of SETTINGS) is unread.
pub fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
    drain(stream);
}

/// Runs a case against a script of each version and asserts that the four paths agree.
pub fn on_all(
    case: &Case,
    script1: impl Fn(TcpStream) + Send + Sync + 'static,
    script2: impl Fn(Frames, u32) + Send + Sync + 'static,
) -> Verdict {
    let (server1, server2) = (http1(script1), http2(script2));
    let verdict = on_both(case, Version::Http1, &route_to(&server1));
    let over2 = on_both(case, Version::Http2, &route_to(&server2));
    verdict.assert_like(&over2);
    verdict
}

pub fn verdict(
    kind: CallErrorKind,
    phase: CallPhase,
    retryable: bool,
) -> (CallErrorKind, CallPhase, bool) {
    (kind, phase, retryable)
}

impl Verdict {
    /// Asserts that HTTP/1 and HTTP/2 agree. The text may differ only where it cites a rule of one of them.
    pub fn assert_like(&self, over2: &Self) {
        if self.text.contains("(RFC ") && over2.text.contains("(RFC ") {
            assert_eq!(self.is(), over2.is(), "HTTP/1, then HTTP/2");
        } else {
            assert_eq!(self, over2, "HTTP/1, then HTTP/2");
        }
    }

    pub fn of(error: CallError) -> Self {
        Self {
            kind: error.kind,
            phase: error.phase,
            retryable: error.retryable,
            text: error.message.into_owned(),
        }
    }

    pub fn is(&self) -> (CallErrorKind, CallPhase, bool) {
        verdict(self.kind, self.phase, self.retryable)
    }
}
