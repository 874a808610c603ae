//! Two ends of HTTP/2 driven by any sequence of operations; `towline_testkit::streams` checks the properties.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_testkit::streams;

fuzz_target!(|script: &[u8]| streams::check_pair(script));
