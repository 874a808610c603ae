//! The network emulator: what it delays, and what it leaves unchanged.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use towline_load::netem::{Netem, NetworkConditions, Waker};

const TIMEOUT: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

struct Network {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    most_held_bytes: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    fn to(to: SocketAddr, conditions: &NetworkConditions) -> Self {
        let mut netem = Netem::new("127.0.0.1:0".parse().unwrap(), to, conditions).unwrap();
        let (addr, waker) = (netem.local_addr().unwrap(), netem.waker());
        let connections = Arc::new(AtomicUsize::new(0));
        let most_held_bytes = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (counted, held, stopped) = (
            Arc::clone(&connections),
            Arc::clone(&most_held_bytes),
            Arc::clone(&stop),
        );
        let thread = thread::spawn(move || {
            towline_io::generator::exact_timers();
            while !stopped.load(Ordering::Relaxed) {
                netem.turn().unwrap();
                counted.store(netem.connections(), Ordering::Relaxed);
                held.fetch_max(netem.held_bytes(), Ordering::Relaxed);
            }
        });
        Self {
            addr,
            connections,
            most_held_bytes,
            stop,
            waker,
            thread: Some(thread),
        }
    }

    fn connect(&self) -> TcpStream {
        with_timeouts(TcpStream::connect(self.addr).unwrap())
    }

    /// Waits until no connection is left.
    fn await_empty(&self) {
        let start = Instant::now();
        while self.connections.load(Ordering::Relaxed) > 0 {
            assert!(start.elapsed() < TIMEOUT, "connections are left over");
            self.waker.wake().unwrap();
            thread::sleep(MS);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake().unwrap();
        let result = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            result.unwrap().unwrap();
        }
    }
}

fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Does `work` with each connection, on a thread of its own.
fn server(work: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let work = Arc::new(work);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let work = Arc::clone(&work);
            thread::spawn(move || work(with_timeouts(stream)));
        }
    });
    addr
}

fn echo() -> SocketAddr {
    server(|mut stream| {
        let mut space = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = stream.read(&mut space) {
            if stream.write_all(&space[..n]).is_err() {
                return;
            }
        }
    })
}

fn exchange(stream: &mut TcpStream) -> Duration {
    let start = Instant::now();
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    start.elapsed()
}

#[test]
fn an_exchange_takes_a_round_trip_and_the_first_one_two() {
    // Never early. Late only because the machine is busy, which a longer round trip makes negligible; one round
    // trip too many would stay visible.
    for unit in [1, 10, 100].map(|times| times * MS) {
        let conditions = NetworkConditions {
            rtt: 30 * unit,
            jitter: 4 * unit,
            seed: 7,
            ..NetworkConditions::default()
        };
        let network = Network::to(echo(), &conditions);
        let start = Instant::now();
        let mut stream = network.connect();
        exchange(&mut stream);
        assert!(start.elapsed() >= 56 * unit, "{:?}", start.elapsed());
        let times: Vec<_> = (0..10).map(|_| exchange(&mut stream)).collect();
        assert!(times.iter().all(|&took| took >= 26 * unit), "{times:?}");
        if times.iter().any(|&took| took < 50 * unit) {
            return;
        }
    }
    panic!("each exchange takes a round trip too many");
}

#[test]
fn bytes_arrive_unchanged_whatever_the_writes() {
    let conditions = NetworkConditions {
        rtt: 2 * MS,
        jitter: 2 * MS,
        rate: Some(40e6),
        loss: 0.0005,
        seed: 3,
        ..NetworkConditions::default()
    };
    let network = Network::to(echo(), &conditions);
    let sent: Vec<u8> = (0..1_500_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut stream = network.connect();
    let mut writer = stream.try_clone().unwrap();
    let data = sent.clone();
    let writing = thread::spawn(move || {
        let mut rest = &data[..];
        let mut size = 1;
        while !rest.is_empty() {
            size = (size * 31 + 7) % 40_000;
            let (now, later) = rest.split_at(size.clamp(1, rest.len()));
            writer.write_all(now).unwrap();
            rest = later;
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert!(received == sent, "{} of {}", received.len(), sent.len());
    drop(stream);
    network.await_empty();
}

#[test]
fn the_rate_is_shared_by_all_connections() {
    let source = server(|mut stream| {
        let _ = stream.write_all(&vec![1; 1_000_000]);
    });
    // A slower rate leaves a busy machine less to do.
    for seconds in [0.8, 3.2, 12.8] {
        let conditions = NetworkConditions {
            rtt: 4 * MS,
            rate: Some(4e6 / seconds),
            ..NetworkConditions::default()
        };
        let network = Network::to(source, &conditions);
        let start = Instant::now();
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let mut stream = network.connect();
                thread::spawn(move || stream.read_to_end(&mut Vec::new()).unwrap())
            })
            .collect();
        let bytes: usize = readers.into_iter().map(|one| one.join().unwrap()).sum();
        assert_eq!(bytes, 4_000_000);
        let took = start.elapsed().as_secs_f64();
        assert!(took >= 0.98 * seconds, "{took}");
        if took < 1.5 * seconds {
            return;
        }
    }
    panic!("the rate is not reached");
}

#[test]
fn a_stalled_reader_costs_one_window() {
    let written = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&written);
    let source = server(move |mut stream| {
        let piece = vec![1; 64 * 1024];
        for _ in 0..2000 {
            if stream.write_all(&piece).is_err() {
                return;
            }
            counter.fetch_add(piece.len(), Ordering::Relaxed);
        }
    });
    let conditions = NetworkConditions {
        rtt: MS,
        rate: Some(1e9),
        ..NetworkConditions::default()
    };
    let network = Network::to(source, &conditions);
    let mut stream = network.connect();
    // Wait until nothing more is accepted.
    let mut before = 0;
    loop {
        thread::sleep(100 * MS);
        let now = written.load(Ordering::Relaxed);
        if now > 0 && now == before {
            break;
        }
        before = now;
    }
    // A megabyte is the bandwidth-delay product; one piece may exceed the bound.
    let held = network.most_held_bytes.load(Ordering::Relaxed);
    assert!(
        (500_000..1_000_000 + 256 * 1024 + 64 * 1024).contains(&held),
        "{held}"
    );
    let mut received = 0;
    let mut space = vec![0; 1 << 20];
    while let Ok(n @ 1..) = stream.read(&mut space) {
        received += n;
    }
    assert_eq!(received, 2000 * 64 * 1024);
}

#[test]
fn a_half_close_passes_and_leaves_the_other_direction_open() {
    let source = server(|mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        request.reverse();
        stream.write_all(&request).unwrap();
    });
    let conditions = NetworkConditions {
        rtt: 10 * MS,
        ..NetworkConditions::default()
    };
    let network = Network::to(source, &conditions);
    let mut stream = network.connect();
    stream.write_all(b"abc").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    assert_eq!(response, b"cba");
    drop(stream);
    network.await_empty();
}

#[test]
fn a_reset_and_a_refusal_arrive_as_resets() {
    let resetting = server(|mut stream| {
        stream.read_exact(&mut [0; 4]).unwrap();
        let socket = socket2::SockRef::from(&stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    });
    // Bound, but not listening.
    let unused = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    unused
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let refusing = unused.local_addr().unwrap().as_socket().unwrap();
    let conditions = NetworkConditions {
        rtt: 20 * MS,
        ..NetworkConditions::default()
    };
    for to in [resetting, refusing] {
        let network = Network::to(to, &conditions);
        let mut stream = network.connect();
        let start = Instant::now();
        stream.write_all(b"ping").unwrap();
        let error = stream.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(start.elapsed() >= 20 * MS, "{:?}", start.elapsed());
        network.await_empty();
    }
}

#[test]
fn a_reset_by_the_client_reaches_the_upstream() {
    let (sender, outcomes) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let source = server(move |mut stream| {
        stream.read_exact(&mut [0; 4]).unwrap();
        let outcome = stream.read(&mut [0; 1]).map_err(|error| error.kind());
        sender.lock().unwrap().send(outcome).unwrap();
    });
    let conditions = NetworkConditions {
        rtt: 10 * MS,
        ..NetworkConditions::default()
    };
    let network = Network::to(source, &conditions);
    let mut stream = network.connect();
    stream.write_all(b"ping").unwrap();
    // After the handshake, so that the reset does not overtake the bytes.
    thread::sleep(50 * MS);
    let socket = socket2::SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    let outcome = outcomes.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(outcome, Err(std::io::ErrorKind::ConnectionReset));
    network.await_empty();
}

#[test]
fn hundreds_of_connections_work_at_once() {
    let conditions = NetworkConditions {
        rtt: 5 * MS,
        ..NetworkConditions::default()
    };
    let network = Network::to(echo(), &conditions);
    let mut streams: Vec<_> = (0..300).map(|_| network.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"ping").unwrap();
    }
    for stream in &mut streams {
        let mut response = [0; 4];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(&response, b"ping");
    }
    drop(streams);
    network.await_empty();
}

/// Repeats each datagram to its sender.
fn datagram_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut space = [0; 2048];
        while let Ok((n, from)) = socket.recv_from(&mut space) {
            socket.send_to(&space[..n], from).unwrap();
        }
    });
    addr
}

fn datagram_socket(network: &Network, timeout: Duration) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(network.addr).unwrap();
    socket.set_read_timeout(Some(timeout)).unwrap();
    socket
}

/// Numbers of the datagrams that come back, in their order, of `count` sent.
fn echoed(socket: &UdpSocket, count: u32) -> Vec<u32> {
    // Read meanwhile: a socket's buffer holds some hundreds only.
    let sender = socket.try_clone().unwrap();
    thread::spawn(move || {
        for number in 0..count {
            sender.send(&number.to_be_bytes()).unwrap();
            thread::sleep(Duration::from_micros(50));
        }
    });
    let mut space = [0; 4];
    let mut numbers = Vec::new();
    while let Ok(4) = socket.recv(&mut space) {
        numbers.push(u32::from_be_bytes(space));
    }
    numbers
}

#[test]
fn datagrams_pass_in_order_after_half_a_round_trip_each_way() {
    let conditions = NetworkConditions {
        rtt: 40 * MS,
        jitter: 10 * MS,
        ..NetworkConditions::default()
    };
    let network = Network::to(datagram_echo(), &conditions);
    let sockets = [(); 3].map(|()| datagram_socket(&network, TIMEOUT));
    for (number, socket) in sockets.iter().enumerate() {
        let start = Instant::now();
        socket.send(&[u8::try_from(number).unwrap()]).unwrap();
        let mut space = [0; 8];
        let n = socket.recv(&mut space).unwrap();
        assert_eq!(space[..n], [u8::try_from(number).unwrap()]);
        assert!(start.elapsed() >= 30 * MS, "{:?}", start.elapsed());
    }
    sockets[0].set_read_timeout(Some(500 * MS)).unwrap();
    assert_eq!(echoed(&sockets[0], 500), (0..500).collect::<Vec<_>>());
}

#[test]
fn datagrams_are_lost_repeated_and_reordered() {
    let conditions = NetworkConditions {
        rtt: 8 * MS,
        loss: 0.1,
        reorder: 0.1,
        duplicates: 0.1,
        seed: 5,
        ..NetworkConditions::default()
    };
    let network = Network::to(datagram_echo(), &conditions);
    let found = echoed(&datagram_socket(&network, 500 * MS), 1000);
    let mut distinct = found.clone();
    distinct.sort_unstable();
    distinct.dedup();
    // 81 % come back, of which a fifth twice in one direction or the other. A busy machine may lose more.
    assert!((600..=880).contains(&distinct.len()), "{}", distinct.len());
    assert!(found.len() > distinct.len() + 50, "{}", found.len());
    assert!(found.windows(2).any(|two| two[0] > two[1]));
    network.await_empty();
}
