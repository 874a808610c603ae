//! Properties of HTTP/3 for any input and any calls of two programs: bounded memory, the same events at every cut, both
//! ends close, and neither of two own ends breaks a rule.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use towline_proto::{
    BodySize, CloseReason, Connection, Event, Field, Limits, Protocol, RequestHead, ResponseHead,
    Side, StreamId, StreamRead,
};

use super::frames::{self, frame, headers, varint};
use super::{Arrival, QuicPair};
use crate::{App, End, Random};

const HOST: Field<'_> = Field {
    name: b"host",
    value: b"a",
};
/// Maximum size of one write.
const MAX_WRITE_BYTES: usize = 20_000;
/// The read-ahead of a stream, or a whole head.
const MAX_BUFFERED_BYTES: usize = 64 * 1024 + 64;

/// Arrivals from the bytes of a script: what, where and length precede each payload. The peer's control stream has
/// begun.
pub fn arrivals(side: Side, script: &[u8]) -> Vec<Arrival> {
    const FRAMES: [u64; 10] = [0x0, 0x1, 0x3, 0x4, 0x5, 0x7, 0xd, 0x21, 0xf_0700, 0x2];
    let control = if side == Side::Server { 2 } else { 3 };
    let start = [varint(0), frame(frames::SETTINGS, &[])].concat();
    let mut all = vec![Arrival::Bytes(control, start)];
    let mut rest = script;
    while let [what, place, len, behind @ ..] = rest {
        let (payload, next) = behind.split_at(behind.len().min(usize::from(*len)));
        rest = next;
        let place = u64::from(place % 12);
        let id = match place {
            0..6 => place * 4,
            11 => 1,
            _ => control + (place - 6) * 4,
        };
        let code = 0x100 + u64::from(*len % 18);
        all.push(match what % 24 {
            kind @ 0..10 => Arrival::Bytes(id, frame(FRAMES[usize::from(kind)], payload)),
            10 => Arrival::Bytes(id, payload.to_vec()),
            11 | 12 => Arrival::End(id),
            13 => Arrival::Reset(id, code),
            14 => Arrival::Stop(id, code),
            15 => Arrival::Bytes(id, varint(u64::from(*len % 5))),
            16..20 if side == Side::Server => Arrival::Bytes(id, frames::get()),
            16..20 => Arrival::Bytes(id, headers(&[(":status", "200")])),
            20 => Arrival::Bytes(id, headers(&[("x-trailer", "1")])),
            _ => Arrival::Bytes(id, frame(frames::DATA, payload)),
        });
    }
    all
}

/// The log of an end for these arrivals, whose bytes are cut into pieces of these sizes.
fn log(side: Side, arrivals: &[Arrival], sizes: &mut dyn Iterator<Item = usize>) -> String {
    let mut end = match side {
        Side::Server => End::server_of(Protocol::Http3, &Arc::new(Limits::server()), App::Read),
        Side::Client => {
            let mut end = End::h3_client(&Arc::new(Limits::server()));
            for method in [&b"GET"[..], b"POST", b"HEAD", b"GET"] {
                let head = RequestHead {
                    method,
                    target: b"/",
                    fields: &[HOST],
                };
                end.conn.request(&head, BodySize::Empty).expect("room");
            }
            end.run_until_idle();
            end
        }
    };
    for arrival in arrivals {
        if let Arrival::Bytes(id, bytes) = arrival {
            crate::pieces::in_pieces(bytes, &mut &mut *sizes, |piece| {
                end.arrive(Arrival::Bytes(*id, piece.to_vec()));
                for id in 0..6 {
                    assert_bounded(&mut end.conn, StreamId(id * 4));
                }
            });
        } else {
            end.arrive(arrival.clone());
        }
    }
    let text = end.log.text();
    assert_closes(&mut end);
    text
}

/// Asserts that little of a stream is held for its reader.
fn assert_bounded(conn: &mut Connection, id: StreamId) {
    if let Ok(stream) = conn.stream(id) {
        let held = stream.buffered();
        assert!(held <= MAX_BUFFERED_BYTES, "{held} bytes held");
    }
}

/// Asserts that the end closes after `close`, resets by its program and enough time.
fn assert_closes(end: &mut End) {
    end.conn.close();
    for id in 0..64 {
        if let Ok(mut stream) = end.conn.stream(StreamId(id * 4)) {
            stream.reset();
        }
    }
    end.run_until_idle();
    end.advance(Duration::from_secs(3600));
    assert!(end.conn.interest().closed, "{:?}", end.conn.interest());
    assert!(end.is_closed() && end.conn.deadline().is_none());
}

/// Checks any arrivals.
pub fn check_arrivals(arrivals: &[Arrival], side: Side, seed: u64) {
    let whole = log(side, arrivals, &mut std::iter::empty());
    let mut random = Random::new(seed);
    let mut sizes = std::iter::repeat_with(|| 1 + random.below(30));
    let pieces = log(side, arrivals, &mut sizes);
    assert!(whole == pieces, "in pieces:\n{whole}or\n{pieces}");
    let slowly = log(side, arrivals, &mut std::iter::repeat(1));
    assert!(whole == slowly, "byte by byte:\n{whole}or\n{slowly}");
}

/// The program of an end.
#[derive(Default)]
struct Program {
    /// Streams that were open, in order.
    open: Vec<StreamId>,
    /// Body bytes of each stream: read, and written.
    seen: BTreeMap<StreamId, usize>,
    written: BTreeMap<StreamId, usize>,
}

/// Byte `at` of every body.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// Two ends and their programs.
struct Pair {
    quic: QuicPair,
    programs: [Program; 2],
    random: Random,
}

impl Pair {
    fn program(&mut self, side: Side) -> &mut Program {
        &mut self.programs[usize::from(side == Side::Server)]
    }

    /// Takes all events of an end.
    fn events(&mut self, side: Side) {
        loop {
            let conn = self.quic.end(side);
            let promised = conn.has_events();
            let head = match conn.next_event() {
                None => break,
                Some(Event::Head { stream, .. }) => Some(stream),
                Some(_) => None,
            };
            assert!(promised, "an event that was not promised");
            if let Some(stream) = head {
                let open = &mut self.program(side).open;
                if !open.contains(&stream) {
                    open.push(stream);
                }
            }
        }
        assert!(
            !self.quic.end(side).has_events(),
            "promised, and none comes"
        );
        for id in self.program(side).open.clone() {
            assert_bounded(self.quic.end(side), id);
        }
    }

    fn read(&mut self, side: Side, id: StreamId) {
        loop {
            let Ok(mut stream) = self.quic.end(side).stream(id) else {
                return;
            };
            let StreamRead::Data(data) = stream.read(3000) else {
                return;
            };
            let (n, first) = (data.len(), data.first().copied());
            let seen = self.program(side).seen.entry(id).or_default();
            assert_eq!(first, Some(byte(*seen)), "bytes in order");
            *seen += n;
        }
    }

    fn write(&mut self, side: Side, id: StreamId, n: usize) {
        let at = self.program(side).written.get(&id).copied().unwrap_or(0);
        let data: Vec<u8> = (at..at + n).map(byte).collect();
        let Ok(mut stream) = self.quic.end(side).stream(id) else {
            return;
        };
        if stream.send_capacity() > 0 && stream.write(&data).is_ok() {
            *self.program(side).written.entry(id).or_default() += n;
        }
    }

    fn operate(&mut self, what: u8, how: usize) {
        let side = [Side::Client, Side::Server][how & 1];
        let open = &self.program(side).open;
        let chosen = (!open.is_empty()).then(|| open[how / 2 % open.len()]);
        match (what, chosen) {
            (0, _) if side == Side::Client => self.request(how),
            (0, Some(id)) => {
                let body = [BodySize::Unknown, BodySize::Known(how as u64 * 300)][how / 2 % 2];
                let head = ResponseHead {
                    status: 200,
                    reason: b"",
                    fields: &[HOST],
                };
                // Any result may be right.
                let _ = self.quic.server.respond(id, &head, body);
            }
            (1, Some(id)) => self.write(side, id, how * (MAX_WRITE_BYTES / 256)),
            (2, Some(id)) => {
                if let Ok(mut stream) = self.quic.end(side).stream(id) {
                    let _ = stream.finish();
                }
            }
            (3, Some(id)) => self.read(side, id),
            (4, Some(id)) if how < 32 => {
                if let Ok(mut stream) = self.quic.end(side).stream(id) {
                    stream.reset();
                }
            }
            (5, _) if how < 4 => self.quic.end(side).close(),
            (5, _) => self.quic.release(),
            (6, _) => self.quic.window = 1 << (3 + how % 14),
            _ => {
                let max = 1 << (how % 18);
                self.quic.send(side, max);
                self.quic.deliver(side, &mut self.random, max);
            }
        }
        self.events(Side::Client);
        self.events(Side::Server);
    }

    fn request(&mut self, how: usize) {
        let method: &[u8] = [&b"GET"[..], b"POST", b"HEAD"][how % 3];
        let size = [
            BodySize::Empty,
            BodySize::Unknown,
            BodySize::Known(how as u64 * 200),
        ][how / 2 % 3];
        let head = RequestHead {
            method,
            target: b"/",
            fields: &[HOST],
        };
        if let Ok(id) = self.quic.client.request(&head, size) {
            self.programs[0].open.push(id);
        }
    }
}

/// Interprets `script` as operations (two bytes each: which, and how) of two programs.
pub fn check_pair(script: &[u8]) {
    let limits = Arc::new(Limits::server());
    let mut pair = Pair {
        quic: QuicPair::new(&limits, &limits),
        programs: [Program::default(), Program::default()],
        random: Random::new(script.len() as u64),
    };
    for operation in script.chunks_exact(2) {
        pair.operate(operation[0] % 12, usize::from(operation[1]));
    }
    pair.quic.window = usize::MAX;
    pair.quic.run();
    for side in [Side::Client, Side::Server] {
        pair.events(side);
        let open = pair.program(side).open.clone();
        for id in open {
            pair.read(side, id);
        }
    }
    let [client, server] = &pair.programs;
    for (from, to) in [(client, server), (server, client)] {
        for (id, seen) in &to.seen {
            assert!(Some(seen) <= from.written.get(id), "{id:?}: {seen} bytes");
        }
    }
    for side in [Side::Client, Side::Server] {
        let broken = pair.quic.end(side).error().map(|error| error.reason);
        assert!(
            !matches!(broken, Some(CloseReason::Protocol | CloseReason::Limit)),
            "{side:?}: {:?}",
            pair.quic.end(side).error()
        );
    }
    assert_both_close(pair);
}

fn assert_both_close(mut pair: Pair) {
    for side in [Side::Client, Side::Server] {
        pair.quic.end(side).close();
        for id in 0..256 {
            if let Ok(mut stream) = pair.quic.end(side).stream(StreamId(id * 4)) {
                stream.reset();
            }
        }
        pair.events(side);
    }
    for _ in 0..3 {
        pair.quic.run();
        pair.events(Side::Client);
        pair.events(Side::Server);
        pair.quic.advance(Duration::from_secs(600));
    }
    for side in [Side::Client, Side::Server] {
        pair.events(side);
        let conn = pair.quic.end(side);
        assert!(conn.interest().closed, "{side:?}: {:?}", conn.interest());
        assert!(conn.deadline().is_none(), "{side:?}: a timer");
    }
}
