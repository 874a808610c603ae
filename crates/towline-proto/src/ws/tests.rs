//! Two ends connected in memory.

use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::Side;

fn end(side: Side, deflate: bool) -> WebSocket {
    let config = deflate::Config::client();
    let params = deflate::Params {
        server: deflate::Config::server().server,
        client: deflate::Config::server().client,
    };
    let deflate = deflate.then_some((params, config));
    WebSocket::new(side, Arc::default(), deflate, Instant::now())
}

/// Feeds `wire` in pieces; returns the events as text.
fn events(ws: &mut WebSocket, wire: &[u8], piece: usize, scratch: &mut Scratch) -> Vec<String> {
    let mut log = Vec::new();
    for mut rest in wire.chunks(piece) {
        loop {
            let n = ws.receive(Instant::now(), rest, scratch);
            rest = &rest[n..];
            match ws.next_event() {
                Some(event) => log.push(format!("{event:?}")),
                None => break,
            }
        }
    }
    log
}

#[test]
fn messages_arrive_both_ways_at_every_cut() {
    for deflate in [false, true] {
        for side in [Side::Client, Side::Server] {
            for piece in [1, 2, 3, 7, 1000, 1 << 20] {
                let scratch = &mut Scratch::new([7; 32]);
                let (mut from, mut to) = (end(side, deflate), end(other(side), deflate));
                let mut wire = Vec::new();
                let mut expected = Vec::new();
                for len in [0, 1, 125, 126, 127, 500, 65_535, 65_536, 70_000] {
                    let text: String = "the quick brown fox ".chars().cycle().take(len).collect();
                    from.send(Kind::Text, text.as_bytes(), true, scratch, &mut wire)
                        .unwrap();
                    let event = Event::Message {
                        kind: Kind::Text,
                        data: text.as_bytes(),
                    };
                    expected.push(format!("{event:?}"));
                }
                assert_eq!(events(&mut to, &wire, piece, scratch), expected);
            }
        }
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

#[test]
fn the_closing_handshake() {
    let scratch = &mut Scratch::new([7; 32]);
    let now = Instant::now();
    let (mut client, mut server) = (end(Side::Client, false), end(Side::Server, false));
    client.close(now, 1000, "bye").unwrap();
    let mut wire = Vec::new();
    client.transmit(scratch, &mut wire);
    assert_eq!(
        events(&mut server, &wire, 1, scratch),
        ["Close { code: 1000, reason: \"bye\" }"]
    );
    assert_eq!(server.status(), Status::Closing);
    wire.clear();
    server.transmit(scratch, &mut wire);
    assert_eq!(server.status(), Status::Finished);
    assert_eq!(
        events(&mut client, &wire, 1, scratch),
        ["Close { code: 1000, reason: \"bye\" }"]
    );
    assert_eq!(client.status(), Status::Closing);
    client.received_eof(now);
    assert_eq!(client.status(), Status::Finished);
}
