//! A server on a thread of the test, and a minimal client.
#![allow(dead_code)] // every test file uses its own part

#[path = "../../../towline-load/src/responder/routes/mod.rs"]
pub mod routes;

pub mod blocking;
pub mod calls;
pub mod frames;
pub mod schedule;
pub mod scripted;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use routes::{Jobs, State};
use socket2::{Domain, Socket, Type};
use towline_io::{ConnConfig, Engine, EngineConfig, EngineWaker, Listener};
use towline_proto::Limits;

/// Timeout of every wait in a test.
pub const MAX_WAIT: Duration = Duration::from_secs(20);

pub struct Server {
    pub addr: SocketAddr,
    /// Connections accepted so far.
    pub accepted: Arc<AtomicU64>,
    remote: EngineWaker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn plain() -> Self {
        Self::start(ConnConfig::plain(Limits::server()))
    }

    pub fn start(service: ConnConfig) -> Self {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 2048).unwrap();
        Self::on(listener, service, EngineConfig::default())
    }

    pub fn on(listener: Listener, service: ConnConfig, config: EngineConfig) -> Self {
        let unknown = || "0.0.0.0:0".parse().unwrap();
        let addr = listener
            .local_addr()
            .unwrap()
            .inet()
            .unwrap_or_else(unknown);
        let mut engine = Engine::<Jobs>::new(config).unwrap();
        engine.add_listener(listener, Arc::new(service)).unwrap();
        let remote = engine.waker();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accepted = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&accepted);
        let thread = std::thread::spawn(move || {
            let mut state = State::default();
            while !stopped.load(Ordering::Relaxed) {
                routes::turn(&mut engine, &mut state).unwrap();
                counter.store(engine.accepted(), Ordering::Relaxed);
            }
        });
        Self {
            addr,
            accepted,
            remote,
            stop,
            thread: Some(thread),
        }
    }

    pub fn connect(&self) -> TcpStream {
        with_timeouts(TcpStream::connect(self.addr).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.remote.wake().unwrap();
        let result = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            result.unwrap().unwrap();
        }
    }
}

pub fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
    stream.set_write_timeout(Some(MAX_WAIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// An address that refuses connections. Its port stays bound while the process lives, so that no other test gets it.
pub fn refusing_addr() -> SocketAddr {
    let (socket, addr) = bound_only();
    std::mem::forget(socket);
    addr
}

/// A socket that is bound but does not listen.
pub fn bound_only() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, addr)
}

pub fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nhost: test\r\n\r\n").into_bytes()
}

pub fn post(target: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!("POST {target} HTTP/1.1\r\nhost: test\r\ncontent-length: {len}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// Reads exactly one response that has a content-length.
pub fn read_response(stream: &mut impl Read) -> Response {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
        assert!(head.len() < 64 * 1024, "endless head");
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.split("content-length: ").nth(1).map_or(0, |rest| {
        rest.split("\r\n").next().unwrap().parse().unwrap()
    });
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    Response { status, head, body }
}

pub fn exchange(stream: &mut (impl Read + Write), request: &[u8]) -> Response {
    stream.write_all(request).unwrap();
    read_response(stream)
}

/// Reads until the end of input.
pub fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}
