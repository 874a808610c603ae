//! Receive blocks and where they are kept.

/// A pool of receive blocks and send buffers, one per thread of I/O. A connection holds a block only
/// while it has unread bytes, so thousands of idle connections cost little.
#[derive(Debug)]
pub struct Blocks {
    block_bytes: usize,
    kept: usize,
}

impl Blocks {
    /// A pool that hands out blocks of `block_bytes` (64 KiB is right) and keeps at most `kept` spare ones.
    pub fn new(block_bytes: usize, kept: usize) -> Self {
        Self { block_bytes, kept }
    }
}
