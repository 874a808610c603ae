//! A scripted server with blocking sockets and none of our code.
#![allow(dead_code)] // every test file uses its own part

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use socket2::{Domain, Socket, Type};
use towline_load::{
    Config, Expect, LoopMode, Outcome, Report, Session, Slice, Stop, Target, Until, run,
};

pub const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// The checks of [`HELLO`].
pub fn expect_hello() -> Expect {
    Expect {
        body: Some(Bytes::from_static(b"hello")),
        ..Expect::default()
    }
}

/// The reply to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply {
    Send(&'static [u8]),
    /// Sends the bytes, then closes.
    Last(&'static [u8]),
    /// Resets the connection without a response.
    Reset,
    /// Sends nothing.
    Silence,
}

/// A request as the script gets it: its number over all connections, from 0, and its bytes.
pub struct ScriptedRequest<'a> {
    pub number: u64,
    pub request: &'a [u8],
}

pub struct Server {
    pub addr: SocketAddr,
    pub request_count: Arc<AtomicU64>,
    pub accepted: Arc<AtomicU64>,
    /// Connections that were closed after their last response.
    pub closed_count: Arc<AtomicU64>,
}

impl Server {
    /// `script` is called for each request, on the thread of its connection: it may sleep.
    pub fn new(script: impl Fn(ScriptedRequest<'_>) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            addr: listener.local_addr().unwrap(),
            request_count: Arc::default(),
            accepted: Arc::default(),
            closed_count: Arc::default(),
        };
        let (request_count, accepted) = (
            Arc::clone(&server.request_count),
            Arc::clone(&server.accepted),
        );
        let closed_count = Arc::clone(&server.closed_count);
        let script = Arc::new(script);
        // The thread ends with the process.
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                accepted.fetch_add(1, Ordering::Relaxed);
                let (request_count, closed_count) =
                    (Arc::clone(&request_count), Arc::clone(&closed_count));
                let script = Arc::clone(&script);
                thread::spawn(move || serve(&socket, &request_count, &closed_count, &*script));
            }
        });
        server
    }

    pub fn hello() -> Self {
        Self::new(|_| Reply::Send(HELLO))
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }

    /// One connection, `n` requests, and a timeout for busy machines.
    pub fn config(&self, n: u64) -> Config {
        let mut config = Config::new(vec![Target::get(&self.url()).unwrap()]);
        config.connections = 1;
        config.until = Until::Requests(n);
        config.timeout = Duration::from_secs(20);
        config
    }
}

fn serve(
    mut socket: &TcpStream,
    request_count: &AtomicU64,
    closed_count: &AtomicU64,
    script: &(dyn Fn(ScriptedRequest<'_>) -> Reply + Send + Sync),
) {
    let _ = socket.set_nodelay(true);
    let mut unread = Vec::new();
    while let Ok(Some(request)) = next_request(socket, &mut unread) {
        let number = request_count.fetch_add(1, Ordering::Relaxed);
        let request = &request;
        let sent = match script(ScriptedRequest { number, request }) {
            Reply::Send(bytes) => socket.write_all(bytes),
            Reply::Last(bytes) => {
                let _ = socket.write_all(bytes);
                let _ = socket.shutdown(Shutdown::Write);
                closed_count.fetch_add(1, Ordering::Relaxed);
                let _ = io::copy(&mut socket, &mut io::sink());
                return;
            }
            Reply::Reset => return reset(socket),
            Reply::Silence => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// A close with unread bytes is a reset on Linux; there are none here, so linger is set.
fn reset(socket: &TcpStream) {
    let socket = socket2::SockRef::from(socket);
    let _ = socket.set_linger(Some(Duration::ZERO));
}

/// Head and, by its Content-Length, body.
fn next_request(mut socket: &TcpStream, unread: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(length) = whole_length(unread)
            && unread.len() >= length
        {
            let rest = unread.split_off(length);
            return Ok(Some(std::mem::replace(unread, rest)));
        }
        let mut space = [0; 16 * 1024];
        match socket.read(&mut space)? {
            0 => return Ok(None),
            n => unread.extend_from_slice(&space[..n]),
        }
    }
}

fn whole_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next());
    Some(end + length.map_or(0, |digits| digits.parse::<usize>().unwrap()))
}

/// Waits until `so` holds.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A port that refuses connections. It stays bound for the life of the process, so that no other test
/// gets it.
pub fn refusing_port() -> u16 {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    addr.port()
}

pub fn load(config: &Config) -> Outcome {
    run(config, &Stop::default()).unwrap()
}

/// Runs a load whose `n` requests must all succeed.
pub fn all_answered(config: &Config, n: u64) -> Report {
    let report = load(config).report;
    assert_eq!((report.answered, report.errors.total()), (n, 0), "{report}");
    report
}

/// Runs three slices of 50 requests; the two connections must stay open between them.
pub fn keeps_connections(config: Config) {
    let mut session = Session::open(config).unwrap();
    for _ in 0..3 {
        let slice = Slice {
            loop_mode: LoopMode::Closed,
            until: Until::Requests(50),
            warm_up: Duration::ZERO,
        };
        let report = session.slice(&slice, &Stop::default()).unwrap().report;
        let counts = (report.answered, report.errors.total());
        let connections = (report.reconnects, report.live_connections.at_end);
        assert_eq!((counts, connections), ((50, 0), (0, 2)), "{report}");
    }
}

/// The remaining time of the stall, if this moment is in the first `length` of a `period` since `start`.
pub fn is_in_stall(start: Instant, period: Duration, length: Duration) -> Option<Duration> {
    let since = start.elapsed();
    let into = Duration::from_nanos((since.as_nanos() % period.as_nanos()) as u64);
    length.checked_sub(into)
}
