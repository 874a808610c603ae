//! Two ends of a connection driven by any sequence of operations; `towline_testkit::operations` says what must hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_testkit::operations;

fuzz_target!(|script: &[u8]| operations::check(script));
