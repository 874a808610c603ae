//! Uploads of growing size through the engine into a socket that takes little at a time: the time per
//! byte must not grow with the size.
//!
//! `cargo bench -p towline-io --bench partial_write`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_io::client::{
    Body, CallEvent, CallOptions, ClientDriver, ClientDriverConfig, OutgoingRequest, RequestText,
    Route,
};

const ROUNDS: usize = 50;
const SIZES: [usize; 8] = [
    1 << 10,
    32 << 10,
    128 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
];
/// Size of the server's reads: small, so that the writer often finds a full socket.
const READ_BYTES: usize = 32 * 1024;

fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // An error means that the client has disconnected.
            let _ = serve(stream);
        }
    });
    let route = Arc::new(Route::plain("127.0.0.1", addr.port()));
    let mut driver = ClientDriver::new(ClientDriverConfig::default())?;
    for size in SIZES {
        let body = Bytes::from(vec![b'x'; size]);
        let mut samples = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            post(&mut driver, &route, body.clone())?;
            samples.push(start.elapsed().as_secs_f64());
        }
        samples.sort_by(f64::total_cmp);
        let median = samples[ROUNDS / 2];
        let kib = u32::try_from(size / 1024).unwrap_or(u32::MAX);
        println!(
            "partial_write {kib:>6} KiB: {:>9.1} us, {:.3} us per KiB",
            median * 1e6,
            median * 1e6 / f64::from(kib)
        );
    }
    Ok(())
}

fn post(driver: &mut ClientDriver, route: &Arc<Route>, body: Bytes) -> std::io::Result<()> {
    let mut head = RequestText::new(b"POST", b"/");
    head.push(b"host", b"bench");
    let request = OutgoingRequest {
        route: Arc::clone(route),
        head: head.into(),
        body: Body::Bytes(body),
        idempotent: false,
    };
    let call = driver
        .begin(request, CallOptions::default())
        .map_err(std::io::Error::other)?;
    loop {
        driver.turn(None)?;
        while let Some((_, event)) = driver.next_event() {
            match event {
                CallEvent::Head { .. } => {
                    driver.cancel(call);
                    return Ok(());
                }
                CallEvent::Failed(error) => return Err(std::io::Error::other(error)),
                _ => {}
            }
        }
    }
}

/// Answers every request when its whole body has been read.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut space = vec![0; READ_BYTES];
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            let n = stream.read(&mut space)?;
            if n == 0 {
                return Ok(());
            }
            bytes.extend_from_slice(&space[..n]);
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        let mut left: usize = length.unwrap_or(0) - (bytes.len() - end);
        bytes.clear();
        while left > 0 {
            let n = stream.read(&mut space)?;
            if n == 0 {
                return Ok(());
            }
            left -= n;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    }
}
