//! The static tables of HPACK and QPACK, each stored as one run of bytes.

use super::hpack_entries::HPACK_ENTRIES;
use super::names::{Name, name_of};
use super::qpack_entries::QPACK_ENTRIES;

/// The table of HPACK; index 1 is at position 0.
pub(crate) static HPACK_TABLE: StaticTable<
    { HPACK_ENTRIES.len() },
    { text_bytes(&HPACK_ENTRIES) },
> = StaticTable::of(&HPACK_ENTRIES);

/// The table of QPACK.
pub(crate) static QPACK_TABLE: StaticTable<
    { QPACK_ENTRIES.len() },
    { text_bytes(&QPACK_ENTRIES) },
> = StaticTable::of(&QPACK_ENTRIES);

/// Where the text of an entry is in the text of its table.
#[derive(Clone, Copy)]
struct Span {
    start: u16,
    name_len: u8,
    len: u8,
    name: Name,
}

/// An entry of a static table.
#[derive(Clone, Copy)]
pub(crate) struct StaticEntry {
    /// Name and value, concatenated.
    pub line: &'static [u8],
    pub name_len: u32,
    pub name: Name,
}

/// The entries of a static table and their text.
pub(crate) struct StaticTable<const N: usize, const BYTES: usize> {
    spans: [Span; N],
    text: [u8; BYTES],
}

/// Length of the text of all entries.
const fn text_bytes<const N: usize>(entries: &[(&[u8], &[u8]); N]) -> usize {
    let (mut bytes, mut i) = (0, 0);
    while i < N {
        bytes += entries[i].0.len() + entries[i].1.len();
        i += 1;
    }
    bytes
}

impl<const N: usize, const BYTES: usize> StaticTable<N, BYTES> {
    /// `BYTES` is the [`text_bytes`] of the entries.
    const fn of(entries: &[(&[u8], &[u8]); N]) -> Self {
        let none = Span {
            start: 0,
            name_len: 0,
            len: 0,
            name: Name::Other,
        };
        let mut table = Self {
            spans: [none; N],
            text: [0; BYTES],
        };
        let (mut at, mut i) = (0, 0);
        while i < N {
            let (name, value) = entries[i];
            table.spans[i] = Span {
                start: at as u16,
                name_len: name.len() as u8,
                len: (name.len() + value.len()) as u8,
                name: name_of(name),
            };
            let mut j = 0;
            while j < name.len() + value.len() {
                table.text[at] = if j < name.len() {
                    name[j]
                } else {
                    value[j - name.len()]
                };
                at += 1;
                j += 1;
            }
            i += 1;
        }
        table
    }

    /// The entry at a position from 0.
    #[inline]
    pub fn get(&'static self, position: u32) -> Option<StaticEntry> {
        let span = self.spans.get(position as usize)?;
        Some(StaticEntry {
            line: &self.text[usize::from(span.start)..][..usize::from(span.len)],
            name_len: u32::from(span.name_len),
            name: span.name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: [(&[u8], &[u8]); 3] = [(b"host", b""), (b"x", b"yz"), (b":path", b"/")];
    static TABLE: StaticTable<3, { text_bytes(&ENTRIES) }> = StaticTable::of(&ENTRIES);

    #[test]
    fn entries_are_found_by_their_position() {
        let found: Vec<_> = (0..4)
            .map_while(|position| TABLE.get(position))
            .map(|entry| (entry.line, entry.name_len, entry.name))
            .collect();
        assert_eq!(
            found,
            [
                (&b"host"[..], 4, Name::Host),
                (b"xyz", 1, Name::Other),
                (b":path/", 5, Name::Path),
            ]
        );
    }
}
