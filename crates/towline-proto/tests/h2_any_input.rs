//! Properties of HTTP/2 for any frames and any sequence of calls, checked by `towline_testkit::streams`.

use proptest::prelude::*;
use towline_proto::Side;
use towline_testkit::streams::{check_frames, check_pair, frames};

/// Frames that are mostly valid, and sometimes anything.
fn script() -> impl Strategy<Value = Vec<u8>> {
    let head = |flags| vec![1, flags, 0, 6, 0x82, 0x86, 0x84, 0x41, 1, b'a'];
    let answer = |flags| vec![1, flags, 0, 1, 0x88];
    let frame = prop_oneof![
        4 => (0..8_u8, proptest::sample::select(vec![4, 5])).prop_map(move |(id, flags)| {
            let mut head = head(flags);
            head[2] = id * 2 + 1;
            head
        }),
        3 => (0..4_u8, proptest::sample::select(vec![4, 5])).prop_map(move |(id, flags)| {
            let mut answer = answer(flags);
            answer[2] = id * 2 + 1;
            answer
        }),
        4 => (0..8_u8, 0..2_u8, 0..200_u8).prop_map(|(id, flags, len)| {
            let mut data = vec![0, flags, id * 2 + 1, len];
            data.extend(std::iter::repeat_n(b'x', usize::from(len)));
            data
        }),
        1 => (0..8_u8).prop_map(|id| vec![8, 0, id * 2, 4, 0, 0, 1, 0]),
        1 => (0..8_u8).prop_map(|id| vec![3, 0, id * 2 + 1, 4, 0, 0, 0, 8]),
        1 => Just(vec![4, 1, 0, 0]),
        1 => (any::<[u8; 3]>(), proptest::collection::vec(any::<u8>(), 0..12)).prop_map(|(first, payload)| {
            let mut frame = first.to_vec();
            frame.push(payload.len() as u8);
            frame.extend(payload);
            frame
        }),
    ];
    proptest::collection::vec(frame, 0..16).prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn any_frames_are_handled(script in script(), server in any::<bool>(), seed in any::<u64>()) {
        let side = if server { Side::Server } else { Side::Client };
        check_frames(&frames(side, &script), side, seed);
    }

    #[test]
    fn any_sequence_of_calls_breaks_no_rule(script in proptest::collection::vec(any::<u8>(), 0..600)) {
        check_pair(&script);
    }
}
