//! Resources shared by all `WebSockets` of one thread: needed only while a message is in progress.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng as _, SeedableRng as _};
use flate2::Decompress;

use super::deflate::Compressors;

/// Maximum number of each kept for reuse, and maximum size of a buffer that is kept.
const MAX_KEPT: usize = 8;
const MAX_KEPT_BYTES: usize = 256 * 1024;

/// Buffers, compressors and masks, lent to `WebSockets` for the time of one message. One for each thread.
///
/// Masks come from a cryptographic generator. A fast one that can be predicted (xoshiro, wyrand) would not do: a
/// hostile server sees the masks used by a page that cooperates with it, could compute the next ones, and could
/// have the page put bytes of its choice on the wire, which is what masking prevents (RFC 6455 10.3). `ChaCha`
/// with eight rounds takes a few nanoseconds per frame.
pub struct Scratch {
    masks: ChaCha8Rng,
    buffers: Vec<Vec<u8>>,
    inflaters: Vec<Decompress>,
    pub(super) compressors: Compressors,
}

impl Scratch {
    /// The seed must come from the system's generator if this thread is ever a client; a server masks
    /// nothing.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            masks: ChaCha8Rng::from_seed(seed),
            buffers: Vec::new(),
            inflaters: Vec::new(),
            compressors: Compressors::default(),
        }
    }

    /// Sixteen unpredictable bytes for `Sec-WebSocket-Key` (RFC 6455 4.1).
    pub fn nonce(&mut self) -> [u8; 16] {
        let mut nonce = [0; 16];
        self.masks.fill_bytes(&mut nonce);
        nonce
    }

    pub(super) fn mask(&mut self) -> [u8; 4] {
        self.masks.next_u32().to_ne_bytes()
    }

    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    pub(super) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if (1..=MAX_KEPT_BYTES).contains(&buffer.capacity()) && self.buffers.len() < MAX_KEPT {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// A raw inflater at the start of a stream. All have the largest window: a peer that uses more than the
    /// negotiated one does no harm.
    pub(super) fn inflater(&mut self) -> Decompress {
        self.inflaters
            .pop()
            .unwrap_or_else(|| Decompress::new(false))
    }

    pub(super) fn recycle_inflater(&mut self, mut inflater: Decompress) {
        if self.inflaters.len() < MAX_KEPT {
            inflater.reset(false);
            self.inflaters.push(inflater);
        }
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}
