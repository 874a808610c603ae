//! One place of the [ticket store](super::ticket_store), which several workers change at once.

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Words of a ticket's name: rustls draws 32 random bytes.
pub(super) const NAME_WORDS: usize = 4;

/// Attempts to find an entry that no other worker changes at this moment.
const MAX_TRIES: usize = 4;

const EMPTY: u64 = 0;
const BUSY: u64 = u64::MAX;

pub(super) type Name = [u64; NAME_WORDS];

/// One ticket and its session, of `WORDS` words at most.
#[repr(C, align(64))]
pub(super) struct Entry<const WORDS: usize> {
    /// `EMPTY`, `BUSY`, or the version of the ticket that it has.
    pub(super) state: AtomicU64,
    pub(super) session_bytes: AtomicU64,
    pub(super) name: [AtomicU64; NAME_WORDS],
    pub(super) session: [AtomicU64; WORDS],
}

/// Puts a ticket in place of the oldest of `entries`; false if others change all of them.
pub(super) fn put<const WORDS: usize>(
    entries: &[Entry<WORDS>],
    name: &Name,
    session: &[u8],
    version: u64,
) -> bool {
    for _ in 0..MAX_TRIES {
        let states = entries.iter();
        let states = states.map(|entry| (entry.state.load(Relaxed), entry));
        let usable = states.filter(|(state, _)| *state != BUSY);
        let Some((state, entry)) = usable.min_by_key(|(state, _)| *state) else {
            return false;
        };
        if entry.claim(state) {
            entry.fill(name, session, version);
            return true;
        }
    }
    false
}

/// Takes the session of a ticket out of `entries`.
pub(super) fn take<const WORDS: usize>(entries: &[Entry<WORDS>], name: &Name) -> Option<Vec<u8>> {
    entries.iter().find_map(|entry| {
        let state = entry.state.load(Acquire);
        let is_full = state != EMPTY && state != BUSY;
        // If the entry changes meanwhile, the claim fails: the ticket is gone.
        (is_full && entry.has(name) && entry.claim(state)).then(|| entry.empty())
    })
}

impl<const WORDS: usize> Entry<WORDS> {
    /// Makes the entry busy if its state is still `state`. The caller then has it for itself.
    fn claim(&self, state: u64) -> bool {
        let swapped = self.state.compare_exchange(state, BUSY, Acquire, Relaxed);
        swapped.is_ok()
    }

    fn has(&self, name: &Name) -> bool {
        let mut words = self.name.iter().zip(name);
        words.all(|(word, wanted)| word.load(Relaxed) == *wanted)
    }

    /// Ends the claim with a ticket.
    fn fill(&self, name: &Name, session: &[u8], version: u64) {
        for (word, value) in self.name.iter().zip(name) {
            word.store(*value, Relaxed);
        }
        self.session_bytes.store(session.len() as u64, Relaxed);
        for (word, bytes) in self.session.iter().zip(session.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), Relaxed);
        }
        self.state.store(version, Release);
    }

    /// Ends the claim without one, and returns the session, which does not stay in the memory.
    fn empty(&self) -> Vec<u8> {
        let bytes = self.session_bytes.load(Relaxed) as usize;
        let words = self.session.iter().map(|word| word.swap(0, Relaxed));
        let mut session: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        session.truncate(bytes);
        self.state.store(EMPTY, Release);
        session
    }
}
