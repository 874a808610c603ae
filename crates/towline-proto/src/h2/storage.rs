//! Storage that idle connections return to the buffer pool.

use crate::multiplexed::head::HeadDecoder;
use crate::multiplexed::streams::Streams;

use super::stream::Stream;

/// Stream and header storage of an idle connection, returned to the pool.
#[derive(Debug)]
pub(crate) struct StreamStorage {
    pub(super) streams: Streams<Stream>,
    pub(super) head_decoder: HeadDecoder,
}
