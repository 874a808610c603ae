//! Servers of HTTP/2 that misbehave, for the asynchronous and the blocking client.

use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use towline_io::ConnConfig;
use towline_proto::{Limits, ProtocolPolicy};

use super::Server;
use super::calls::Scripted;
use super::frames::{
    DATA, END_HEADERS, Frames, HEADERS, OK, PING, RESET, frame, goaway, response_frames,
};

/// Towline's server with a limit on concurrent streams.
pub fn server_with(streams: u32) -> Server {
    let mut limits = Limits::server();
    limits.http2.max_concurrent_streams = streams;
    Server::start(ConnConfig {
        protocols: ProtocolPolicy::Http2,
        ..ConnConfig::plain(limits)
    })
}

/// Responds to each further request.
fn respond_to_all(frames: &mut Frames, body: &[u8]) {
    while let Some(stream) = frames.request() {
        frames.send(&response_frames(stream, body));
    }
}

/// Sends GOAWAY after four requests: the first two get the response `old`, and on another connection all get `new`.
pub fn going_away() -> Scripted {
    Scripted::new(|number, stream| {
        let mut frames = Frames::accept(stream);
        if number == 0 {
            let all = [(); 4].map(|()| frames.request().unwrap());
            frames.send(&goaway(all[1], 0));
            frames.send(&response_frames(all[0], b"old"));
            std::thread::sleep(Duration::from_millis(30));
            frames.send(&response_frames(all[1], b"old"));
            let further = frames.until(HEADERS);
            assert!(further.is_none(), "a call on a connection that ends");
            return;
        }
        respond_to_all(&mut frames, b"new");
    })
}

/// Responds with `whole`, then breaks the connection within the second of two further responses. On another connection
/// all get `again`.
pub fn breaking() -> Scripted {
    Scripted::new(|number, stream| {
        let mut frames = Frames::accept(stream);
        let first = frames.request().unwrap();
        if number == 0 {
            frames.send(&response_frames(first, b"whole"));
            let half = frames.request().unwrap();
            frames.send(&frame(HEADERS, END_HEADERS, half, OK));
            frames.send(&frame(DATA, 0, half, b"ha"));
            assert!(half < frames.request().unwrap());
            std::thread::sleep(Duration::from_millis(20));
            let _ = frames.0.shutdown(Shutdown::Both);
            return;
        }
        frames.send(&response_frames(first, b"again"));
        respond_to_all(&mut frames, b"again");
    })
}

/// Resets three requests with different codes, and the next one with `NO_ERROR` after the response `enough`, which is no
/// failure (RFC 9113 8.1). All others get `ok`.
pub fn resetting() -> Scripted {
    Scripted::new(|_, stream| {
        let mut frames = Frames::accept(stream);
        for code in [2_u32, 0xd, 1] {
            let stream = frames.request().unwrap();
            frames.send(&frame(RESET, 0, stream, &code.to_be_bytes()));
        }
        let stream = frames.request().unwrap();
        frames.send(&response_frames(stream, b"enough"));
        frames.send(&frame(RESET, 0, stream, &0_u32.to_be_bytes()));
        respond_to_all(&mut frames, b"ok");
    })
}

/// Refuses every request with `REFUSED_STREAM` and counts them.
pub fn refusing() -> (Scripted, Arc<AtomicUsize>) {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let server = Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        while let Some(stream) = frames.request() {
            counted.fetch_add(1, Relaxed);
            frames.send(&frame(RESET, 0, stream, &7_u32.to_be_bytes()));
        }
    });
    (server, attempts)
}

/// Does not respond on the first connection; on others all get `alive`.
pub fn silent_at_first() -> Scripted {
    Scripted::new(|number, stream| {
        let mut frames = Frames::accept(stream);
        while let Some(stream) = frames.request() {
            if number > 0 {
                frames.send(&response_frames(stream, b"alive"));
            }
        }
    })
}

/// Gets a request and does not acknowledge the PING after it. Sends whether there was one.
pub fn dead() -> (Scripted, mpsc::Receiver<bool>) {
    let (sender, receiver) = mpsc::channel();
    let server = Scripted::new(move |_, stream| {
        let mut frames = Frames::accept(stream);
        frames.request().unwrap();
        sender.send(frames.until(PING).is_some()).unwrap();
        while frames.next().is_some() {}
    });
    (server, receiver)
}

/// Limits of a client that sends PING. The times suffice for the server to send its SETTINGS.
pub fn pinging() -> Limits {
    let mut limits = Limits::client();
    limits.http2.ping_interval = Some(Duration::from_millis(500));
    limits.http2.ping_timeout = Duration::from_millis(500);
    limits
}
