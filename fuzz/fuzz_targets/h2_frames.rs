//! Frames of HTTP/2 into a server and into a client with requests in flight, cut in several ways;
//! `towline_testkit::streams` checks the properties.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_proto::Side;
use towline_testkit::streams;

// The first byte chooses the side and the cuts.
fuzz_target!(|data: &[u8]| {
    if let [choice, script @ ..] = data {
        let side = if choice & 1 == 0 {
            Side::Server
        } else {
            Side::Client
        };
        streams::check_frames(&streams::frames(side, script), side, u64::from(*choice));
    }
});
