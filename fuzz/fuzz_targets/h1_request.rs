//! A request stream, cut in several ways; `towline_testkit::oracle` checks the properties.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_testkit::oracle;

// The first byte seeds the cuts, so that the fuzzer can choose them too.
fuzz_target!(|data: &[u8]| {
    if let [seed, wire @ ..] = data {
        oracle::check_requests(wire, u64::from(*seed));
    }
});
