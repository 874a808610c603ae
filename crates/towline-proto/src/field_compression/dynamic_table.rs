//! The dynamic table (RFC 7541 2.3.2), the same for both directions.
//!
//! ```text
//!   text:     evicted ┃ oldest │ ... │ newest ┃ free        entries leave on the left, come on the right
//!   entries:            [0]      ...   [n-1]               index 62 is the newest
//! ```
//!
//! The bytes of an entry are one run, name then value. When the space on the right is used up and enough on the
//! left is evicted, the rest moves to the left: each byte is moved a bounded number of times.

use std::collections::VecDeque;

use super::{FieldError, Name};

/// Overhead of an entry in addition to its bytes (RFC 7541 4.1).
pub(crate) const OVERHEAD: u32 = 32;
/// Size of the table before any setting (RFC 9113 6.5.2).
pub(crate) const DEFAULT_TABLE_BYTES: u32 = 4096;

/// Properties of an entry, determined once when it is added.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EntryInfo {
    pub name: Name,
    pub name_error: Option<FieldError>,
    pub error: Option<FieldError>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Offset from the first byte ever added, wrapping.
    at: u32,
    len: u32,
    name_len: u32,
    info: EntryInfo,
    /// See [`DynamicTable::set_output_at`].
    output_at: u32,
}

/// A view of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryRef<'a> {
    /// Name and value, concatenated.
    pub line: &'a [u8],
    pub name_len: u32,
    pub info: EntryInfo,
    /// Offset of its last copy in the decoded text, of this block or of an earlier one that is gone.
    pub output_at: u32,
}

#[derive(Debug)]
pub(crate) struct DynamicTable {
    text: Vec<u8>,
    entries: VecDeque<Entry>,
    /// The `at` of the first byte of `text`.
    base: u32,
    /// As RFC 7541 4.1 counts it.
    bytes: u32,
    max_bytes: u32,
    /// Number of entries ever added, wrapping.
    added: u32,
}

impl DynamicTable {
    /// A table of HTTP/2's initial size.
    pub fn new() -> Self {
        Self::of_size(DEFAULT_TABLE_BYTES)
    }

    pub fn of_size(max_bytes: u32) -> Self {
        Self {
            text: Vec::new(),
            entries: VecDeque::new(),
            base: 0,
            bytes: 0,
            max_bytes,
            added: 0,
        }
    }

    pub fn max_bytes(&self) -> u32 {
        self.max_bytes
    }

    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Number of entries ever added, which is the number of the next one.
    pub fn added(&self) -> u32 {
        self.added
    }

    /// Number of entries added after the one with this number; at least `len` if it was evicted or never
    /// existed.
    #[inline]
    pub fn age(&self, number: u32) -> u32 {
        self.added.wrapping_sub(1).wrapping_sub(number)
    }

    /// Number of entries that would be evicted for one of `len` bytes; `None`: it is larger than the table.
    pub fn evictions_for(&self, len: usize) -> Option<u32> {
        let cost = u32::try_from(len).ok()?.checked_add(OVERHEAD)?;
        let room = self.max_bytes.checked_sub(cost)?;
        let (mut bytes, mut evicted) = (self.bytes, 0);
        while bytes > room {
            bytes -= self.entries.get(evicted as usize)?.len + OVERHEAD;
            evicted += 1;
        }
        Some(evicted)
    }

    /// Bytes of the entries older than the one of this age.
    pub fn bytes_before(&self, age: u32) -> u32 {
        let count = self.entries.len().saturating_sub(age as usize + 1);
        let older = self.entries.iter().take(count);
        older.map(|entry| entry.len + OVERHEAD).sum()
    }

    /// RFC 7541 4.3.
    pub fn set_max_bytes(&mut self, max_bytes: u32) {
        self.max_bytes = max_bytes;
        self.evict_to(max_bytes);
    }

    /// The entry added `age` entries before the newest.
    #[inline]
    pub fn get(&self, age: u32) -> Option<EntryRef<'_>> {
        let place = self.entries.len().checked_sub(age as usize + 1)?;
        let entry = self.entries[place];
        let start = entry.at.wrapping_sub(self.base) as usize;
        Some(EntryRef {
            line: &self.text[start..start + entry.len as usize],
            name_len: entry.name_len,
            info: entry.info,
            output_at: entry.output_at,
        })
    }

    /// Records the offset at which the entry was copied to the text of a block.
    #[inline]
    pub fn set_output_at(&mut self, age: u32, at: u32) {
        let place = self.entries.len().checked_sub(age as usize + 1);
        if let Some(entry) = place.and_then(|place| self.entries.get_mut(place)) {
            entry.output_at = at;
        }
    }

    /// Adds an entry (RFC 7541 4.4); returns false if it is larger than the table, which is then empty.
    pub fn add(&mut self, name: &[u8], value: &[u8], info: EntryInfo) -> bool {
        let len = name.len() + value.len();
        let cost = (len as u32).saturating_add(OVERHEAD);
        self.evict_to(self.max_bytes.saturating_sub(cost));
        if cost > self.max_bytes {
            return false;
        }
        self.make_room(len);
        self.entries.push_back(Entry {
            at: self.base.wrapping_add(self.text.len() as u32),
            len: len as u32,
            name_len: name.len() as u32,
            info,
            output_at: 0,
        });
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(value);
        self.bytes += cost;
        self.added = self.added.wrapping_add(1);
        true
    }

    /// Evicts the oldest entries until no more than `bytes` are used.
    fn evict_to(&mut self, bytes: u32) {
        while self.bytes > bytes
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= oldest.len + OVERHEAD;
        }
    }

    fn make_room(&mut self, len: usize) {
        if self.text.len() + len <= self.text.capacity() {
            return;
        }
        let evicted = match self.entries.front() {
            Some(oldest) => oldest.at.wrapping_sub(self.base) as usize,
            None => self.text.len(),
        };
        // Each moved byte is paid for by a third of an evicted one.
        if evicted >= len && evicted >= self.text.len() / 4 {
            self.text.drain(..evicted);
            self.base = self.base.wrapping_add(evicted as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n: u32, len: usize) -> Vec<u8> {
        n.to_le_bytes().into_iter().cycle().take(len).collect()
    }

    /// Compares with a plain list.
    #[test]
    fn the_table_agrees_with_a_list() {
        let mut table = DynamicTable::new();
        let mut list: VecDeque<Vec<u8>> = VecDeque::new();
        let mut state = 1_u32;
        for n in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let size = (state >> 8) as usize % if n % 50 == 0 { 5000 } else { 200 };
            if n % 997 == 0 {
                table.set_max_bytes(state >> 20);
            }
            let line = line(n, size);
            let added = table.add(&line[..size / 3], &line[size / 3..], EntryInfo::default());
            list.push_front(line);
            let cost =
                |list: &VecDeque<Vec<u8>>| list.iter().map(|line| line.len() + 32).sum::<usize>();
            while cost(&list) > table.max_bytes() as usize {
                list.pop_back();
            }
            assert_eq!(added, size + 32 <= table.max_bytes() as usize);
            assert_eq!(table.len() as usize, list.len());
            for (age, line) in (0..).zip(&list) {
                assert_eq!(table.get(age).expect("held").line, line);
            }
            assert!(table.get(table.len()).is_none());
            assert!(
                table.text.capacity() <= 16 * 1024,
                "{}",
                table.text.capacity()
            );
        }
    }
}
