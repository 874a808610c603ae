//! Test tools.
#![forbid(unsafe_code)]
