//! Without free descriptors the server waits without using CPU time, logs once a second, and recovers. In a
//! file of its own, because the limit that it sets applies to the whole process.

mod support;

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::routes::{Jobs, serve};
use support::{MAX_WAIT, get, read_response, with_timeouts};
use towline_io::{ConnConfig, Engine, EngineConfig, Listener, Notice};
use towline_proto::Limits;

fn limit_descriptors(soft: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: an initialized rlimit that outlives both calls.
    let result = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = soft;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    assert_eq!(result, 0);
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: an initialized timespec that outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    Duration::new(
        time.tv_sec.try_into().unwrap(),
        time.tv_nsec.try_into().unwrap(),
    )
}

/// Runs one turn that waits for 20 ms at most.
fn turn(engine: &mut Engine<Jobs>, notices: &mut Vec<Notice>) {
    engine.turn_start(Some(Duration::from_millis(20))).unwrap();
    while let Some(id) = engine.next_ready() {
        serve(
            engine.conn(id).unwrap(),
            &mut support::routes::State::default(),
        );
        engine.flush_and_rearm(id);
    }
    engine.turn_end();
    notices.extend(engine.take_notice());
}

fn turns_until(
    engine: &mut Engine<Jobs>,
    notices: &mut Vec<Notice>,
    is_reached: impl Fn(&Engine<Jobs>, &[Notice]) -> bool,
) {
    let start = Instant::now();
    while !is_reached(engine, notices) {
        assert!(start.elapsed() < MAX_WAIT, "{notices:?}");
        turn(engine, notices);
    }
}

fn handled(engine: &Engine<Jobs>, notices: &[Notice]) -> u64 {
    engine.accepted() + notices.iter().map(|notice| notice.shed).sum::<u64>()
}

#[test]
fn descriptor_exhaustion_uses_no_cpu_time_and_ends() {
    let mut engine = Engine::<Jobs>::new(EngineConfig::default()).unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 2048).unwrap();
    let addr = listener.local_addr().unwrap().inet().unwrap();
    engine
        .add_listener(listener, Arc::new(ConnConfig::plain(Limits::server())))
        .unwrap();
    let mut notices = Vec::new();
    // The clients' own descriptors are opened first, so that only the accepting side runs out of them.
    let mut clients: Vec<TcpStream> = (0..40)
        .map(|_| with_timeouts(TcpStream::connect(addr).unwrap()))
        .collect();
    // The limit applies to the lowest free number.
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
    limit_descriptors(u64::try_from(lowest).unwrap() + 10);
    let (begun, before) = (Instant::now(), cpu_time());
    let mut turns = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        turn(&mut engine, &mut notices);
        turns += 1;
    }
    let spent = cpu_time().saturating_sub(before);
    // 150 turns that wait, and one per client; without waiting there would be many thousands.
    assert!(turns < 400, "{turns} turns");
    assert!(spent < Duration::from_millis(500), "{spent:?}");
    let seconds = begun.elapsed().as_secs();
    assert!(
        (1..=seconds + 1).contains(&(notices.len() as u64)),
        "{notices:?}"
    );
    assert!(
        notices[0].accept_failures > 0 && notices[0].shed > 0,
        "{notices:?}"
    );
    assert!(notices[0].error.contains("open files"), "{notices:?}");
    assert!(engine.len() <= 10);
    limit_descriptors(1024);
    turns_until(&mut engine, &mut notices, |engine, notices| {
        handled(engine, notices) == 40
    });
    let mut client = with_timeouts(TcpStream::connect(addr).unwrap());
    std::io::Write::write_all(&mut client, &get("/")).unwrap();
    client.set_nonblocking(true).unwrap();
    turns_until(&mut engine, &mut notices, |_, _| {
        client.peek(&mut [0]).is_ok_and(|n| n > 0)
    });
    client.set_nonblocking(false).unwrap();
    assert_eq!(read_response(&mut client).status, 200);
    assert_eq!(handled(&engine, &notices), 41);
    clients.clear();
}
