//! Frames of a peer, cut in several ways; `towline_testkit::sockets` checks the properties.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_proto::Side;
use towline_testkit::sockets;

// The first byte chooses the side, compression and the cuts.
fuzz_target!(|data: &[u8]| {
    if let [choice, wire @ ..] = data {
        let side = if choice & 1 == 0 {
            Side::Server
        } else {
            Side::Client
        };
        let deflate = (choice & 2 != 0).then_some(choice >> 2);
        sockets::check_frames(wire, side, deflate, u64::from(*choice));
    }
});
