//! Any sequence of calls, on both ends of a pair: no panic, bounded memory, and in the end both connections
//! close.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use towline_proto::{
    BodySize, Connection, Field, Limits, RequestHead, ResponseHead, Side, StreamId,
};

use crate::{Direction, Pair};

/// Maximum size of one write, in addition to the high-water mark.
const MAX_WRITE_BYTES: usize = 40_000;
/// High-water mark, one write over it, heads and framing.
const MAX_PENDING_BYTES: usize = 64 * 1024 + MAX_WRITE_BYTES + 8 * 1024;
/// Read-ahead: the window and one buffer.
const MAX_BUFFERED_BYTES: usize = 2 * 64 * 1024;

/// More operations than in a script of the fuzzer.
const MAX_EXCHANGES: u64 = 4096;

/// Interprets `script` as operations (two bytes each: which, and how) and checks after each.
pub fn check(script: &[u8]) {
    let mut pair = Pair::new(&Arc::new(Limits::server()));
    for operation in script.chunks_exact(2) {
        apply(&mut pair, operation[0], usize::from(operation[1]));
        assert_bounded(&mut pair);
    }
    assert_both_close(pair);
}

fn apply(pair: &mut Pair, what: u8, how: usize) {
    let side = if how & 1 == 0 {
        Side::Client
    } else {
        Side::Server
    };
    match what % 16 {
        0 => request(pair, how),
        1 | 2 => respond(pair, how),
        3 | 4 => write(pair, side, how),
        5 => finish(pair, side, how),
        6 => drop(pair.step(Direction::ToServer, 1 << (how % 17))),
        7 => drop(pair.step(Direction::ToClient, 1 << (how % 17))),
        8 => pair.advance(Duration::from_millis(1 << (how % 18))),
        9 => reset(pair, side, how),
        10 if how < 32 => end(pair, side).conn.close(),
        11 if how < 16 => pair.abort(),
        12 if how < 64 => garbage(pair, side, how),
        13 => pair.pipe_bytes = if how < 128 { how * 16 } else { usize::MAX },
        14 => read(pair, side),
        15 if how < 8 => end(pair, side).feed_eof(),
        _ => pair.run(),
    }
    pair.client.run_until_idle();
    pair.server.run_until_idle();
}

fn end(pair: &mut Pair, side: Side) -> &mut crate::End {
    match side {
        Side::Client => &mut pair.client,
        Side::Server => &mut pair.server,
    }
}

/// The exchange to operate on, including identifiers that never existed.
fn stream(pair: &mut Pair, side: Side, how: usize) -> StreamId {
    let known = pair.server.last_stream().unwrap_or(StreamId(1));
    match (side, how % 11) {
        (_, 10) => StreamId(known.0 + 1),
        (_, 9) => StreamId(0),
        _ => known,
    }
}

fn size(how: usize) -> BodySize {
    match how % 4 {
        0 => BodySize::Empty,
        1 => BodySize::Known(0),
        2 => BodySize::Known(how as u64 * 97),
        _ => BodySize::Unknown,
    }
}

fn request(pair: &mut Pair, how: usize) {
    let method: &[u8] = [&b"GET"[..], b"POST", b"HEAD", b"CONNECT", b"b\0d"][how % 5];
    let target: &[u8] = if how % 5 == 3 { b"a:443" } else { b"/" };
    let fields = [
        Field {
            name: b"Host",
            value: b"a",
        },
        Field {
            name: b"Connection",
            value: if how & 8 == 0 { b"close" } else { b"Upgrade" },
        },
        Field {
            name: b"Upgrade",
            value: b"test",
        },
        Field {
            name: b"Expect",
            value: b"100-continue",
        },
    ];
    let fields = &fields[..=((how >> 4) % 4)];
    // The result is ignored: any may be right here.
    let _ = pair.client.conn.request(
        &RequestHead {
            method,
            target,
            fields,
        },
        size(how >> 2),
    );
}

fn respond(pair: &mut Pair, how: usize) {
    let status = [200, 204, 304, 100, 103, 101, 404, 99, 1000][how % 9];
    let fields = [
        Field {
            name: b"X",
            value: b"y",
        },
        Field {
            name: b"Connection",
            value: b"close",
        },
    ];
    let fields = &fields[..how % 3];
    let id = stream(pair, Side::Server, how / 9);
    let _ = pair.server.conn.respond(
        id,
        &ResponseHead {
            status,
            reason: b"",
            fields,
        },
        size(how >> 3),
    );
}

fn write(pair: &mut Pair, side: Side, how: usize) {
    let id = stream(pair, side, how);
    let Ok(mut body) = end(pair, side).conn.stream(id) else {
        return;
    };
    if body.send_capacity() == 0 {
        return;
    }
    let data = vec![b'x'; how * (MAX_WRITE_BYTES / 256)];
    let _ = if how.is_multiple_of(3) {
        body.write_shared(Bytes::from(data))
    } else {
        body.write(&data)
    };
}

fn finish(pair: &mut Pair, side: Side, how: usize) {
    let id = stream(pair, side, how);
    let Ok(mut body) = end(pair, side).conn.stream(id) else {
        return;
    };
    let trailers = [
        Field {
            name: b"X-Sum",
            value: b"1",
        },
        Field {
            name: b"Content-Length",
            value: b"1",
        },
    ];
    let _ = match how % 4 {
        0 => body.finish_with(&trailers[..1]),
        1 => body.finish_with(&trailers),
        _ => body.finish(),
    };
}

fn reset(pair: &mut Pair, side: Side, how: usize) {
    let id = stream(pair, side, how);
    if how < 32
        && let Ok(mut body) = end(pair, side).conn.stream(id)
    {
        body.reset();
    }
}

fn read(pair: &mut Pair, side: Side) {
    if let Some(id) = end(pair, side).last_stream() {
        end(pair, side).read(id);
    }
}

fn garbage(pair: &mut Pair, side: Side, how: usize) {
    let pieces: [&[u8]; 8] = [
        b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"\0",
        b"0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"zz\r\n",
    ];
    end(pair, side).feed(pieces[how / 2 % 8]);
}

fn assert_bounded(pair: &mut Pair) {
    let last = pair.server.last_stream();
    for side in [Side::Client, Side::Server] {
        let conn: &mut Connection = &mut end(pair, side).conn;
        assert!(
            conn.pending_bytes() <= MAX_PENDING_BYTES,
            "{side:?}: {} bytes pending",
            conn.pending_bytes()
        );
        if let Some(Ok(body)) = last.map(|id| conn.stream(id)) {
            assert!(
                body.buffered() <= MAX_BUFFERED_BYTES,
                "{side:?}: {} bytes held",
                body.buffered()
            );
        }
        assert!(
            !(conn.is_idle() && conn.pending_bytes() > 0),
            "{side:?}: idle with bytes to send"
        );
    }
}

/// Asserts that both ends close after `close`, resets by their programs and enough time.
fn assert_both_close(mut pair: Pair) {
    pair.pipe_bytes = usize::MAX;
    pair.client.conn.close();
    pair.server.conn.close();
    pair.run();
    for side in [Side::Client, Side::Server] {
        // The two ends number exchanges differently after injected bytes: the open one is among these.
        for id in 0..=MAX_EXCHANGES {
            if let Ok(mut body) = end(&mut pair, side).conn.stream(StreamId(id)) {
                body.reset();
            }
        }
    }
    pair.run();
    pair.advance(Duration::from_secs(3600));
    for side in [Side::Client, Side::Server] {
        let end = end(&mut pair, side);
        assert!(
            end.conn.interest().closed,
            "{side:?}: {:?} for ever",
            end.conn.interest()
        );
        assert!(end.is_closed(), "{side:?}: no Closed event");
        assert!(
            end.conn.deadline().is_none(),
            "{side:?}: a timer on a closed connection"
        );
    }
}
