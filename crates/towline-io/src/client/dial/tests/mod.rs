//! Dials over real loopback and Unix sockets, driven as each client does it: by poll(2), and by an
//! edge-triggered poll.

mod certs;
mod connect;
mod external_tls;
mod proxies;
mod quic;
mod tls;

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, Socket, Type};

use super::*;
use crate::conn::addr::PeerAddr;
use crate::tls::RecvOutcome;

const MAX_WAIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
enum Client {
    Blocking,
    Async,
}

const CLIENTS: [Client; 2] = [Client::Blocking, Client::Async];

/// Runs a dial to its end.
fn dial(client: Client, route: &Route, config: &DialConfig) -> Result<Box<Established>, DialError> {
    let dial = Dial::start(
        Arc::new(route.clone()),
        &Arc::new(config.clone()),
        Instant::now(),
    );
    match client {
        Client::Blocking => drive_by_poll(dial),
        Client::Async => drive_by_edges(dial),
    }
}

fn refused(route: &Route, config: &DialConfig) -> DialError {
    let Err(error) = dial(Client::Blocking, route, config) else {
        panic!("connected to {route:?}");
    };
    error
}

fn time_to_wait(dial: &Dial, start: Instant) -> Option<Duration> {
    assert!(start.elapsed() < MAX_WAIT, "the dial hangs");
    let now = Instant::now();
    dial.deadline()
        .map(|deadline| deadline.saturating_duration_since(now) + Duration::from_millis(1))
}

fn drive_by_poll(mut dial: Dial) -> Result<Box<Established>, DialError> {
    let start = Instant::now();
    loop {
        match dial.advance(Instant::now()) {
            Progress::Done(established) => return Ok(established),
            Progress::Failed(error) => return Err(error),
            Progress::Pending => {}
        }
        let mut watches = Vec::new();
        dial.fds(&mut watches);
        let events = |watch: &Watch| {
            let read = if watch.readable { libc::POLLIN } else { 0 };
            read | if watch.writable { libc::POLLOUT } else { 0 }
        };
        let mut entries: Vec<_> = watches
            .iter()
            .map(|watch| libc::pollfd {
                fd: watch.fd,
                events: events(watch),
                revents: 0,
            })
            .collect();
        let wait = time_to_wait(&dial, start).unwrap_or(MAX_WAIT).as_millis() as libc::c_int;
        // SAFETY: initialized entries that outlive the call.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, wait) };
    }
}

/// Advances only at an edge or a deadline, so a dial that leaves bytes unread or unsent hangs.
fn drive_by_edges(mut dial: Dial) -> Result<Box<Established>, DialError> {
    let start = Instant::now();
    let mut poll = Poll::new().unwrap();
    let mut known: HashMap<u32, Watch> = HashMap::new();
    let mut events = Events::with_capacity(16);
    loop {
        match dial.advance(Instant::now()) {
            Progress::Done(established) => return Ok(established),
            Progress::Failed(error) => return Err(error),
            Progress::Pending => {}
        }
        let mut watches = Vec::new();
        dial.fds(&mut watches);
        for watch in watches {
            let interest = match (watch.readable, watch.writable) {
                (true, true) => Interest::READABLE | Interest::WRITABLE,
                (true, false) => Interest::READABLE,
                _ => Interest::WRITABLE,
            };
            let token = Token(watch.serial as usize);
            match known.insert(watch.serial, watch) {
                None => poll
                    .registry()
                    .register(&mut SourceFd(&watch.fd), token, interest)
                    .unwrap(),
                Some(before) if before == watch => {}
                Some(_) => poll
                    .registry()
                    .reregister(&mut SourceFd(&watch.fd), token, interest)
                    .unwrap(),
            }
        }
        let wait = time_to_wait(&dial, start).unwrap_or(MAX_WAIT);
        poll.poll(&mut events, Some(wait)).unwrap();
    }
}

fn listener(at: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(at).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Starts a server for one connection.
fn serve<T: Send + 'static>(
    work: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let (listener, addr) = listener("127.0.0.1:0");
    (
        addr,
        thread::spawn(move || work(listener.accept().unwrap().0)),
    )
}

fn plain(addr: SocketAddr) -> Route {
    Route::plain(&addr.ip().to_string(), addr.port())
}

/// Returns an address that refuses. The port stays bound until the process exits, so that no other test gets it.
fn closed_port(at: &str) -> SocketAddr {
    let at: SocketAddr = at.parse().unwrap();
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
    socket.bind(&at.into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    addr
}

fn with_overrides(key: &str, addrs: &[SocketAddr]) -> DialConfig {
    let addrs: Vec<_> = addrs.iter().map(SocketAddr::to_string).collect();
    let mut config = DialConfig::default();
    config
        .overrides
        .add(key, addrs.iter().map(String::as_str))
        .unwrap();
    config
}

/// Sends all of `bytes` on an established connection.
fn send(established: &mut Established, mut bytes: &[u8]) {
    let transport = established.transport.stream_mut().unwrap();
    let start = Instant::now();
    while !bytes.is_empty() || transport.tls.as_ref().is_some_and(|tls| tls.wants_write()) {
        assert!(start.elapsed() < MAX_WAIT, "the peer does not read");
        let sent = match &mut transport.tls {
            None => transport
                .send_plain(&[IoSlice::new(bytes)], false)
                .unwrap_or(0),
            Some(tls) => {
                let accepted = if tls.accepts_plaintext() {
                    tls.encrypt(&[IoSlice::new(bytes)]).unwrap()
                } else {
                    0
                };
                if tls.flush(&transport.socket).unwrap().is_none() {
                    thread::sleep(Duration::from_millis(1));
                }
                accepted
            }
        };
        bytes = &bytes[sent..];
    }
}

/// Receives exactly `count` bytes.
fn receive(established: &mut Established, count: usize) -> Vec<u8> {
    let mut received = vec![0; count];
    let mut at = 0;
    let start = Instant::now();
    while at < count {
        assert!(
            start.elapsed() < MAX_WAIT,
            "nothing received after {at} bytes"
        );
        match established
            .transport
            .stream_mut()
            .unwrap()
            .recv(&mut received[at..])
        {
            Ok(RecvOutcome::Data { bytes, .. }) => at += bytes,
            Ok(RecvOutcome::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            other => panic!("{other:?} after {at} bytes"),
        }
    }
    received
}

/// Receives the error that ends a connection; no data may precede it.
fn receive_error(established: &mut Established) -> io::Error {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < MAX_WAIT);
        match established
            .transport
            .stream_mut()
            .unwrap()
            .recv(&mut [0; 16])
        {
            Ok(RecvOutcome::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => return error,
        }
    }
}

/// Echoes all bytes until the end of the stream.
fn echo(stream: &mut (impl io::Read + io::Write)) {
    let mut space = [0; 16 * 1024];
    loop {
        match stream.read(&mut space) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => stream.write_all(&space[..bytes]).unwrap(),
        }
        stream.flush().unwrap();
    }
}

fn assert_echoes(established: &mut Established) {
    send(established, b"hello");
    assert_eq!(receive(established, 5), b"hello");
}
