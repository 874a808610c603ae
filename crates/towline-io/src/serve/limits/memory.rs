//! The memory of the limits, which all workers share: buckets of all clients, then the connections of each worker.

use std::hash::{BuildHasher, Hash, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::bucket::WAYS;
use crate::shared_memory::Mapping;

/// Sets of buckets: 131,072 clients in debt at once, in 1 MiB.
const SETS: usize = 1 << 14;
/// Counters of a client's connections in each worker.
pub(super) const ROWS: u32 = 4;
/// Words of counters for each worker, of one 16-bit counter of each row: 256 KiB, of which unused pages cost nothing.
const COUNTERS: usize = 1 << 15;

/// Shared with the processes that are forked from this one, as is the seed. Initially zero.
pub struct LimitMemory {
    mapping: Mapping,
    /// Secret: nobody can choose addresses that share a place.
    seed: RandomState,
}

impl LimitMemory {
    pub fn new(workers: usize) -> io::Result<Self> {
        let words = SETS * WAYS + workers * COUNTERS;
        Ok(Self {
            mapping: Mapping::new(words * size_of::<u64>())?,
            seed: RandomState::new(),
        })
    }

    pub(super) fn hash(&self, key: impl Hash) -> u64 {
        self.seed.hash_one(key)
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
