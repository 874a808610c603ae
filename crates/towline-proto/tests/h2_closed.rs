//! Frames on closed streams, and the order of frames after a change of the settings: raw frames sent to a server.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{
    BodySize, BufferPool, Connection, ErrorCode, Event, Limits, ProtocolPolicy, ResponseHead,
    StreamId,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// GET of `/` at `a`: all but the authority from the static table.
const GET: &[u8] = b"\x82\x86\x84\x01\x01a";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

struct Server {
    conn: Connection,
    buffers: BufferPool,
    now: Instant,
    /// Streams of which the program was told that they have failed.
    failed: u32,
}

impl Server {
    /// After the preface and SETTINGS of its peer; its own first frames are read.
    fn new() -> Self {
        Self::with(Limits::server())
    }

    fn with(limits: Limits) -> Self {
        let now = Instant::now();
        let limits = Arc::new(limits);
        let conn = Connection::server_with_policy(limits, ProtocolPolicy::Http2, now);
        let buffers = BufferPool::new(64 * 1024, 4);
        let mut server = Self {
            conn,
            buffers,
            now,
            failed: 0,
        };
        server.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        server.receive(&frame(SETTINGS, 0, 0, &[]));
        server.sent();
        server
    }

    /// Responds to each request with ten bytes as soon as it arrives.
    fn receive(&mut self, bytes: &[u8]) {
        let space = self.conn.recv_space(&mut self.buffers);
        space[..bytes.len()].copy_from_slice(bytes);
        self.conn.received(self.now, bytes.len());
        while let Some(event) = self.conn.next_event() {
            match event {
                Event::Head { stream, head, .. } if head.method() == b"GET" => self.answer(stream),
                Event::Failed(..) => self.failed += 1,
                _ => {}
            }
        }
    }

    fn answer(&mut self, stream: StreamId) {
        let head = ResponseHead {
            status: 200,
            reason: b"",
            fields: &[],
        };
        self.conn
            .respond(stream, &head, BodySize::Known(10))
            .unwrap();
        let mut body = self.conn.stream(stream).unwrap();
        body.write_shared(Bytes::from_static(b"0123456789"))
            .unwrap();
        body.finish().unwrap();
    }

    /// The frames to send: type, flags, stream and payload of each.
    fn sent(&mut self) -> Vec<(u8, u8, u32, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            let mut slices = [IoSlice::new(&[]); 64];
            let count = self.conn.send_slices(&mut slices);
            let bytes: Vec<u8> = slices[..count]
                .iter()
                .flat_map(|slice| slice.to_vec())
                .collect();
            if bytes.is_empty() {
                break;
            }
            let n = bytes.len();
            all.extend(bytes);
            self.conn.sent(self.now, n);
        }
        let mut frames = Vec::new();
        let mut rest = &all[..];
        while let Some((header, behind)) = rest.split_first_chunk::<9>() {
            let len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            frames.push((header[3], header[4], stream, behind[..len].to_vec()));
            rest = &behind[len..];
        }
        frames
    }

    /// The code of its GOAWAY.
    fn ended_with(&mut self) -> Option<ErrorCode> {
        let frames = self.sent();
        let (.., payload) = frames.iter().find(|(kind, ..)| *kind == GOAWAY)?;
        let code = u32::from_be_bytes(payload[4..8].try_into().unwrap());
        Some(ErrorCode(code.into()))
    }
}

/// The response ends before the request, and the rest of that does not come, so that the server itself closes the stream.
fn closed_by_server() -> Server {
    let mut server = Server::new();
    server.receive(&frame(SETTINGS, ACK, 0, &[]));
    server.receive(&frame(HEADERS, END_HEADERS, 1, GET));
    server.now += Limits::server().body_timeout.unwrap();
    server.conn.handle_timeout(server.now);
    let resets = server.sent().iter().filter(|f| f.0 == RST_STREAM).count();
    assert_eq!(resets, 1);
    server
}

#[test]
fn frames_that_crossed_our_end_of_a_stream_are_ignored() {
    let mut server = closed_by_server();
    server.receive(&frame(DATA, 0, 1, b"late"));
    server.receive(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]));
    server.receive(&frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]));
    server.receive(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    assert_eq!(server.ended_with(), None);
}

#[test]
fn frames_after_the_peers_own_reset_are_violations() {
    for news in [
        frame(DATA, END_STREAM, 1, b"late"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, GET),
    ] {
        // Closed by both sides, and by the peer alone.
        let mut both = closed_by_server();
        both.receive(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
        both.receive(&news);
        assert_eq!(both.ended_with(), Some(ErrorCode::STREAM_CLOSED));

        let mut alone = Server::new();
        let head = frame(HEADERS, END_HEADERS, 1, GET);
        let reset = frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
        let space = alone.conn.recv_space(&mut alone.buffers);
        let all = [head, reset, news].concat();
        space[..all.len()].copy_from_slice(&all);
        alone.conn.received(alone.now, all.len());
        while alone.conn.next_event().is_some() {}
        assert_eq!(alone.ended_with(), Some(ErrorCode::STREAM_CLOSED));
    }
}

#[test]
fn invalid_frames_are_violations_on_a_closed_stream_too() {
    let mut server = closed_by_server();
    server.receive(&frame(WINDOW_UPDATE, 0, 1, &[0; 4]));
    assert_eq!(server.ended_with(), Some(ErrorCode::PROTOCOL_ERROR));
    let mut server = closed_by_server();
    server.receive(&frame(PRIORITY, 0, 1, &[0; 4]));
    assert_eq!(server.ended_with(), Some(ErrorCode::FRAME_SIZE_ERROR));
}

/// Sends DATA of 8 KiB on stream 1, `count` times.
fn upload(server: &mut Server, count: usize, end: bool) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    for at in 1..=count {
        let flags = if end && at == count { END_STREAM } else { 0 };
        server.receive(&frame(DATA, flags, 1, &[b'x'; 8 * 1024]));
        frames.extend(server.sent());
    }
    frames
}

#[test]
fn the_rest_of_an_answered_request_is_skipped_and_its_window_reopened() {
    let mut server = Server::new();
    server.receive(&frame(SETTINGS, ACK, 0, &[]));
    server.receive(&frame(HEADERS, END_HEADERS, 1, GET));
    let frames = upload(&mut server, 1280, false);
    assert!(!frames.iter().any(|frame| frame.0 == RST_STREAM));
    let credit = frames
        .iter()
        .filter(|(kind, _, stream, _)| *kind == WINDOW_UPDATE && *stream == 1)
        .map(|(.., payload)| u32::from_be_bytes(payload[..].try_into().unwrap()))
        .sum::<u32>();
    assert!(credit > 9 * 1024 * 1024, "{credit}");
    let last = upload(&mut server, 1, true);
    assert!(
        last.iter()
            .any(|frame| (frame.0, frame.2) == (WINDOW_UPDATE, 0))
    );
    assert!(server.conn.is_idle());
    assert_eq!(server.ended_with(), None);
}

/// Clients that give their upload up at the response send nothing but its end (curl 7.88).
#[test]
fn an_empty_end_of_an_answered_request_is_followed_by_a_frame() {
    let mut server = Server::new();
    server.receive(&frame(SETTINGS, ACK, 0, &[]));
    server.receive(&frame(HEADERS, END_HEADERS, 1, GET));
    server.sent();
    server.receive(&frame(DATA, END_STREAM, 1, &[]));
    let kinds: Vec<u8> = server.sent().iter().map(|frame| frame.0).collect();
    assert_eq!(kinds, [PING]);
    assert!(server.conn.is_idle());
}

#[test]
fn the_rest_of_an_answered_request_is_bounded_in_time() {
    let mut server = Server::new();
    server.receive(&frame(SETTINGS, ACK, 0, &[]));
    server.receive(&frame(HEADERS, END_HEADERS, 1, GET));
    for _ in 0..299 {
        server.now += std::time::Duration::from_secs(1);
        upload(&mut server, 1, false);
        server.conn.handle_timeout(server.now);
        assert!(server.sent().iter().all(|frame| frame.0 != RST_STREAM));
    }
    server.now += std::time::Duration::from_secs(1);
    server.conn.handle_timeout(server.now);
    let reset = server
        .sent()
        .into_iter()
        .find(|frame| frame.0 == RST_STREAM);
    assert_eq!(reset.map(|frame| frame.3), Some(vec![0; 4]), "NO_ERROR");
    assert!(server.conn.next_event().is_none() && server.conn.is_idle());
}

#[test]
fn a_body_over_the_limit_is_skipped_after_the_413() {
    for (ends, is_released) in [(true, true), (true, false), (false, true)] {
        let limits = Limits {
            max_body_bytes: Some(10_000),
            ..Limits::server()
        };
        let mut server = Server::with(limits);
        server.receive(&frame(SETTINGS, ACK, 0, &[]));
        // Not answered by the program.
        let post = frame(HEADERS, END_HEADERS, 1, b"\x83\x86\x84\x01\x01a");
        server.receive(&post);
        let mut frames = upload(&mut server, 2, false);
        if is_released {
            server.conn.stream(StreamId(1)).unwrap().reset();
        }
        frames.extend(upload(&mut server, 100, ends));
        if !ends {
            server.receive(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
        }
        assert!(
            !frames
                .iter()
                .any(|frame| matches!(frame.0, RST_STREAM | GOAWAY))
        );
        let heads = frames.iter().filter(|frame| frame.0 == HEADERS).count();
        assert_eq!((heads, server.failed), (1, 1));
        if !is_released {
            server.conn.stream(StreamId(1)).unwrap().reset();
        }
        assert!(server.conn.next_event().is_none() && server.conn.is_idle());
    }
}

#[test]
fn a_stop_leaves_little_time_to_answered_requests() {
    let mut server = Server::new();
    server.receive(&frame(SETTINGS, ACK, 0, &[]));
    server.receive(&frame(HEADERS, END_HEADERS, 1, GET));
    server.conn.drain(server.now);
    for _ in 0..3 {
        assert!(server.sent().iter().all(|frame| frame.0 != RST_STREAM));
        server.now += std::time::Duration::from_secs(1);
        upload(&mut server, 1, false);
        server.conn.handle_timeout(server.now);
    }
    assert!(server.sent().iter().any(|frame| frame.0 == RST_STREAM));
}

#[test]
fn settings_are_acknowledged_before_the_data_they_allow() {
    const INITIAL_WINDOW: u8 = 4;
    let mut server = Server::new();
    server.receive(&frame(SETTINGS, 0, 0, &[0, INITIAL_WINDOW, 0, 0, 0, 0]));
    server.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, GET));
    assert!(!server.sent().iter().any(|(kind, ..)| *kind == DATA));
    server.receive(&frame(SETTINGS, 0, 0, &[0, INITIAL_WINDOW, 0, 0, 0, 1]));
    let frames = server.sent();
    let kinds: Vec<_> = frames
        .iter()
        .map(|(kind, flags, ..)| (*kind, *flags))
        .collect();
    assert_eq!(kinds, [(SETTINGS, ACK), (DATA, 0)]);
    assert_eq!(frames[1].3, b"0");
}
