//! Properties of a WebSocket for any input: bounded memory, the same events at every cut, nothing after the last
//! event, and output that its peer can parse.

use std::sync::Arc;
use std::time::Instant;

use towline_proto::Side;
use towline_proto::ws::deflate::{Config, Direction, Params};
use towline_proto::ws::{Event, Kind, Limits, Scratch, Status, WebSocket};

use crate::random::Random;

const MAX_MESSAGE_BYTES: usize = 64 * 1024;

fn end(side: Side, deflate: Option<u8>) -> WebSocket {
    let limits = Limits {
        max_message_bytes: MAX_MESSAGE_BYTES,
        max_fragments_bytes: MAX_MESSAGE_BYTES,
        ..Limits::default()
    };
    let deflate = deflate.map(|seed| {
        let direction = Direction {
            takeover: seed & 1 == 0,
            window_bits: 8 + (seed >> 1 & 7),
        };
        let params = Params {
            server: direction,
            client: direction,
        };
        let config = Config {
            threshold_bytes: 0,
            ..Config::server()
        };
        (params, config)
    });
    WebSocket::new(side, Arc::new(limits), deflate, Instant::now())
}

/// The events, and the output at the end, of a wire in pieces of these sizes.
fn log(
    ws: &mut WebSocket,
    wire: &[u8],
    pieces: &[usize],
    scratch: &mut Scratch,
) -> (Vec<String>, Vec<u8>) {
    let (mut log, mut rest, now) = (Vec::<String>::new(), wire, Instant::now());
    for piece in pieces {
        let (mut piece, behind) = rest.split_at(*piece);
        rest = behind;
        loop {
            let n = ws.receive(now, piece, scratch);
            piece = &piece[n..];
            let over = log.last().is_some_and(|event| is_last(event));
            match ws.next_event() {
                Some(event) => {
                    assert!(!over, "{event:?} after the last event");
                    if let Event::Message { kind, data } = &event {
                        assert!(data.len() <= MAX_MESSAGE_BYTES);
                        assert!(*kind == Kind::Binary || std::str::from_utf8(data).is_ok());
                    }
                    log.push(match event {
                        // Two rules of one code may be broken at the same byte.
                        Event::Failed(violation) => format!("Failed {}", violation.code),
                        event => format!("{event:?}"),
                    });
                }
                None => break,
            }
        }
    }
    let mut out = Vec::new();
    ws.transmit(scratch, &mut out);
    assert!(out.len() <= 3 * (125 + 14), "three control frames at most");
    (log, out)
}

/// Whether no event may follow this one.
fn is_last(event: &str) -> bool {
    event.starts_with("Failed") || event.starts_with("Close")
}

/// Checks frames of a peer. The output is parsed by an end of the other side.
pub fn check_frames(wire: &[u8], side: Side, deflate: Option<u8>, seed: u64) {
    let make = || end(side, deflate);
    let whole = log(&mut make(), wire, &[wire.len()], &mut Scratch::new([0; 32]));
    let cut = Random::new(seed).pieces(wire.len());
    let mut ws = make();
    let pieces = log(&mut ws, wire, &cut, &mut Scratch::new([0; 32]));
    assert!(whole == pieces, "cut {cut:?}: {whole:?} or {pieces:?}");
    let bytes = vec![1; wire.len()];
    let slowly = log(&mut make(), wire, &bytes, &mut Scratch::new([0; 32]));
    assert!(whole == slowly, "byte by byte: {whole:?} or {slowly:?}");

    let peer = match side {
        Side::Server => Side::Client,
        Side::Client => Side::Server,
    };
    let (answer, scratch) = (&whole.1, &mut Scratch::new([0; 32]));
    let (events, _) = log(&mut end(peer, deflate), answer, &[answer.len()], scratch);
    assert!(
        events.iter().all(|event| !event.starts_with("Failed")),
        "{events:?}"
    );
    let over = whole
        .0
        .last()
        .is_some_and(|last| last.starts_with("Failed"));
    assert!(!over || ws.status() == Status::Finished);
}

/// Checks that compressed messages arrive; then uses the bytes themselves as a compressed message.
pub fn check_deflate(data: &[u8], seed: u8) {
    let scratch = &mut Scratch::new([0; 32]);
    let (mut from, mut to) = (end(Side::Server, Some(seed)), end(Side::Client, Some(seed)));
    let (mut wire, mut rest) = (Vec::new(), data);
    let sizes = Random::new(u64::from(seed)).pieces(data.len());
    for size in &sizes {
        let (message, behind) = rest.split_at(*size);
        rest = behind;
        from.send(Kind::Binary, message, true, scratch, &mut wire)
            .expect("open");
    }
    let (events, _) = log(&mut to, &wire, &[wire.len()], scratch);
    assert_eq!(events.len(), sizes.len());

    let mut frame = vec![0xc2, 126];
    frame.extend((data.len().min(0xffff) as u16).to_be_bytes());
    if data.len() >= 126 {
        frame.extend(&data[..data.len().min(0xffff)]);
    } else {
        frame = vec![0xc2, data.len() as u8];
        frame.extend(data);
    }
    check_frames(&frame.repeat(2), Side::Client, Some(seed), u64::from(seed));
}
