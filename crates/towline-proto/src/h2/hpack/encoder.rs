//! Encoding of header blocks.
//!
//! Heads of one connection resemble each other, so the encoding of the field at the same position of the last
//! head is tried first: a repeated head costs one comparison and one byte per field. Other fields are looked up
//! by name in the static table and by hash in the dynamic one.
//!
//! Values that are often new (paths, dates, unknown names) are added to the table when they are repeated; a value
//! that never returns would only evict others. Secrets are never added (RFC 7541 7.1.3).

use crate::Field;
use crate::field_compression::dynamic_table::{
    DEFAULT_TABLE_BYTES, DynamicTable, EntryInfo, OVERHEAD,
};
use crate::field_compression::{
    FieldEncoder, FieldRef, HPACK_ENTRIES, HashIndex, IndexingPolicy, KnownName, LastHead, hash,
    integer, is_line, is_secret, write_string,
};

use super::STATIC_ENTRIES;

/// The three forms of a literal (RFC 7541 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LiteralForm {
    Incremental,
    WithoutIndexing,
    NeverIndexed,
}

/// One direction's encoder.
#[derive(Debug)]
pub(crate) struct Encoder {
    table: DynamicTable,
    hash_index: HashIndex,
    last_head: LastHead,
    resizing: Option<Resizing>,
}

/// Table size updates at the start of the next block (RFC 7541 4.2).
#[derive(Debug, Clone, Copy)]
struct Resizing {
    smallest: u32,
    last: u32,
}

impl Encoder {
    /// Creates an encoder with the initial table size of HTTP/2, 4096 bytes.
    pub fn new() -> Self {
        Self {
            table: DynamicTable::new(),
            hash_index: HashIndex::default(),
            last_head: LastHead::new(),
            resizing: None,
        }
    }

    /// Number of changes to the state that blocks depend on: the table, or the record of values seen once.
    /// While it is unchanged, the same fields are encoded to the same block, with the same meaning. `None`:
    /// the counter is saturated.
    #[inline]
    pub fn generation(&self) -> Option<u32> {
        self.last_head.generation()
    }

    /// The peer's `SETTINGS_HEADER_TABLE_SIZE`. At most 4096 bytes of it are used.
    pub fn set_max_table_bytes(&mut self, max_table_bytes: u32) {
        let last = max_table_bytes.min(DEFAULT_TABLE_BYTES);
        let before = match self.resizing {
            Some(resizing) => resizing.smallest,
            None => self.table.max_bytes(),
        };
        let smallest = before.min(last);
        self.resizing = Some(Resizing { smallest, last });
        self.last_head.change();
    }

    /// Starts a block; its fields follow by [`Self::encode`].
    pub fn start(&mut self, out: &mut Vec<u8>) {
        self.last_head.start();
        let Some(Resizing { smallest, last }) = self.resizing.take() else {
            return;
        };
        // A block that begins with a size update must not be repeated.
        self.last_head.change();
        for size in [smallest, last] {
            if size != self.table.max_bytes() {
                self.table.set_max_bytes(size);
                integer::write(size as usize, 5, 0x20, out);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn encode_as(
        &mut self,
        policy: IndexingPolicy,
        name: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
    ) {
        let _ = self.look_up(
            Field { name, value },
            crate::field_compression::known(name),
            policy,
            out,
        );
    }

    /// Whether the entry of that number is this field.
    #[inline]
    fn is(&self, number: u32, name: &[u8], value: &[u8]) -> bool {
        self.table
            .get(self.table.age(number))
            .is_some_and(|entry| is_line(entry.line, entry.name_len, Field { name, value }))
    }

    #[inline]
    fn index(&self, number: u32) -> u32 {
        STATIC_ENTRIES + 1 + self.table.age(number)
    }

    /// Adds an entry; returns its number.
    fn add(&mut self, name: &[u8], value: &[u8], name_hash: u64, line_hash: u64) -> u32 {
        let number = self.table.added();
        self.table.add(name, value, EntryInfo::default());
        self.hash_index.add(&self.table, line_hash, number);
        self.hash_index.add(&self.table, name_hash, number);
        number
    }
}

impl FieldEncoder for Encoder {
    #[inline]
    fn encode_repeated(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) -> bool {
        let index = match self.last_head.field() {
            Some(&FieldRef::Static(index)) if is_static(index, name, value) => u32::from(index),
            Some(&FieldRef::Dynamic(number)) if self.is(number, name, value) => self.index(number),
            _ => return false,
        };
        self.last_head.repeat();
        integer::write(index as usize, 7, 0x80, out);
        true
    }

    fn look_up(
        &mut self,
        field: Field<'_>,
        known: Option<&KnownName>,
        policy: IndexingPolicy,
        out: &mut Vec<u8>,
    ) -> FieldRef {
        let Field { name, value } = field;
        let name_index = known.map_or(0, name_index);
        if is_secret(policy, value) {
            literal(LiteralForm::NeverIndexed, name_index, name, value, out);
            return FieldRef::None;
        }
        if let Some(index) = known.and_then(|known| index_of_value(known, value)) {
            integer::write(usize::from(index), 7, 0x80, out);
            return FieldRef::Static(index);
        }
        let name_hash = hash(name, 0);
        let line_hash = hash(value, name_hash);
        let table = &self.table;
        let found = self.hash_index.find(table, line_hash, |line, name_len| {
            is_line(line, name_len, Field { name, value })
        });
        if let Some(number) = found {
            integer::write(self.index(number) as usize, 7, 0x80, out);
            return FieldRef::Dynamic(number);
        }
        let name_index = if name_index > 0 {
            name_index
        } else {
            let same_name = |line: &[u8], name_len: u32| &line[..name_len as usize] == name;
            let found = self.hash_index.find(table, name_hash, same_name);
            found.map_or(0, |number| self.index(number))
        };
        let fits =
            name.len() + value.len() + OVERHEAD as usize <= self.table.max_bytes() as usize / 4 * 3;
        if fits {
            // The field is added or recorded, so the next encoding differs.
            self.last_head.change();
        }
        // Values that do not fit are not recorded.
        if fits && (policy != IndexingPolicy::OnRepeat || self.hash_index.is_repeated(line_hash)) {
            literal(LiteralForm::Incremental, name_index, name, value, out);
            FieldRef::Dynamic(self.add(name, value, name_hash, line_hash))
        } else {
            literal(LiteralForm::WithoutIndexing, name_index, name, value, out);
            FieldRef::None
        }
    }

    #[inline]
    fn last_head(&mut self) -> &mut LastHead {
        &mut self.last_head
    }
}

fn literal(form: LiteralForm, name_index: u32, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let (prefix_bits, flags) = match form {
        LiteralForm::Incremental => (6, 0x40),
        LiteralForm::WithoutIndexing => (4, 0),
        LiteralForm::NeverIndexed => (4, 0x10),
    };
    integer::write(name_index as usize, prefix_bits, flags, out);
    if name_index == 0 {
        write_string(name, 7, 0, out);
    }
    write_string(value, 7, 0, out);
}

/// The first static entry with that name; 0: none.
fn name_index(known: &KnownName) -> u32 {
    match known.hpack.count {
        0 => 0,
        _ => u32::from(known.hpack.first) + 1,
    }
}

/// The static entry that has this value too.
#[inline]
fn index_of_value(known: &KnownName, value: &[u8]) -> Option<u8> {
    let place = known.hpack.place_of_value(&HPACK_ENTRIES, value)?;
    Some(place + 1)
}

/// Whether the static entry of that index is this field.
fn is_static(index: u8, name: &[u8], value: &[u8]) -> bool {
    HPACK_ENTRIES[usize::from(index) - 1] == (name, value)
}
