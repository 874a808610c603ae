//! WebSocket ends, and the log of one end.

use std::sync::Arc;
use std::time::Instant;

use towline_proto::Side;
use towline_proto::ws::{Event, Kind, Limits, Scratch, WebSocket, deflate};
pub use towline_testkit::ws::{
    BINARY, CLOSE, CONT, FIN, PING, PONG, RSV1, TEXT, bare, frames, masked, to_side,
};

pub fn scratch() -> Scratch {
    Scratch::new([3; 32])
}

pub fn end(side: Side, limits: Limits) -> WebSocket {
    WebSocket::new(side, Arc::new(limits), None, Instant::now())
}

pub fn deflating(side: Side, limits: Limits, params: deflate::Params) -> WebSocket {
    let mut config = deflate::Config::server();
    config.threshold_bytes = 0;
    WebSocket::new(
        side,
        Arc::new(limits),
        Some((params, config)),
        Instant::now(),
    )
}

/// One line for each event; long messages by their length.
pub fn line(event: &Event<'_>) -> String {
    match event {
        Event::Message { kind, data } => {
            let kind = if *kind == Kind::Text {
                "text"
            } else {
                "binary"
            };
            match std::str::from_utf8(data) {
                Ok(text) if text.len() <= 40 => format!("{kind} {text}"),
                _ => format!("{kind} of {} bytes", data.len()),
            }
        }
        Event::Ping(payload) => format!("ping {}", String::from_utf8_lossy(payload)),
        Event::Pong(payload) => format!("pong {}", String::from_utf8_lossy(payload)),
        Event::Close { code, reason } => format!("close {code} {reason}").trim_end().to_owned(),
        Event::Failed(violation) => format!("failed {}", violation.code),
    }
}

/// Feeds pieces and logs the events.
pub fn feed<'a>(
    ws: &mut WebSocket,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    scratch: &mut Scratch,
) -> Vec<String> {
    let (mut log, now) = (Vec::new(), Instant::now());
    for mut piece in pieces {
        loop {
            let n = ws.receive(now, piece, scratch);
            piece = &piece[n..];
            match ws.next_event() {
                Some(event) => log.push(line(&event)),
                None => break,
            }
        }
    }
    log
}

/// The log of a wire, which must be the same whole, byte by byte and cut in two anywhere.
pub fn log_of(make: impl Fn() -> WebSocket, wire: &[u8]) -> Vec<String> {
    let whole = feed(&mut make(), [wire], &mut scratch());
    assert_eq!(
        feed(&mut make(), wire.chunks(1), &mut scratch()),
        whole,
        "byte by byte"
    );
    if wire.len() <= 600 {
        for cut in 0..=wire.len() {
            let (first, second) = wire.split_at(cut);
            assert_eq!(
                feed(&mut make(), [first, second], &mut scratch()),
                whole,
                "cut at {cut}"
            );
        }
    }
    whole
}

/// The frames that an end sends now, unmasked: first byte and payload.
pub fn sent(ws: &mut WebSocket, scratch: &mut Scratch) -> Vec<(u8, Vec<u8>)> {
    let mut wire = Vec::new();
    ws.transmit(scratch, &mut wire);
    frames(&wire)
}
