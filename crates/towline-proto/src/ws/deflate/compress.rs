//! Compression, with states that are borrowed for one message.
//!
//! A state records its last user. If the same WebSocket sends again, its window is still loaded; otherwise the
//! window is loaded, which takes a few microseconds. So a few busy sockets have states of their own, and ten
//! thousand share eight.

use std::sync::Arc;

use flate2::{Compress, Compression, FlushCompress};

use super::window::Window;
use super::{Config, Direction, TAIL};

/// Maximum number of idle states.
const MAX_KEPT: usize = 8;
/// Growth step of an output buffer.
const STEP_BYTES: usize = 1024;
/// Growth allowed for a message while its context is being built.
const CONTEXT_GROWTH_BYTES: usize = 16;
/// The smallest window of zlib. With the smallest one of the RFC, nothing is compressed, which is always allowed.
const MIN_WINDOW_BITS: u8 = 9;

/// The context of sent messages.
#[derive(Debug)]
pub(in crate::ws) struct Outbound {
    window: Window,
    window_bits: u8,
    level: u8,
    threshold_bytes: usize,
    /// Identity for the states, compared by address.
    owner: Arc<()>,
}

/// The states of one thread, oldest first.
#[derive(Default)]
pub(in crate::ws) struct Compressors {
    kept: Vec<Compressor>,
}

/// A deflate state, and the owner of the window loaded in it.
pub(in crate::ws) struct Compressor {
    stream: Compress,
    window_bits: u8,
    level: u8,
    owner: Option<Arc<()>>,
}

impl Outbound {
    pub fn new(direction: Direction, config: &Config) -> Self {
        Self {
            window: Window::new(direction),
            window_bits: direction.window_bits,
            level: config.level,
            threshold_bytes: config.threshold_bytes,
            owner: Arc::default(),
        }
    }

    /// Whether to compress a message that begins with, or consists of, `len` bytes.
    pub fn should_compress(&self, len: usize, is_complete: bool) -> bool {
        self.window_bits >= MIN_WINDOW_BITS && (!is_complete || len >= self.threshold_bytes)
    }

    /// Takes a state with this context loaded.
    pub fn start(&self, compressors: &mut Compressors) -> Compressor {
        let fits =
            |kept: &Compressor| kept.window_bits == self.window_bits && kept.level == self.level;
        let is_own = |kept: &Compressor| {
            kept.owner
                .as_ref()
                .is_some_and(|owner| Arc::ptr_eq(owner, &self.owner))
        };
        let kept = &mut compressors.kept;
        if let Some(at) = kept.iter().position(is_own) {
            return kept.remove(at);
        }
        let mut compressor = match kept.iter().position(fits) {
            Some(at) if kept.len() == MAX_KEPT => kept.remove(at),
            _ => Compressor::new(self.window_bits, self.level),
        };
        compressor.load(self.window.bytes());
        compressor
    }

    /// Appends a piece of a message in compressed form, flushed so that it can be decompressed; the last one
    /// without the implied tail.
    pub fn compress(
        &mut self,
        compressor: &mut Compressor,
        data: &[u8],
        fin: bool,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        compressor.run(data, out);
        if fin {
            end_message(out, start);
        }
        self.window.record(data);
    }

    /// Appends a whole message in compressed form, unless that saves nothing: then returns `false`, and the
    /// context is unchanged.
    pub fn compress_whole(
        &mut self,
        compressors: &mut Compressors,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let mut compressor = self.start(compressors);
        compressor.run(data, out);
        end_message(out, 0);
        // A message that starts a context may be slightly longer: later messages refer to it.
        let allowed = if self.window.is_filling() {
            data.len() + CONTEXT_GROWTH_BYTES
        } else {
            data.len()
        };
        let worth_it = out.len() < allowed;
        if worth_it {
            self.window.record(data);
            self.release(compressor, compressors);
        } else {
            out.clear();
            compressors.keep(compressor, None);
        }
        worth_it
    }

    /// Returns the state of a complete message.
    pub fn release(&self, compressor: Compressor, compressors: &mut Compressors) {
        let owner = self.window.is_kept().then(|| Arc::clone(&self.owner));
        compressors.keep(compressor, owner);
    }
}

/// Removes the implied tail (RFC 7692 7.2.1).
fn end_message(out: &mut Vec<u8>, start: usize) {
    if out[start..].ends_with(&TAIL) {
        out.truncate(out.len() - TAIL.len());
    } else {
        // Nothing was written since the last flush: an empty block, without the implied tail.
        out.push(0);
    }
}

impl Compressors {
    fn keep(&mut self, mut compressor: Compressor, owner: Option<Arc<()>>) {
        compressor.owner = owner;
        if self.kept.len() == MAX_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(compressor);
    }
}

impl Compressor {
    fn new(window_bits: u8, level: u8) -> Self {
        let level_of = Compression::new(u32::from(level));
        Self {
            stream: Compress::new_with_window_bits(level_of, false, window_bits),
            window_bits,
            level,
            owner: None,
        }
    }

    /// Starts a stream that continues this window.
    fn load(&mut self, window: &[u8]) {
        self.stream.reset();
        if !window.is_empty() {
            // Only a stream with a zlib header, or one in progress, refuses a dictionary.
            let _ = self.stream.set_dictionary(window);
        }
    }

    fn run(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let mut rest = data;
        loop {
            out.reserve(STEP_BYTES.max(rest.len() / 2));
            let before = self.stream.total_in();
            // A raw stream that is never finished reports no errors.
            let _ = self.stream.compress_vec(rest, out, FlushCompress::Sync);
            rest = &rest[(self.stream.total_in() - before) as usize..];
            if rest.is_empty() && out.len() < out.capacity() {
                return;
            }
        }
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}
