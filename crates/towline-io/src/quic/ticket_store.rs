//! Tickets of TLS sessions in memory that the workers of a server share. Each is valid once (RFC 8446 8.1).
//!
//! ```text
//!        ┌─────────────── put ───────────────┐          ┌── take ──┐
//! empty ─┴─► busy ─► full, with its version ─┴─► busy ──┴─► empty ─┘
//! ```
//!
//! The supervisor maps the memory before it starts the workers. An entry is changed only by the worker that has made it busy, by a
//! compare-and-swap of its state; no two tickets have the same version. So of several workers to which one ticket is
//! offered at once, one takes it. A worker that is killed in these nanoseconds leaves an entry busy, which is then
//! lost: until the next reload, which makes another store.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};

use super::ticket_entry::{self, NAME_WORDS, Name};
use crate::shared_memory::Mapping;

/// Words of a session. One without a client's certificate needs about 300 bytes.
const SESSION_WORDS: usize = 58;

/// Entries among which a name has its place; the oldest of them is replaced.
const BUCKET: usize = 8;

/// Sessions with certificates of clients that a worker keeps for itself.
const LARGE_SESSIONS: usize = 256;

type Entry = ticket_entry::Entry<SESSION_WORDS>;

/// The begin of the memory, before the entries.
#[repr(C, align(64))]
struct Head {
    last_version: AtomicU64,
}

/// Tickets that can be used once, by any of the processes that share the memory.
pub struct TicketStore {
    memory: Mapping,
    buckets: usize,
    /// Sessions that are larger than an entry. Their tickets are this worker's own.
    large: Arc<ServerSessionMemoryCache>,
}

impl fmt::Debug for TicketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketStore")
    }
}

impl TicketStore {
    /// Room for about `tickets`, shared with the processes that are forked from this one, or that inherit `file`, a
    /// descriptor of shared memory. Memory is used as they come.
    pub fn new(tickets: usize, file: Option<RawFd>) -> io::Result<Self> {
        let buckets = tickets.div_ceil(BUCKET).max(1);
        let bytes = size_of::<Head>() + buckets * BUCKET * size_of::<Entry>();
        Ok(Self {
            memory: Mapping::new(bytes, file)?,
            buckets,
            large: ServerSessionMemoryCache::new(LARGE_SESSIONS),
        })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a head: it is long enough, on a page boundary, zero or written as a head only,
        // valid for any bytes since a head is an atomic, and mapped as long as `self`.
        unsafe { &*self.memory.start().cast() }
    }

    fn entries(&self) -> &[Entry] {
        // SAFETY: as for the head; the entries follow it, `buckets` times `BUCKET` of them, and both sizes are multiples
        // of the alignment.
        unsafe {
            let first: *const Entry = self.memory.start().add(size_of::<Head>()).cast();
            slice::from_raw_parts(first, self.buckets * BUCKET)
        }
    }

    fn bucket(&self, name: &Name) -> &[Entry] {
        let index = (name[0] % self.buckets as u64) as usize;
        &self.entries()[index * BUCKET..][..BUCKET]
    }
}

impl StoresServerSessions for TicketStore {
    fn put(&self, name: Vec<u8>, session: Vec<u8>) -> bool {
        let Some(words) = words_of(&name).filter(|_| session.len() <= SESSION_WORDS * 8) else {
            return self.large.put(name, session);
        };
        let version = self.head().last_version.fetch_add(1, Relaxed) + 1;
        ticket_entry::put(self.bucket(&words), &words, &session, version)
    }

    /// Only TLS 1.2 asks for a session that stays, which QUIC does not have.
    fn get(&self, _name: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        let words = words_of(name)?;
        ticket_entry::take(self.bucket(&words), &words).or_else(|| self.large.take(name))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// `None` if the name has another length.
fn words_of(name: &[u8]) -> Option<Name> {
    let (words, rest) = name.as_chunks::<8>();
    let words = <&[[u8; 8]; NAME_WORDS]>::try_from(words).ok()?;
    rest.is_empty().then(|| words.map(u64::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn name(number: u64) -> Vec<u8> {
        // Buckets are selected by the first word.
        let words = [number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number, 7, 8];
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    fn session(number: u64) -> Vec<u8> {
        let length = 100 + number as usize % (SESSION_WORDS * 8 - 99);
        (0..length).map(|at| (number as usize + at) as u8).collect()
    }

    #[test]
    fn a_ticket_is_taken_once() {
        let store = TicketStore::new(64, None).unwrap();
        for number in 0..8 {
            assert!(store.put(name(number), session(number)));
        }
        for number in 0..8 {
            assert_eq!(store.take(&name(number)), Some(session(number)));
            assert_eq!(store.take(&name(number)), None);
        }
        assert_eq!(store.take(&name(9)), None);
        assert_eq!(store.take(b"short"), None);
        // Nothing of a session stays behind.
        let mut left = store.entries().iter().flat_map(|entry| &entry.session);
        assert!(left.all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn a_full_bucket_forgets_its_oldest_ticket() {
        let store = TicketStore::new(BUCKET, None).unwrap();
        for number in 0..=BUCKET as u64 {
            assert!(store.put(name(number), session(number)));
        }
        assert_eq!(store.take(&name(0)), None);
        for number in 1..=BUCKET as u64 {
            assert_eq!(store.take(&name(number)), Some(session(number)));
        }
    }

    #[test]
    fn a_session_of_every_size_is_kept() {
        let store = TicketStore::new(64, None).unwrap();
        for bytes in [
            0,
            1,
            7,
            8,
            9,
            SESSION_WORDS * 8,
            SESSION_WORDS * 8 + 1,
            5000,
        ] {
            let session: Vec<u8> = (0..bytes).map(|at| at as u8 | 1).collect();
            assert!(store.put(name(1), session.clone()));
            assert_eq!(store.take(&name(1)), Some(session), "{bytes}");
            assert_eq!(store.take(&name(1)), None, "{bytes}");
        }
    }

    /// The tickets that several threads get of the first `count`, all from the first one on.
    fn taken_by_threads(store: &TicketStore, count: u64) -> Vec<u64> {
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            let take = || {
                barrier.wait();
                let found = (0..count).filter_map(|number| {
                    let found = store.take(&name(number))?;
                    assert_eq!(found, session(number), "mixed up");
                    Some(number)
                });
                found.collect::<Vec<u64>>()
            };
            let takers: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
            barrier.wait();
            for number in count..2 * count {
                store.put(name(number), session(number));
            }
            let taken = takers.into_iter().map(|taker| taker.join().unwrap());
            taken.flatten().collect()
        })
    }

    #[test]
    fn of_threads_that_are_offered_a_ticket_at_once_one_takes_it() {
        let store = TicketStore::new(1 << 14, None).unwrap();
        for number in 0..1000 {
            store.put(name(number), session(number));
        }
        let mut taken = taken_by_threads(&store, 1000);
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..1000));
    }

    #[test]
    fn tickets_that_are_replaced_while_they_are_taken_stay_whole() {
        for round in 0..200 {
            let store = TicketStore::new(BUCKET, None).unwrap();
            for number in 0..BUCKET as u64 {
                store.put(name(number), session(number));
            }
            let mut taken = taken_by_threads(&store, BUCKET as u64);
            let all = taken.len();
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), all, "taken twice in round {round}");
        }
    }

    #[test]
    fn a_forked_process_shares_the_tickets() {
        let store = TicketStore::new(64, None).unwrap();
        store.put(name(1), session(1));
        store.put(name(2), session(2));
        let words = words_of(&name(1)).unwrap();
        // SAFETY: the child allocates a session, and exits at once; glibc's allocator works in a child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let taken = ticket_entry::take(store.bucket(&words), &words).is_some();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!taken)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(store.take(&name(1)), None);
        assert_eq!(store.take(&name(2)), Some(session(2)));
    }
}
