//! The memory of the limits, which all workers share: buckets of all clients, then the connections of each worker.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::bucket::WAYS;
use crate::shared_memory::Mapping;

/// Sets of buckets: 131,072 clients in debt at once, in 1 MiB.
const SETS: usize = 1 << 14;
/// Counters of a client's connections in each worker.
pub(super) const ROWS: u32 = 4;
/// Words of counters for each worker, of one 16-bit counter of each row: 256 KiB, of which unused pages cost nothing.
const COUNTERS: usize = 1 << 15;

/// Shared with the workers. Initially zero but for the seed.
pub struct LimitMemory {
    mapping: Mapping,
    /// Secret: nobody can choose addresses that share a place.
    seed: [u64; 2],
}

impl LimitMemory {
    /// `file`: see [`Slots::mapped`](crate::serve::metrics::Slots::mapped).
    pub fn new(workers: usize, file: Option<RawFd>) -> io::Result<Self> {
        let words = SETS * WAYS + workers * COUNTERS;
        let mapping = Mapping::new((words + 2) * size_of::<u64>(), file)?;
        let seed = [words, words + 1].map(|index| {
            let word = &mapping.words()[index];
            if word.load(Relaxed) == 0 {
                // The supervisor, which has mapped the memory first.
                word.store(RandomState::new().hash_one(index), Relaxed);
            }
            word.load(Relaxed)
        });
        Ok(Self { mapping, seed })
    }

    pub(crate) fn hash(&self, key: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, key).hash(&mut hasher);
        hasher.finish()
    }

    /// The set of a client; its tag is in other bits of the hash.
    pub(super) fn set(&self, hash: u64) -> &[AtomicU64; WAYS] {
        let (sets, _) = self.mapping.words().as_chunks();
        &sets[(hash >> 32) as usize % SETS]
    }

    fn counters(&self, worker: usize) -> &[AtomicU64] {
        &self.mapping.words()[SETS * WAYS + worker * COUNTERS..][..COUNTERS]
    }

    /// The word of a client's counter in a row, and the position of its bits.
    pub(super) fn counter(&self, worker: usize, hash: u64, row: u32) -> (&AtomicU64, u32) {
        let index = (hash >> (16 * row)) as usize % COUNTERS;
        (&self.counters(worker)[index], 16 * row)
    }

    /// Gives back the connections of a worker that has ended.
    pub(crate) fn forget_connections(&self, worker: usize) {
        for word in self.counters(worker) {
            word.store(0, Relaxed);
        }
    }
}
