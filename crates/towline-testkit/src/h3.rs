//! HTTP/3 in tests: frames, a model of QUIC in memory, conformance files.

pub mod frames;
mod link;
pub mod notation;
pub mod properties;
mod side;

use bytes::Bytes;
use towline_proto::QuicClose;

pub use link::{QuicPair, QuicWire};
pub use notation::Arrival;
pub use side::QuicSide;

/// The peer's program has closed with this code and no words.
pub(crate) fn closed_with(code: u64) -> QuicClose {
    QuicClose::ByApplication {
        code,
        reason: Bytes::new(),
    }
}
