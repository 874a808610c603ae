//! Decoding of field sections, and of the instructions that fill the table.
//!
//! A section is decoded after the existing contents of the caller's buffer: the bytes of a field are copied once,
//! from the section or from a table to where the program sees them, and each field is reported by its position. A
//! dynamic entry that a section repeats is copied only once, so that repetition takes no space. Sections do not change
//! the table, so decoding stops at the first field over the bounds.

use crate::field_compression::dynamic_table::{DynamicTable, EntryInfo, OVERHEAD};
use crate::field_compression::integer::Input;
use crate::field_compression::{
    Bounds, Budget, DecodedField, DecodedFields, FieldDecoder, FieldError, Name, NoEntry,
    QPACK_TABLE, string,
};

use super::QpackError;
use super::instructions::{EncoderInstruction, NameRef};

/// One direction's decoder.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The table. The peer sets its capacity, which is 0 at first.
    table: DynamicTable,
    /// Our `SETTINGS_QPACK_MAX_TABLE_CAPACITY`.
    max_capacity: u32,
    /// Number of entries ever inserted: the Insert Count.
    inserted: u64,
    /// Number of them that the peer knows to be here.
    acknowledged: u64,
    /// The Insert Count and the Required Insert Count of the last decoded section.
    last: (u64, u64),
    /// The beginning of an instruction.
    partial: Vec<u8>,
}

/// A section's prefix (RFC 9204 4.5.1).
#[derive(Debug, Clone, Copy)]
struct Prefix {
    required: u64,
    base: u64,
}

/// Effect of instructions of the peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InstructionCost {
    /// Bytes of entries that were copied within the table: the work that instructions cause without bringing the bytes.
    pub copied_bytes: usize,
}

impl Decoder {
    pub fn new(max_capacity: u32) -> Self {
        Self {
            table: DynamicTable::of_size(0),
            max_capacity,
            inserted: 0,
            acknowledged: 0,
            last: (0, 0),
            partial: Vec::new(),
        }
    }

    /// The Insert Count.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Handles bytes of the peer's encoder stream.
    pub fn receive(&mut self, data: &[u8]) -> Result<InstructionCost, QpackError> {
        let mut received = InstructionCost::default();
        if self.partial.is_empty() {
            let rest = self.execute(data, &mut received)?;
            self.partial.extend_from_slice(rest);
        } else {
            let mut bytes = std::mem::take(&mut self.partial);
            bytes.extend_from_slice(data);
            let rest = self.execute(&bytes, &mut received)?.len();
            bytes.drain(..bytes.len() - rest);
            if !bytes.is_empty() {
                self.partial = bytes;
            }
        }
        // Huffman coding makes no text four times as long.
        let max = 4 * self.max_capacity as usize + 64;
        if self.partial.len() > max {
            return Err(QpackError::Instruction);
        }
        Ok(received)
    }

    /// Executes all complete instructions; returns the rest.
    fn execute<'a>(
        &mut self,
        data: &'a [u8],
        received: &mut InstructionCost,
    ) -> Result<&'a [u8], QpackError> {
        let mut input = Input { rest: data };
        while let Some(instruction) = EncoderInstruction::read(&mut input)? {
            self.instruction(&instruction, received)?;
        }
        Ok(input.rest)
    }

    fn instruction(
        &mut self,
        instruction: &EncoderInstruction<'_>,
        received: &mut InstructionCost,
    ) -> Result<(), QpackError> {
        match *instruction {
            EncoderInstruction::Capacity(bytes) => {
                if bytes > self.max_capacity {
                    return Err(QpackError::Capacity);
                }
                self.table.set_max_bytes(bytes);
                Ok(())
            }
            EncoderInstruction::Duplicate(index) => {
                let entry = self.table.get(index).ok_or(QpackError::Index)?;
                let (line, len, info) = (entry.line.to_vec(), entry.name_len, entry.info);
                received.copied_bytes += line.len();
                let (name, value) = line.split_at(len as usize);
                self.insert(name, value, info)
            }
            EncoderInstruction::Insert { name, value } => {
                let mut line = Vec::new();
                let (name, name_error) = match name {
                    NameRef::Literal(text) => {
                        text.append_to(&mut line)?;
                        let name = Name::of(&line);
                        (name, FieldError::of_name(&line, name))
                    }
                    NameRef::Static(index) => static_name(index, &mut line)?,
                    NameRef::Dynamic(index) => {
                        let entry = self.table.get(index).ok_or(QpackError::Index)?;
                        line.extend_from_slice(&entry.line[..entry.name_len as usize]);
                        received.copied_bytes += line.len();
                        (entry.info.name, entry.info.name_error)
                    }
                };
                let name_len = line.len();
                value.append_to(&mut line)?;
                let error = name_error.or_else(|| FieldError::of_value(&line[name_len..], name));
                let info = EntryInfo {
                    name,
                    name_error,
                    error,
                };
                let (name, value) = line.split_at(name_len);
                self.insert(name, value, info)
            }
        }
    }

    fn insert(&mut self, name: &[u8], value: &[u8], info: EntryInfo) -> Result<(), QpackError> {
        if !self.table.add(name, value, info) {
            return Err(QpackError::Entry);
        }
        self.inserted += 1;
        Ok(())
    }

    /// Appends the acknowledgement of a decoded section, if it needed entries (RFC 9204 4.4.1).
    pub fn acknowledge_section(&mut self, stream: u64, required: u64, out: &mut Vec<u8>) {
        if required > 0 {
            self.acknowledged = self.acknowledged.max(required);
            super::instructions::section_acknowledgement(stream, out);
        }
    }

    /// Whether the peer does not know yet that the entries which a section needed are here.
    pub fn is_news(&self, required: u64) -> bool {
        required > self.acknowledged
    }

    /// Appends the increment for entries that no acknowledged section has needed (RFC 9204 4.4.3).
    pub fn acknowledge_entries(&mut self, out: &mut Vec<u8>) {
        let more = self.inserted - self.acknowledged;
        if more > 0 {
            self.acknowledged = self.inserted;
            super::instructions::insert_count_increment(more, out);
        }
    }

    /// Whether the peer does not know yet that all its entries are here.
    pub fn has_unacknowledged_entries(&self) -> bool {
        self.inserted > self.acknowledged
    }

    /// The Insert Count that a section needs. Above [`inserted`](Self::inserted): it is blocked.
    pub fn required(&self, section: &[u8]) -> Result<u64, QpackError> {
        let encoded = Input { rest: section }.integer(8)?;
        self.required_of(encoded)
    }

    /// RFC 9204 4.5.1.1.
    fn required_of(&self, encoded: u32) -> Result<u64, QpackError> {
        let encoded = u64::from(encoded);
        if encoded == 0 {
            return Ok(0);
        }
        let max_entries = u64::from(self.max_capacity / OVERHEAD);
        let full_range = 2 * max_entries;
        if encoded > full_range {
            return Err(QpackError::InsertCount);
        }
        let max_value = self.inserted + max_entries;
        let mut required = max_value / full_range * full_range + encoded - 1;
        if required > max_value {
            if required <= full_range {
                return Err(QpackError::InsertCount);
            }
            required -= full_range;
        }
        if required == 0 {
            return Err(QpackError::InsertCount);
        }
        Ok(required)
    }

    fn prefix(&self, input: &mut Input<'_>) -> Result<Prefix, QpackError> {
        let required = self.required_of(input.integer(8)?)?;
        let is_negative = input.first().is_some_and(|first| first >= 0x80);
        let delta = u64::from(input.integer(7)?);
        let base = if is_negative {
            required.checked_sub(delta + 1).ok_or(QpackError::Base)?
        } else {
            required + delta
        };
        Ok(Prefix { required, base })
    }

    /// The age of the entry of this absolute index.
    #[inline]
    fn age(&self, index: Option<u64>, prefix: Prefix) -> Result<u32, QpackError> {
        let index = index
            .filter(|&index| index < prefix.required)
            .ok_or(QpackError::Index)?;
        (self.inserted.checked_sub(index + 1))
            .and_then(|age| u32::try_from(age).ok())
            .ok_or(QpackError::Index)
    }

    #[inline]
    fn indexed_static(
        index: u32,
        budget: &mut Budget,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<DecodedField>, QpackError> {
        let entry = QPACK_TABLE.get(index).ok_or(QpackError::Index)?;
        if !budget.take(entry.line.len()) {
            return Ok(None);
        }
        let start = bytes.len();
        bytes.extend_from_slice(entry.line);
        let field = DecodedField::new(start, entry.name_len, bytes.len(), entry.name, None);
        Ok(Some(field))
    }

    #[inline]
    fn indexed_dynamic(
        &mut self,
        index: Option<u64>,
        prefix: Prefix,
        budget: &mut Budget,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<DecodedField>, QpackError> {
        let age = self.age(index, prefix)?;
        DecodedField::of_entry(&mut self.table, age, budget, bytes)
            .map_err(|NoEntry| QpackError::Index)
    }

    /// Decodes the value of a literal, whose name is in `bytes` from `start` on.
    fn literal(
        start: usize,
        (name, name_error): (Name, Option<FieldError>),
        input: &mut Input<'_>,
        budget: &mut Budget,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<DecodedField>, QpackError> {
        let name_len = bytes.len() - start;
        string(input, 7, bytes)?;
        let error = name_error.or_else(|| FieldError::of_value(&bytes[start + name_len..], name));
        if !budget.take(bytes.len() - start) {
            bytes.truncate(start);
            return Ok(None);
        }
        let field = DecodedField::new(start, name_len as u32, bytes.len(), name, error);
        Ok(Some(field))
    }

    /// Decodes one field line (RFC 9204 4.5.2 to 4.5.6).
    #[inline]
    fn field(
        &mut self,
        first: u8,
        prefix: Prefix,
        input: &mut Input<'_>,
        budget: &mut Budget,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<DecodedField>, QpackError> {
        let start = bytes.len();
        if first >= 0x80 {
            let index = input.integer(6)?;
            if first & 0x40 != 0 {
                return Self::indexed_static(index, budget, bytes);
            }
            return self.indexed_dynamic(before(prefix, index), prefix, budget, bytes);
        }
        let name = if first >= 0x40 {
            let index = input.integer(4)?;
            if first & 0x10 != 0 {
                static_name(index, bytes)?
            } else {
                self.dynamic_name(before(prefix, index), prefix, bytes)?
            }
        } else if first >= 0x20 {
            string(input, 3, bytes)?;
            let text = &bytes[start..];
            let name = Name::of(text);
            (name, FieldError::of_name(text, name))
        } else if first >= 0x10 {
            let index = input.integer(4)?;
            return self.indexed_dynamic(Some(behind(prefix, index)), prefix, budget, bytes);
        } else {
            let index = input.integer(3)?;
            self.dynamic_name(Some(behind(prefix, index)), prefix, bytes)?
        };
        Self::literal(start, name, input, budget, bytes)
    }

    fn dynamic_name(
        &self,
        index: Option<u64>,
        prefix: Prefix,
        bytes: &mut Vec<u8>,
    ) -> Result<(Name, Option<FieldError>), QpackError> {
        let age = self.age(index, prefix)?;
        let entry = self.table.get(age).ok_or(QpackError::Index)?;
        bytes.extend_from_slice(&entry.line[..entry.name_len as usize]);
        Ok((entry.info.name, entry.info.name_error))
    }
}

impl FieldDecoder for Decoder {
    type Error = QpackError;

    #[inline]
    fn decode(
        &mut self,
        block: &[u8],
        bounds: Bounds,
        bytes: &mut Vec<u8>,
        mut each: impl FnMut(DecodedField, &[u8]),
    ) -> Result<DecodedFields, QpackError> {
        let mut input = Input { rest: block };
        let mut budget = Budget::of(bounds);
        let prefix = self.prefix(&mut input)?;
        self.last = (self.inserted, prefix.required);
        while let Some(first) = input.first() {
            match self.field(first, prefix, &mut input, &mut budget, bytes)? {
                Some(field) => each(field, bytes),
                None => return Ok(DecodedFields::Truncated),
            }
        }
        Ok(DecodedFields::All)
    }

    /// The section needed no entries, or the table is unchanged.
    #[inline]
    fn is_unchanged(&self) -> bool {
        let (inserted, required) = self.last;
        required == 0 || inserted == self.inserted
    }
}

/// Absolute index of a relative one (RFC 9204 3.2.5).
#[inline]
fn before(prefix: Prefix, index: u32) -> Option<u64> {
    prefix.base.checked_sub(u64::from(index) + 1)
}

/// Absolute index of a post-Base one (RFC 9204 3.2.6).
#[inline]
fn behind(prefix: Prefix, index: u32) -> u64 {
    prefix.base + u64::from(index)
}

/// Appends the name of a static entry.
fn static_name(index: u32, bytes: &mut Vec<u8>) -> Result<(Name, Option<FieldError>), QpackError> {
    let entry = QPACK_TABLE.get(index).ok_or(QpackError::Index)?;
    bytes.extend_from_slice(&entry.line[..entry.name_len as usize]);
    Ok((entry.name, None))
}
