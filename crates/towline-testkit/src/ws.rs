//! WebSocket on the wire: builders of frames, which validate nothing; a parser of the frames that an end has
//! sent; and one end with a scripted program, whose log the conformance files contain.

pub mod notation;

use std::sync::Arc;
use std::time::Duration;

use towline_proto::Side;
use towline_proto::ws::{Event, Kind, Limits, Scratch, Status, WebSocket, deflate};

use crate::Clock;
use crate::notation::escape;
use crate::pieces::in_pieces;

/// Bits of a frame's first byte, and the opcodes below them.
pub const FIN: u8 = 0x80;
pub const RSV1: u8 = 0x40;
pub const CONT: u8 = 0;
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// A frame of a client, with the given first byte.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x11, 0x80, 0x7f, 0xff];
    let mut frame = head(first, 0x80, payload.len());
    frame.extend(key);
    frame.extend(
        payload
            .iter()
            .zip(key.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    frame
}

/// A frame of a server.
pub fn bare(first: u8, payload: &[u8]) -> Vec<u8> {
    [&head(first, 0, payload.len())[..], payload].concat()
}

/// A frame for this side, as its peer encodes it.
pub fn to_side(side: Side, first: u8, payload: &[u8]) -> Vec<u8> {
    match side {
        Side::Server => masked(first, payload),
        Side::Client => bare(first, payload),
    }
}

fn head(first: u8, mask: u8, len: usize) -> Vec<u8> {
    match len {
        0..126 => vec![first, mask + len as u8],
        126..=0xffff => [&[first, mask + 126], &(len as u16).to_be_bytes()[..]].concat(),
        _ => [&[first, mask + 127], &(len as u64).to_be_bytes()[..]].concat(),
    }
}

/// The frames sent by an end, unmasked: first byte and payload.
pub fn frames(mut wire: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [first, second, rest @ ..] = wire {
        let long = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let (extended, rest) = rest.split_at(long);
        let len = match long {
            0 => usize::from(second & 0x7f),
            _ => extended
                .iter()
                .fold(0, |len, byte| len << 8 | usize::from(*byte)),
        };
        let (key, rest) = rest.split_at(if second & 0x80 == 0 { 0 } else { 4 });
        let (payload, rest) = rest.split_at(len);
        let key: Vec<u8> = if key.is_empty() {
            vec![0]
        } else {
            key.to_vec()
        };
        let payload = payload
            .iter()
            .zip(key.iter().cycle())
            .map(|(byte, key)| byte ^ key);
        frames.push((*first, payload.collect()));
        wire = rest;
    }
    frames
}

/// Behaviour of the program above a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// Reads messages.
    Read,
    /// Echoes every message.
    Echo,
    /// Closes with 1000 after the first message.
    Close,
}

/// Configuration of an end.
#[derive(Clone, Debug)]
pub struct Setup {
    pub side: Side,
    pub app: App,
    pub limits: Limits,
    /// Compression with windows of 32 KiB; every message is compressed.
    pub deflate: bool,
    pub eof: bool,
    pub wait: Duration,
}

impl Setup {
    /// A program that reads, with the default limits.
    pub fn new(side: Side, eof: bool) -> Self {
        Self {
            side,
            app: App::Read,
            limits: Limits::default(),
            deflate: false,
            eof,
            wait: Duration::ZERO,
        }
    }

    /// The log of an end for a wire in pieces of these sizes, and the frames it sends.
    pub fn log(&self, parts: &[Vec<u8>], sizes: &[usize]) -> String {
        let mut end = End::new(self);
        let mut sizes = sizes.iter().copied();
        for part in parts {
            in_pieces(part, &mut sizes, |piece| end.feed(piece));
        }
        if self.eof {
            end.ws.received_eof(end.clock.now());
            end.poll_event();
        }
        end.advance(self.wait);
        end.log()
    }
}

struct End {
    ws: WebSocket,
    scratch: Scratch,
    clock: Clock,
    app: App,
    lines: Vec<String>,
    sent: Vec<u8>,
}

impl End {
    fn new(setup: &Setup) -> Self {
        let clock = Clock::default();
        let whole = deflate::Direction {
            takeover: true,
            window_bits: 15,
        };
        let params = deflate::Params {
            server: whole,
            client: whole,
        };
        let config = deflate::Config {
            threshold_bytes: 0,
            ..deflate::Config::server()
        };
        let deflate = setup.deflate.then_some((params, config));
        let limits = Arc::new(setup.limits.clone());
        Self {
            ws: WebSocket::new(setup.side, limits, deflate, clock.now()),
            scratch: Scratch::new([3; 32]),
            clock,
            app: setup.app,
            lines: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn feed(&mut self, mut piece: &[u8]) {
        loop {
            let n = self.ws.receive(self.clock.now(), piece, &mut self.scratch);
            piece = &piece[n..];
            if !self.poll_event() {
                return;
            }
        }
    }

    /// Delivers the next event to the program and sends queued output; returns whether there was an event.
    fn poll_event(&mut self) -> bool {
        let event = self.ws.next_event();
        let is_event = event.is_some();
        self.lines.extend(event.as_ref().map(line));
        let message = match event {
            Some(Event::Message { kind, data }) => Some((kind, data.to_vec())),
            _ => None,
        };
        if let Some((kind, data)) = message {
            self.reply(kind, &data);
        }
        self.ws.transmit(&mut self.scratch, &mut self.sent);
        is_event
    }

    fn reply(&mut self, kind: Kind, data: &[u8]) {
        let Self {
            ws, scratch, sent, ..
        } = self;
        let answered = match self.app {
            App::Read => Ok(()),
            App::Echo => ws.send(kind, data, true, scratch, sent),
            App::Close => ws.close(self.clock.now(), 1000, ""),
        };
        if let Err(error) = answered {
            self.lines.push(format!("refused: {error}"));
        }
    }

    fn advance(&mut self, by: Duration) {
        let target = self.clock.now() + by;
        while let Some(at) = self.ws.deadline().filter(|at| *at <= target) {
            self.clock.advance_to(at);
            self.ws.handle_timeout(at);
            self.poll_event();
        }
        self.clock.advance_to(target);
    }

    fn log(&self) -> String {
        let sent = frames(&self.sent);
        let sent = sent
            .iter()
            .map(|(first, payload)| format!("wrote {}", shown(*first, payload)));
        let then = match self.ws.status() {
            Status::Open => "then open",
            Status::Closing => "then closing",
            Status::Finished => "then finished",
        };
        let lines = self.lines.iter().cloned().chain(sent);
        lines
            .chain([then.to_owned()])
            .flat_map(|line| [line.trim_end().to_owned(), "\n".to_owned()])
            .collect()
    }
}

fn line(event: &Event<'_>) -> String {
    match event {
        Event::Message { kind, data } => {
            let kind = match kind {
                Kind::Text => "text",
                Kind::Binary => "binary",
            };
            format!("{kind} {}", escape(data))
        }
        Event::Ping(payload) => format!("ping {}", escape(payload)),
        Event::Pong(payload) => format!("pong {}", escape(payload)),
        Event::Close { code, reason } => format!("close {code} {}", escape(reason.as_bytes())),
        Event::Failed(violation) => format!("failed {}: {}", violation.code, violation.rule),
    }
}

/// A frame in the notation of the files; masks and length encodings are not shown.
fn shown(first: u8, payload: &[u8]) -> String {
    let name = match first & 0xf {
        CONT => "continue",
        TEXT => "text",
        BINARY => "binary",
        CLOSE => "close",
        PING => "ping",
        PONG => "pong",
        _ => "reserved",
    };
    let rsv1 = if first & RSV1 == 0 { "" } else { " rsv1" };
    let more = if first & FIN == 0 { " more" } else { "" };
    let (code, text) = match (first & 0xf, payload.split_first_chunk()) {
        (CLOSE, Some((code, reason))) => (format!(" {}", u16::from_be_bytes(*code)), reason),
        _ => (String::new(), payload),
    };
    let colon = if text.is_empty() { "" } else { ": " };
    format!("{name}{code}{rsv1}{more}{colon}{}", escape(text))
}
