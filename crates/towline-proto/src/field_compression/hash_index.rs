//! Hash index of the entries of the encoder's table.
//!
//! A slot holds the number of an entry, and matches are verified against the table: an evicted entry needs no
//! removal, and an overwritten slot costs bytes on the wire, never a wrong field.

use super::dynamic_table::DynamicTable;

const SLOTS: usize = 256;
/// Slots that one hash may use: the most comparisons that colliding fields can cause.
const PROBES: usize = 4;
/// More than the new fields of one head, or repeated fields would never be recognized.
const MAX_MARKS: usize = 64;

#[derive(Debug)]
pub(crate) struct HashIndex {
    /// Allocated when the first entry is added.
    slots: Vec<u32>,
    /// Marks of the last values seen once, and the position of the next one.
    marks: [u16; MAX_MARKS],
    next_mark: usize,
}

impl Default for HashIndex {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            marks: [0; MAX_MARKS],
            next_mark: 0,
        }
    }
}

impl HashIndex {
    /// Finds the number of an entry with this hash for which `is` returns true.
    #[inline]
    pub fn find(
        &self,
        table: &DynamicTable,
        hash: u64,
        is: impl Fn(&[u8], u32) -> bool,
    ) -> Option<u32> {
        self.candidates(hash).find(|&number| {
            table
                .get(table.age(number))
                .is_some_and(|entry| is(entry.line, entry.name_len))
        })
    }

    /// The numbers of entries that may have this hash.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> {
        let slots = if self.slots.is_empty() {
            0..0
        } else {
            0..PROBES
        };
        slots.map(move |probe| self.slots[slot(hash, probe)])
    }

    /// Adds a new entry in a free slot, or else in that of the oldest.
    pub fn add(&mut self, table: &DynamicTable, hash: u64, number: u32) {
        if self.slots.is_empty() {
            // A number of no entry.
            self.slots = vec![number.wrapping_add(1); SLOTS];
        }
        let oldest = (0..PROBES)
            .map(|probe| slot(hash, probe))
            .max_by_key(|&slot| table.age(self.slots[slot]));
        if let Some(slot) = oldest {
            self.slots[slot] = number;
        }
    }

    /// Whether this hash was seen before, among the recent ones; records it if not.
    pub fn is_repeated(&mut self, hash: u64) -> bool {
        let mark = (hash >> 32) as u16;
        // Without an early exit this is a few vector instructions.
        let found = self.marks.iter().filter(|&&seen| seen == mark).count() > 0;
        if !found {
            self.marks[self.next_mark] = mark;
            self.next_mark = (self.next_mark + 1) % MAX_MARKS;
        }
        found
    }
}

#[inline]
fn slot(hash: u64, probe: usize) -> usize {
    ((hash >> 56) as usize + probe) % SLOTS
}

/// A fast multiplicative hash, eight bytes at a time; matches are compared afterwards.
#[inline]
pub(crate) fn hash(bytes: &[u8], seed: u64) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(seed ^ bytes.len() as u64, |hash, word| {
        mix(hash, u64::from_le_bytes(*word))
    });
    let hash = mix(hash, short(rest));
    hash ^ hash >> 29
}

/// Up to seven bytes as a number, combined in registers: bytes copied to a buffer of eight would have to be
/// stored before they could be loaded together.
#[inline]
fn short(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let word = |at: usize| {
        let word = bytes[at..].first_chunk::<4>();
        word.map_or(0, |word| u64::from(u32::from_le_bytes(*word)))
    };
    match len {
        0 => 0,
        1..4 => {
            let [first, middle, last] = [0, len / 2, len - 1].map(|at| u64::from(bytes[at]));
            first | middle << 8 | last << 16
        }
        // These overlap, and the length is in the hash already.
        _ => word(0) | word(len - 4) << 32,
    }
}
