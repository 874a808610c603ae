//! Streams of HTTP/3 into a server and into a client with requests in flight, cut in several ways: frames, instructions
//! of QPACK, ends and resets. `towline_testkit::h3::properties` checks the properties.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_proto::Side;
use towline_testkit::h3::properties::{arrivals, check_arrivals};

// The first byte chooses the side and the cuts.
fuzz_target!(|data: &[u8]| {
    if let [choice, script @ ..] = data {
        let side = if choice & 1 == 0 {
            Side::Server
        } else {
            Side::Client
        };
        check_arrivals(&arrivals(side, script), side, u64::from(*choice));
    }
});
