//! HTTP/3 in tests: frames, a model of QUIC in memory, conformance files.

mod link;

pub use link::{QuicPair, QuicWire};
