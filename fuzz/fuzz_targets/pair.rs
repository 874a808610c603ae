//! Two ends of a connection driven by any sequence of operations; `towline_testkit::operations` checks the
//! properties.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_testkit::operations;

fuzz_target!(|script: &[u8]| operations::check(script));
