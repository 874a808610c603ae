//! Properties of HTTP/3 for any input and any sequence of calls, checked by `towline_testkit::h3::properties`.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use towline_proto::Side;
use towline_testkit::h3::properties::{arrivals, check_arrivals, check_pair};

/// Arrivals that are mostly valid, and sometimes anything.
fn script() -> impl Strategy<Value = Vec<u8>> {
    let of = |what: Vec<u8>, place: std::ops::Range<u8>| {
        (select(what), place, vec(any::<u8>(), 0..40)).prop_map(|(what, place, payload)| {
            let mut item = vec![what, place, payload.len() as u8];
            item.extend(payload);
            item
        })
    };
    let item = prop_oneof![
        6 => of(vec![16, 20, 21, 22, 23, 7], 0..6),
        4 => of(vec![11, 13, 14], 0..6),
        2 => of(vec![7, 5, 6, 8], 6..7),
        2 => of(vec![15, 10, 11], 7..12),
        1 => of((0..24).collect(), 0..12),
    ];
    vec(item, 0..24).prop_map(|items| items.concat())
}

proptest! {
    #[test]
    fn any_input_is_handled(script in script(), server in any::<bool>(), seed in any::<u64>()) {
        let side = if server { Side::Server } else { Side::Client };
        check_arrivals(&arrivals(side, &script), side, seed);
    }

    #[test]
    fn any_sequence_of_calls_breaks_no_rule(script in vec(any::<u8>(), 0..600)) {
        check_pair(&script);
    }
}
