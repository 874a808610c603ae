//! Storage that idle connections return to the buffer pool.

use std::collections::VecDeque;

use crate::multiplexed::head::HeadDecoder;
use crate::multiplexed::streams::{StreamKey, Streams};

use super::stream::Stream;

/// Larger buffers for the encoding of heads are not kept.
const MAX_IDLE_SCRATCH_BYTES: usize = 4 * 1024;

/// Storage of an idle connection, returned to the pool: streams, heads, and lists that are empty.
#[derive(Debug, Default)]
pub(crate) struct StreamStorage {
    pub(super) streams: Streams<Stream>,
    pub(super) head_decoder: HeadDecoder,
    pub(super) eventful: VecDeque<StreamKey>,
    pub(super) ready: VecDeque<StreamKey>,
    pub(super) closed: Vec<StreamKey>,
    pub(super) readable: VecDeque<u64>,
    pub(super) scratch: Scratch,
}

/// Buffers for the encoding of a field section.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub lines: Vec<u8>,
    pub section: Vec<u8>,
}

impl Scratch {
    /// Frees the buffers of a large head.
    pub fn shrink(&mut self) {
        if self.lines.capacity().max(self.section.capacity()) > MAX_IDLE_SCRATCH_BYTES {
            *self = Self::default();
        }
    }
}
