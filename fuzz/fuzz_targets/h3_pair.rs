//! Two ends of HTTP/3 driven by any sequence of operations; `towline_testkit::h3::properties` checks the properties.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_testkit::h3::properties;

fuzz_target!(|script: &[u8]| properties::check_pair(script));
