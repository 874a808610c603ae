//! Encoding of field sections.
//!
//! Heads of one connection resemble each other, so the encoding of the field at the same position of the last
//! head is tried first: a repeated head costs one comparison and one byte per field. Other fields are looked up
//! by name in the static table and by hash in the dynamic one.
//!
//! A new field is sent as text, and inserted for later sections, which refer to it once it is acknowledged. Values
//! that are often new (paths, dates, unknown names) are inserted when they are repeated, secrets never (RFC 9204 7.1).
//!
//! Some decoders acknowledge sections only, and not entries (RFC 9204 4.4.3 asks them to). So when entries have not been
//! acknowledged for some sections, one section refers to them, if the peer allows a blocked stream; by then they are
//! there unless packets were lost.
//!
//! ```text
//!   oldest                                                          newest
//!   │ evictable │ referred to by outstanding sections │ ... │ not acknowledged │
//!   └ draining: inserted again when it is used ┘
//! ```

use std::collections::VecDeque;

use crate::Field;
use crate::field_compression::dynamic_table::{
    DEFAULT_TABLE_BYTES, DynamicTable, EntryInfo, OVERHEAD,
};
use crate::field_compression::integer::{self, Input};
use crate::field_compression::{
    FieldEncoder, FieldRef, HashIndex, IndexingPolicy, KnownName, LastHead, QPACK_ENTRIES, hash,
    is_line, is_secret, write_string,
};

use super::QpackError;
use super::instructions::{self, DecoderInstruction, MAX_DECODER_INSTRUCTION_BYTES};

/// Sections that may refer to entries and are not acknowledged. Over it, sections refer to none.
const MAX_OUTSTANDING: usize = 256;

/// Instructions that wait to be sent. Over it, nothing is inserted: the peer does not read them.
const MAX_UNSENT_BYTES: usize = 16 * 1024;

/// One of this many sections refers to entries that are not acknowledged, if they are older than the one before.
const PROBE_AFTER_SECTIONS: u32 = 32;

/// A section with references that the peer has not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Section {
    stream: u64,
    /// The oldest entry that it refers to.
    oldest: u64,
    /// The Required Insert Count, if the section refers to entries that are not acknowledged: one section at most.
    probes: Option<u64>,
}

/// The references of the section being encoded.
#[derive(Debug, Clone, Copy)]
struct References {
    /// Entries below this may be referred to, and the Base of the section. 0: none.
    base: u64,
    /// One above the newest entry: the Required Insert Count.
    required: u64,
    oldest: u64,
}

impl References {
    fn none(base: u64) -> Self {
        Self {
            base,
            required: 0,
            oldest: u64::MAX,
        }
    }
}

/// One direction's encoder.
#[derive(Debug)]
pub(crate) struct Encoder {
    table: DynamicTable,
    hash_index: HashIndex,
    /// Number of entries of the peer's largest table (RFC 9204 4.5.1.1).
    max_entries: u64,
    /// Number of entries ever inserted.
    inserted: u64,
    /// Number of them that the peer has acknowledged.
    known_received: u64,
    last_head: LastHead,
    references: References,
    sections: VecDeque<Section>,
    /// The peer lets streams wait for entries (RFC 9204 2.1.2).
    may_block: bool,
    /// Number of sections since `probe_mark` was set.
    sections_since: u32,
    /// Number of entries inserted then.
    probe_mark: u64,
    /// Bytes for the encoder stream.
    unsent: Vec<u8>,
    /// The beginning of an instruction of the peer.
    partial: Vec<u8>,
}

impl Encoder {
    /// Creates an encoder without a dynamic table, until the peer's settings allow one.
    pub fn new() -> Self {
        Self {
            table: DynamicTable::of_size(0),
            hash_index: HashIndex::default(),
            max_entries: 0,
            inserted: 0,
            known_received: 0,
            last_head: LastHead::new(),
            references: References::none(0),
            sections: VecDeque::new(),
            may_block: false,
            sections_since: 0,
            probe_mark: 0,
            unsent: Vec::new(),
            partial: Vec::new(),
        }
    }

    /// Number of changes to the state that sections depend on: the table, its acknowledged part, or the record of
    /// values seen once. While it is unchanged, the same fields are encoded to the same section, with the same
    /// meaning. `None`: the counter is saturated, or no section may refer to entries now.
    #[inline]
    pub fn generation(&self) -> Option<u32> {
        let may_refer = self.sections.len() < MAX_OUTSTANDING;
        self.last_head.generation().filter(|_| may_refer)
    }

    /// The peer's `SETTINGS_QPACK_MAX_TABLE_CAPACITY`. At most 4096 bytes of it are used.
    pub fn set_max_table_bytes(&mut self, max_table_bytes: u64) {
        let max_table_bytes = u32::try_from(max_table_bytes).unwrap_or(u32::MAX);
        self.max_entries = u64::from(max_table_bytes / OVERHEAD);
        let capacity = max_table_bytes.min(DEFAULT_TABLE_BYTES);
        if capacity >= OVERHEAD {
            self.table.set_max_bytes(capacity);
            instructions::set_capacity(capacity, &mut self.unsent);
            self.last_head.change();
        }
    }

    /// The peer's `SETTINGS_QPACK_BLOCKED_STREAMS`.
    pub fn set_max_blocked_streams(&mut self, max: u64) {
        self.may_block = max > 0;
    }

    /// Takes the bytes for the encoder stream.
    pub fn take_unsent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unsent)
    }

    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Handles bytes of the peer's decoder stream.
    pub fn receive(&mut self, data: &[u8]) -> Result<(), QpackError> {
        if self.partial.is_empty() {
            let rest = self.execute(data)?;
            self.partial.extend_from_slice(rest);
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.partial);
        bytes.extend_from_slice(data);
        let rest = self.execute(&bytes)?.len();
        bytes.drain(..bytes.len() - rest);
        debug_assert!(bytes.len() <= MAX_DECODER_INSTRUCTION_BYTES, "incomplete");
        if !bytes.is_empty() {
            self.partial = bytes;
        }
        Ok(())
    }

    /// Executes all complete instructions; returns the rest.
    fn execute<'a>(&mut self, data: &'a [u8]) -> Result<&'a [u8], QpackError> {
        let mut input = Input { rest: data };
        while let Some(instruction) = DecoderInstruction::read(&mut input)? {
            match instruction {
                DecoderInstruction::Acknowledge(stream) => {
                    let is_it = |section: &Section| section.stream == stream;
                    let place = self.sections.iter().position(is_it);
                    let place = place.ok_or(QpackError::Acknowledgement)?;
                    let section = self.sections.remove(place);
                    if let Some(required) = section.and_then(|section| section.probes) {
                        self.known_received = self.known_received.max(required);
                        self.last_head.change();
                    }
                }
                DecoderInstruction::Cancel(stream) => {
                    self.sections.retain(|section| section.stream != stream);
                }
                DecoderInstruction::Increment(more) => {
                    if more == 0 || more > self.inserted - self.known_received {
                        return Err(QpackError::Increment);
                    }
                    self.known_received += more;
                    self.last_head.change();
                }
            }
        }
        Ok(input.rest)
    }

    /// Starts a section; its fields follow by [`FieldEncoder::encode`].
    pub fn start(&mut self) {
        self.last_head.start();
        self.references = References::none(self.base());
        self.sections_since += 1;
    }

    fn base(&mut self) -> u64 {
        if self.sections.len() >= MAX_OUTSTANDING {
            return 0;
        }
        if self.sections_since < PROBE_AFTER_SECTIONS {
            return self.known_received;
        }
        let mark = std::mem::replace(&mut self.probe_mark, self.inserted);
        self.sections_since = 0;
        if self.probes() && mark > self.known_received {
            return mark;
        }
        self.known_received
    }

    /// Whether a section may refer to entries that are not acknowledged: no other one does.
    fn probes(&self) -> bool {
        self.may_block && self.sections.iter().all(|section| section.probes.is_none())
    }

    /// Ends the section, with its lines in `lines`, and appends it to `out`. Returns the oldest entry that it refers
    /// to, for [`repeat`](Self::repeat).
    pub fn end(&mut self, stream: u64, lines: &[u8], out: &mut Vec<u8>) -> u64 {
        let References {
            base,
            required,
            oldest,
        } = self.references;
        if required == 0 {
            out.extend_from_slice(&[0, 0]);
        } else {
            let encoded = required % (2 * self.max_entries) + 1;
            integer::write(encoded as usize, 8, 0, out);
            integer::write((base - required) as usize, 7, 0, out);
            let probes = Some(required).filter(|&required| required > self.known_received);
            if probes.is_some() {
                // The section must not be repeated.
                self.last_head.change();
            }
            self.sections.push_back(Section {
                stream,
                oldest,
                probes,
            });
        }
        out.extend_from_slice(lines);
        oldest
    }

    /// A section that `end` has written is sent again, on this stream.
    pub fn repeat(&mut self, stream: u64, oldest: u64) {
        if oldest != u64::MAX {
            self.sections.push_back(Section {
                stream,
                oldest,
                probes: None,
            });
        }
    }

    /// The absolute index of the entry of that number, if it exists.
    #[inline]
    fn absolute(&self, number: u32) -> Option<u64> {
        let age = self.table.age(number);
        (age < self.table.len()).then(|| self.inserted - 1 - u64::from(age))
    }

    /// Refers to an entry below the Base; returns its relative index.
    #[inline]
    fn refer_to(&mut self, absolute: u64) -> usize {
        let references = &mut self.references;
        references.required = references.required.max(absolute + 1);
        references.oldest = references.oldest.min(absolute);
        (references.base - 1 - absolute) as usize
    }

    /// Finds the newest entry with this text that may be referred to, and whether there is another one.
    fn find(&self, line_hash: u64, field: Field<'_>) -> (Option<u32>, bool) {
        let (mut best, mut is_pending) = (None, false);
        for number in self.hash_index.candidates(line_hash) {
            let Some(absolute) = self.absolute(number) else {
                continue;
            };
            let age = self.table.age(number);
            let entry = self.table.get(age);
            if !entry.is_some_and(|entry| is_line(entry.line, entry.name_len, field)) {
                continue;
            }
            if absolute >= self.references.base.max(self.known_received) {
                is_pending = true;
            } else if best.is_none_or(|(_, other)| absolute > other) {
                best = Some((number, absolute));
            }
        }
        (best.map(|(number, _)| number), is_pending)
    }

    /// Inserts a new field, if it is worth it.
    fn consider(
        &mut self,
        field: Field<'_>,
        static_name: Option<u8>,
        policy: IndexingPolicy,
        line_hash: u64,
    ) {
        let len = field.name.len() + field.value.len();
        if len + OVERHEAD as usize > self.table.max_bytes() as usize / 4 * 3 {
            return;
        }
        if policy == IndexingPolicy::OnRepeat && !self.hash_index.is_repeated(line_hash) {
            // The field is recorded, so the next encoding differs.
            self.last_head.change();
            return;
        }
        if !self.can_insert(len, u64::MAX) {
            return;
        }
        match static_name {
            Some(index) => {
                instructions::insert_with_static_name(index, field.value, &mut self.unsent);
            }
            None => instructions::insert(field.name, field.value, &mut self.unsent),
        }
        self.add(field, line_hash);
    }

    /// Inserts an old entry that is in use again, so that references keep no old entries from being evicted (RFC 9204
    /// 2.1.1.1).
    fn renew(&mut self, number: u32, absolute: u64, line_hash: u64) {
        let table = &self.table;
        let age = table.age(number);
        let is_full = table.bytes() > table.max_bytes() / 4 * 3;
        if !is_full || table.bytes_before(age) > table.max_bytes() / 4 {
            return;
        }
        let Some(entry) = table.get(age) else { return };
        if !self.can_insert(entry.line.len(), absolute) {
            return;
        }
        let (line, name_len) = (entry.line.to_vec(), entry.name_len as usize);
        instructions::duplicate(age, &mut self.unsent);
        let (name, value) = line.split_at(name_len);
        self.add(Field { name, value }, line_hash);
    }

    /// Whether an entry of `len` bytes can be inserted: evicted entries must be acknowledged, and no outstanding
    /// section may refer to them (RFC 9204 2.1.1). `keep`: an entry that must stay.
    fn can_insert(&self, len: usize, keep: u64) -> bool {
        if self.unsent.len() > MAX_UNSENT_BYTES {
            return false;
        }
        let Some(evicted) = self.table.evictions_for(len) else {
            return false;
        };
        if evicted == 0 {
            return true;
        }
        let oldest = self.inserted - u64::from(self.table.len());
        let sections = self.sections.iter().map(|section| section.oldest);
        let kept = sections.min().unwrap_or(u64::MAX).min(keep);
        let kept = kept.min(self.references.oldest).min(self.known_received);
        oldest + u64::from(evicted) <= kept
    }

    fn add(&mut self, field: Field<'_>, line_hash: u64) {
        let number = self.table.added();
        self.table
            .add(field.name, field.value, EntryInfo::default());
        self.hash_index.add(&self.table, line_hash, number);
        self.inserted += 1;
        self.last_head.change();
    }

    /// The acknowledged entry of that number, if it is this field.
    #[inline]
    fn same(&self, number: u32, field: Field<'_>) -> Option<u64> {
        let absolute = self
            .absolute(number)
            .filter(|&absolute| absolute < self.references.base)?;
        let entry = self.table.get(self.table.age(number))?;
        is_line(entry.line, entry.name_len, field).then_some(absolute)
    }
}

impl FieldEncoder for Encoder {
    #[inline]
    fn encode_repeated(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) -> bool {
        let field = Field { name, value };
        match self.last_head.field() {
            Some(&FieldRef::Static(place))
                if QPACK_ENTRIES[usize::from(place)] == (name, value) =>
            {
                integer::write(usize::from(place), 6, 0xc0, out);
            }
            Some(&FieldRef::Dynamic(number)) => {
                let Some(absolute) = self.same(number, field) else {
                    return false;
                };
                if self.table.bytes() > self.table.max_bytes() / 4 * 3 {
                    // The entry may be renewed.
                    return false;
                }
                let index = self.refer_to(absolute);
                integer::write(index, 6, 0x80, out);
            }
            _ => return false,
        }
        self.last_head.repeat();
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
        let static_name = known.and_then(static_name);
        if is_secret(policy, value) {
            literal(true, static_name, field, out);
            return FieldRef::None;
        }
        if let Some(place) = known.and_then(|known| place_of_value(known, value)) {
            integer::write(usize::from(place), 6, 0xc0, out);
            return FieldRef::Static(place);
        }
        let line_hash = hash(value, hash(name, 0));
        let (found, is_pending) = self.find(line_hash, field);
        if let Some(number) = found
            && let Some(absolute) = self.absolute(number)
            && absolute < self.references.base
        {
            if !is_pending {
                self.renew(number, absolute, line_hash);
            }
            let index = self.refer_to(absolute);
            integer::write(index, 6, 0x80, out);
            return FieldRef::Dynamic(number);
        }
        if !is_pending && found.is_none() {
            self.consider(field, static_name, policy, line_hash);
        }
        literal(false, static_name, field, out);
        FieldRef::None
    }

    #[inline]
    fn last_head(&mut self) -> &mut LastHead {
        &mut self.last_head
    }
}

/// A literal with a name of the static table or its own (RFC 9204 4.5.4 and 4.5.6).
fn literal(secret: bool, static_name: Option<u8>, field: Field<'_>, out: &mut Vec<u8>) {
    match static_name {
        Some(index) => {
            let flags = if secret { 0x70 } else { 0x50 };
            integer::write(usize::from(index), 4, flags, out);
        }
        None => write_string(field.name, 3, if secret { 0x30 } else { 0x20 }, out),
    }
    write_string(field.value, 7, 0, out);
}

/// The first static entry with that name.
fn static_name(known: &KnownName) -> Option<u8> {
    let range = known.qpack.iter().find(|range| range.count > 0)?;
    Some(range.first)
}

/// The static entry that has this value too.
#[inline]
fn place_of_value(known: &KnownName, value: &[u8]) -> Option<u8> {
    let mut ranges = known.qpack.iter();
    ranges.find_map(|range| range.place_of_value(&QPACK_ENTRIES, value))
}
