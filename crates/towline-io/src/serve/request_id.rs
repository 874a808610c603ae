//! Request ids: taken from a trusted proxy, or made (UUID version 7, RFC 9562 5.7).

use std::cell::Cell;
use std::fmt::Write;
use std::io;
use std::time::{Duration, SystemTime};

use crate::tls::seed;

/// The longest id that is taken from a header: those in use have 16 to 64 characters.
const MAX_ID_BYTES: usize = 128;

/// Makes the ids of one thread.
#[derive(Debug)]
pub struct IdGenerator {
    state: Cell<u64>,
    /// Distinguishes the generators.
    key: u64,
}

impl IdGenerator {
    pub fn new() -> io::Result<Self> {
        let seed = seed()?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&seed[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Ok(Self {
            state: Cell::new(word(0)),
            key: word(8),
        })
    }

    /// A new id, which sorts by time: `01937f3a-6c5e-7cc3-98c4-dc0c0c07398f`. Unique, but not a secret.
    pub fn make(&self, now: SystemTime) -> String {
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        let ms = since.map_or(0, |since: Duration| since.as_millis() as u64) & 0xffff_ffff_ffff;
        let (first, second) = (self.random(), self.random() ^ self.key);
        let high = ms << 16 | 0x7000 | first & 0x0fff;
        let low = 0x8000_0000_0000_0000 | second & 0x3fff_ffff_ffff_ffff;
        let mut id = String::with_capacity(36);
        // Writing to a String cannot fail.
        let _ = write!(
            id,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        );
        id
    }

    /// `SplitMix64` (Steele, Lea and Flood, 2014).
    fn random(&self) -> u64 {
        let state = self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Whether a value from a header can be an id: visible ASCII without quotes, of a bounded length.
pub fn is_valid(id: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:/+=@".contains(byte);
    !id.is_empty() && id.len() <= MAX_ID_BYTES && id.iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_of_version_7_in_the_order_of_time() {
        let generator = IdGenerator::new().unwrap();
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        // The time of RFC 9562, A.6.
        let id = generator.make(at(0x017f_22e2_79b0));
        assert!(id.starts_with("017f22e2-79b0-7"), "{id}");
        assert_eq!(id.len(), 36);
        assert!(matches!(id.as_bytes()[19], b'8'..=b'b'), "{id}");
        let mut ids: Vec<_> = (0..1000).map(|ms| generator.make(at(ms))).collect();
        let sorted = ids.clone();
        ids.sort();
        ids.dedup();
        assert_eq!(ids, sorted);
    }

    #[test]
    fn generators_differ() {
        let now = SystemTime::UNIX_EPOCH;
        let one = IdGenerator::new().unwrap().make(now);
        assert_ne!(one, IdGenerator::new().unwrap().make(now));
    }

    #[test]
    fn ids_of_clients_are_checked() {
        assert!(is_valid(b"0af7651916cd43dd8448eb211c80319c"));
        assert!(is_valid(b"Root=1-67891233-abcdef012345678912345678"));
        for bad in [&b""[..], b"a b", b"a\"b", b"\xe9", &[b'a'; 129]] {
            assert!(!is_valid(bad));
        }
    }
}
