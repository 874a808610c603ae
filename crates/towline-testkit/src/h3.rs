//! HTTP/3 in tests: frames, a model of QUIC in memory, conformance files.

pub mod frames;
mod link;
pub mod notation;
pub mod properties;
mod side;

pub use link::{QuicPair, QuicWire};
pub use notation::Arrival;
pub use side::QuicSide;
