//! Storage that idle connections return to the buffer pool.

use super::head::HeadDecoder;
use super::streams::Streams;

/// Stream and header storage of an idle connection, returned to the pool.
#[derive(Debug)]
pub(crate) struct StreamStorage {
    pub(super) streams: Streams,
    pub(super) head_decoder: HeadDecoder,
}
