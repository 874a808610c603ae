//! Messages compressed and read back, and bytes used as a compressed message; `towline_testkit::sockets` checks
//! the properties.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_testkit::sockets;

fuzz_target!(|data: &[u8]| {
    if let [choice, data @ ..] = data {
        sockets::check_deflate(data, *choice);
    }
});
