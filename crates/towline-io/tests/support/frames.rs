//! HTTP/2 frames for scripted servers.

use std::io::{Read, Write};
use std::net::TcpStream;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
/// `:status 200`.
pub const OK: &[u8] = &[0x88];

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    let mut frame = len[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub fn response_frames(stream: u32, body: &[u8]) -> Vec<u8> {
    [
        frame(HEADERS, END_HEADERS, stream, OK),
        frame(DATA, END_STREAM, stream, body),
    ]
    .concat()
}

pub fn goaway(last: u32, code: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

pub struct Frames(pub TcpStream);

impl Frames {
    /// Accepts a connection and sends SETTINGS.
    pub fn accept(mut stream: TcpStream) -> Self {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).unwrap();
        assert!(preface.starts_with(b"PRI * HTTP/2.0"));
        let mut frames = Self(stream);
        frames.send(&frame(SETTINGS, 0, 0, &[]));
        frames
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // The client may have closed the connection, which some tests expect.
        let _ = self.0.write_all(bytes);
    }

    pub fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let mut header = [0; 9];
        self.0.read_exact(&mut header).ok()?;
        let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        let mut payload = vec![0; len as usize];
        self.0.read_exact(&mut payload).ok()?;
        Some((header[3], stream, payload))
    }

    /// The stream of the next request.
    pub fn request(&mut self) -> Option<u32> {
        self.until(HEADERS).map(|(stream, _)| stream)
    }

    pub fn until(&mut self, kind: u8) -> Option<(u32, Vec<u8>)> {
        loop {
            let (found, stream, payload) = self.next()?;
            if found == kind {
                return Some((stream, payload));
            }
        }
    }
}
