//! A client driver that the test runs turn by turn, and scripted servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use towline_io::client::{
    Body, CallError, CallEvent, CallId, CallOptions, CallRead, ClientDriver, ClientDriverConfig,
    OutgoingRequest, RequestText, Route,
};

use super::MAX_WAIT;

pub fn route(addr: SocketAddr) -> Arc<Route> {
    Arc::new(Route::plain(&addr.ip().to_string(), addr.port()))
}

pub fn request(route: &Arc<Route>, method: &str, target: &str, body: Body) -> OutgoingRequest {
    let mut head = RequestText::new(method.as_bytes(), target.as_bytes());
    head.push(b"host", b"test");
    OutgoingRequest {
        route: Arc::clone(route),
        head: head.into(),
        body,
        idempotent: method != "POST",
    }
}

pub fn get(route: &Arc<Route>, target: &str) -> OutgoingRequest {
    request(route, "GET", target, Body::Empty)
}

/// Outcome of a call.
#[derive(Debug)]
pub enum Outcome {
    Response(u16, Vec<u8>),
    Failed(Box<CallError>),
}

impl Outcome {
    pub fn response(self) -> (u16, Vec<u8>) {
        match self {
            Self::Response(status, body) => (status, body),
            Self::Failed(error) => panic!("failed: {error:?}"),
        }
    }

    pub fn failed(self) -> CallError {
        match self {
            Self::Failed(error) => *error,
            Self::Response(status, body) => panic!("response: {status} {body:?}"),
        }
    }
}

pub struct DriverHarness {
    pub driver: ClientDriver,
    pub events: Vec<(CallId, CallEvent)>,
}

impl DriverHarness {
    pub fn new(change: impl FnOnce(&mut ClientDriverConfig)) -> Self {
        let mut config = ClientDriverConfig::default();
        change(&mut config);
        Self {
            driver: ClientDriver::new(config).unwrap(),
            events: Vec::new(),
        }
    }

    pub fn begin(&mut self, request: OutgoingRequest) -> CallId {
        self.driver.begin(request, CallOptions::default()).unwrap()
    }

    /// Runs one turn and keeps its events.
    pub fn turn(&mut self, wait: Duration) {
        self.driver.flush();
        self.driver.turn(Some(wait)).unwrap();
        while let Some(event) = self.driver.next_event() {
            self.events.push(event);
        }
    }

    /// Runs turns until `condition` holds.
    pub fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < MAX_WAIT, "{what}: {:?}", self.events);
            self.turn(Duration::from_millis(20));
        }
    }

    /// Waits for an event of a call and removes it from the list.
    pub fn event(&mut self, call: CallId) -> CallEvent {
        let mut found = None;
        self.until("no event", |harness| {
            let at = harness.events.iter().position(|(of, _)| *of == call);
            found = at.map(|at| harness.events.remove(at).1);
            found.is_some()
        });
        found.unwrap()
    }

    /// Reads the whole response and removes the call.
    pub fn finish(&mut self, call: CallId) -> Outcome {
        let mut status = 0;
        let outcome = loop {
            match self.event(call) {
                CallEvent::Failed(error) => break Outcome::Failed(error),
                CallEvent::Head { .. } => {
                    status = self.driver.take_head(call).unwrap().view().status();
                    break self.body(call, status);
                }
                _ => {}
            }
        };
        let _ = status;
        self.driver.cancel(call);
        self.events.retain(|(of, _)| *of != call);
        outcome
    }

    pub fn body(&mut self, call: CallId, status: u16) -> Outcome {
        let mut body = Vec::new();
        loop {
            match self.driver.read(call, 10_000) {
                CallRead::Data(data) => body.extend_from_slice(data),
                CallRead::End => return Outcome::Response(status, body),
                CallRead::Failed(error) => return Outcome::Failed(error),
                CallRead::Pending => {
                    if let CallEvent::Failed(error) = self.event(call) {
                        return Outcome::Failed(error);
                    }
                }
            }
        }
    }

    pub fn get(&mut self, route: &Arc<Route>, target: &str) -> Outcome {
        let call = self.begin(get(route, target));
        self.finish(call)
    }
}

/// A server that calls `serve` with the number of each connection and its stream, on a thread of its own.
pub struct Scripted {
    pub addr: SocketAddr,
    _thread: JoinHandle<()>,
}

impl Scripted {
    pub fn new(serve: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let serve = Arc::new(serve);
        let thread = std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
                stream.set_nodelay(true).unwrap();
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(number, stream));
            }
        });
        Self {
            addr,
            _thread: thread,
        }
    }
}

/// Reads up to the end of a request head; `None` at the end of input.
pub fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8(head).unwrap())
}

pub fn send(stream: &mut TcpStream, text: &str) {
    // The client may have closed the connection, which some tests expect.
    let _ = stream.write_all(text.as_bytes());
}

pub fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
