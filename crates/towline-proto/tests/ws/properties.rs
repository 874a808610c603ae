//! Two connected ends: sent messages arrive, however they are fragmented, compressed and cut.

use std::time::Instant;

use proptest::prelude::*;
use towline_proto::Side;
use towline_proto::ws::deflate::{Direction, Params};
use towline_proto::ws::{Event, Kind, Limits};

use super::support::*;

fn direction() -> impl Strategy<Value = Direction> {
    (any::<bool>(), 8..=15u8).prop_map(|(takeover, window_bits)| Direction {
        takeover,
        window_bits,
    })
}

/// Text that repeats itself, so that windows matter, and random bytes.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        ("[ab ]{1,8}", 0..3_000usize).prop_map(|(word, len)| word
            .bytes()
            .cycle()
            .take(len)
            .collect()),
        proptest::collection::vec(any::<u8>(), 0..300),
    ]
}

type SentMessage = (bool, Vec<u8>, Vec<prop::sample::Index>);

fn message() -> impl Strategy<Value = SentMessage> {
    (
        any::<bool>(),
        payload(),
        proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn sent_messages_arrive(
        from_server in any::<bool>(),
        deflate in proptest::option::of((direction(), direction())),
        messages in proptest::collection::vec(message(), 1..12),
        piece in 1..2_000usize,
    ) {
        let scratch = &mut scratch();
        let sides = if from_server { [Side::Server, Side::Client] } else { [Side::Client, Side::Server] };
        let [mut from, mut to] = sides.map(|side| match deflate {
            Some((server, client)) => deflating(side, Limits::default(), Params { server, client }),
            None => end(side, Limits::default()),
        });
        let mut wire = Vec::new();
        for (text, data, cuts) in &messages {
            let text = *text && std::str::from_utf8(data).is_ok();
            let kind = if text { Kind::Text } else { Kind::Binary };
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(data.len() + 1)).collect();
            cuts.sort_unstable();
            let mut start = 0;
            for cut in cuts {
                from.send(kind, &data[start..cut], false, scratch, &mut wire).unwrap();
                from.ping(b"between", scratch, &mut wire).unwrap();
                start = cut;
            }
            from.send(kind, &data[start..], true, scratch, &mut wire).unwrap();
        }
        let mut arrived = Vec::new();
        for mut rest in wire.chunks(piece) {
            loop {
                let n = to.receive(Instant::now(), rest, scratch);
                rest = &rest[n..];
                match to.next_event() {
                    Some(Event::Message { data, .. }) => arrived.push(data.to_vec()),
                    Some(Event::Ping(payload)) => prop_assert_eq!(payload, b"between"),
                    Some(other) => prop_assert!(false, "{:?}", other),
                    None => break,
                }
            }
        }
        let sent: Vec<_> = messages.into_iter().map(|(_, data, _)| data).collect();
        prop_assert_eq!(arrived, sent);
    }

    #[test]
    fn any_frames_are_handled(
        wire in frames_of_any_kind(),
        server in any::<bool>(),
        deflate in proptest::option::of(any::<u8>()),
        seed in any::<u64>(),
    ) {
        let side = if server { Side::Server } else { Side::Client };
        towline_testkit::sockets::check_frames(&wire, side, deflate, seed);
    }

    #[test]
    fn compressed_messages_are_read_back(data in payload(), seed in any::<u8>()) {
        towline_testkit::sockets::check_deflate(&data, seed);
    }
}

/// Frames that are mostly valid, and sometimes anything.
fn frames_of_any_kind() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        6 => proptest::sample::select(vec![0x81, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8a, 0xc1, 0x88]),
        1 => any::<u8>(),
    ];
    let frame = (first, payload(), any::<bool>()).prop_map(|(first, payload, mask)| {
        if mask {
            masked(first, &payload)
        } else {
            bare(first, &payload)
        }
    });
    proptest::collection::vec(frame, 0..8).prop_map(|frames| frames.concat())
}

/// An empty final block before others: a case that once depended on whether it was alone in its piece.
#[test]
fn an_empty_final_block_is_no_end() {
    towline_testkit::sockets::check_deflate(&[0x03, 0x58, 0x81], 0x58);
    let stored = [0x41, 0x06, 0x01, 0x00, 0x00, 0xff, 0xff, 0x03];
    towline_testkit::sockets::check_frames(&stored, Side::Client, Some(18), 75);
}
