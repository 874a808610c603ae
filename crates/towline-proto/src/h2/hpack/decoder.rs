//! Decoding of header blocks.
//!
//! A block is decoded after the existing contents of the caller's buffer: the bytes of a field are copied once,
//! from the block or from a table to where the program sees them, and each field is reported by its position. A
//! dynamic entry that a block repeats is copied only once, so that repetition takes no space. Fields that make a
//! message malformed are reported and do not stop decoding; an `Err` means that the two tables may differ, which
//! ends the connection.

use crate::field_compression::dynamic_table::{
    DEFAULT_TABLE_BYTES, DynamicTable, EntryInfo, EntryRef,
};
use crate::field_compression::integer::Input;
use crate::field_compression::{
    Bounds, Budget, DecodedField, DecodedFields, FieldDecoder, FieldError, HPACK_TABLE, Name,
    NoEntry, string,
};

use super::{HpackError, STATIC_ENTRIES};

/// One direction's decoder.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: DynamicTable,
    /// Our `SETTINGS_HEADER_TABLE_SIZE`, once acknowledged.
    max_table_bytes: u32,
    /// Our setting is below the table's size: the next block must begin with a size update (RFC 7541 4.2).
    update_due: bool,
    /// The last block changed the table.
    table_changed: bool,
}

impl FieldDecoder for Decoder {
    type Error = HpackError;

    #[inline]
    fn decode(
        &mut self,
        block: &[u8],
        bounds: Bounds,
        bytes: &mut Vec<u8>,
        mut each: impl FnMut(DecodedField, &[u8]),
    ) -> Result<DecodedFields, HpackError> {
        let mut input = Input { rest: block };
        let mut budget = Budget::of(bounds);
        let mut decoded = DecodedFields::All;
        self.table_changed = false;
        self.size_updates(&mut input)?;
        while let Some(first) = input.first() {
            let line = if first >= 0x80 {
                self.indexed(&mut input, &mut budget, bytes)?
            } else if first >= 0x40 {
                self.literal(&mut input, 6, &mut budget, bytes)?
            } else if first < 0x20 {
                self.literal(&mut input, 4, &mut budget, bytes)?
            } else {
                return Err(HpackError::LateSizeUpdate);
            };
            if let Some(line) = line {
                each(line, bytes);
            } else {
                decoded = DecodedFields::Truncated;
                self.skip_indexed(&mut input);
            }
        }
        Ok(decoded)
    }

    /// The block left the table unchanged.
    #[inline]
    fn is_unchanged(&self) -> bool {
        !self.table_changed && !self.update_due
    }
}

impl Decoder {
    /// Creates a decoder with the initial table size of HTTP/2, 4096 bytes.
    pub fn new() -> Self {
        Self {
            table: DynamicTable::new(),
            max_table_bytes: DEFAULT_TABLE_BYTES,
            update_due: false,
            table_changed: false,
        }
    }

    /// The peer has acknowledged our `SETTINGS_HEADER_TABLE_SIZE`.
    pub fn set_max_table_bytes(&mut self, max_table_bytes: u32) {
        self.max_table_bytes = max_table_bytes;
        self.update_due = self.table.max_bytes() > max_table_bytes;
    }

    #[cfg(test)]
    pub(super) fn table_bytes(&self) -> u32 {
        self.table.bytes()
    }

    /// Skips indexed fields that change no table and are not reported. A header bomb consists of them: at a
    /// nanosecond each it delays other connections too, and in pieces without branches, which the compiler
    /// vectorises, skipping takes less time than receiving them.
    fn skip_indexed(&self, input: &mut Input<'_>) {
        let last = STATIC_ENTRIES + self.table.len();
        let last = last.min(0x7e) as u8 | 0x80;
        let is_known = |&byte: &u8| (0x81..=last).contains(&byte);
        let are_known =
            |piece: &&[u8; 64]| (piece.iter()).fold(true, |known, byte| known & is_known(byte));
        let (pieces, _) = input.rest.as_chunks();
        let whole = 64 * pieces.iter().take_while(are_known).count();
        let more = input.rest[whole..].iter().take_while(|byte| is_known(byte));
        input.rest = &input.rest[whole + more.count()..];
    }

    /// Reads table size updates: at most the smallest size since the last block and then the final one (RFC
    /// 7541 4.2 and 6.3).
    fn size_updates(&mut self, input: &mut Input<'_>) -> Result<(), HpackError> {
        let mut updates = 0;
        while let Some(0x20..=0x3f) = input.first() {
            let size = input.integer(5)?;
            updates += 1;
            if updates > 2 {
                return Err(HpackError::ManySizeUpdates);
            }
            if size > self.max_table_bytes {
                return Err(HpackError::SizeUpdate);
            }
            self.table.set_max_bytes(size);
            self.update_due = false;
            self.table_changed = true;
        }
        if self.update_due && !input.rest.is_empty() {
            return Err(HpackError::NoSizeUpdate);
        }
        Ok(())
    }

    /// RFC 7541 6.1.
    #[inline]
    fn indexed(
        &mut self,
        input: &mut Input<'_>,
        budget: &mut Budget,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<DecodedField>, HpackError> {
        let index = input.integer(7)?;
        if index > STATIC_ENTRIES {
            return self.indexed_dynamic(index, budget, bytes);
        }
        if index == 0 {
            return Err(HpackError::Index);
        }
        let entry = HPACK_TABLE.get(index - 1).ok_or(HpackError::Index)?;
        let text = entry.line;
        if !budget.take(text.len()) {
            return Ok(None);
        }
        let error = (entry.name == Name::Connection).then_some(FieldError::Connection);
        let start = bytes.len();
        bytes.extend_from_slice(text);
        let line = DecodedField::new(start, entry.name_len, bytes.len(), entry.name, error);
        Ok(Some(line))
    }

    #[inline]
    fn indexed_dynamic(
        &mut self,
        index: u32,
        budget: &mut Budget,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<DecodedField>, HpackError> {
        let age = index - STATIC_ENTRIES - 1;
        DecodedField::of_entry(&mut self.table, age, budget, bytes)
            .map_err(|NoEntry| HpackError::Index)
    }

    #[inline]
    fn dynamic(&self, index: u32) -> Result<EntryRef<'_>, HpackError> {
        self.table
            .get(index - STATIC_ENTRIES - 1)
            .ok_or(HpackError::Index)
    }

    /// Decodes a literal (RFC 7541 6.2): with a prefix of 6 bits the field is added to the table, with 4 it
    /// is not.
    fn literal(
        &mut self,
        input: &mut Input<'_>,
        prefix_bits: u32,
        budget: &mut Budget,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<DecodedField>, HpackError> {
        let start = bytes.len();
        let index = input.integer(prefix_bits)?;
        let (name, name_error) = self.literal_name(index, input, bytes)?;
        let name_len = bytes.len() - start;
        string(input, 7, bytes)?;
        let error = name_error.or_else(|| FieldError::of_value(&bytes[start + name_len..], name));
        if prefix_bits == 6 {
            let info = EntryInfo {
                name,
                name_error,
                error,
            };
            let (name, value) = bytes[start..].split_at(name_len);
            self.table.add(name, value, info);
            self.table_changed = true;
        }
        if !budget.take(bytes.len() - start) {
            bytes.truncate(start);
            return Ok(None);
        }
        if prefix_bits == 6 {
            self.table.set_output_at(0, start as u32);
        }
        Ok(Some(DecodedField::new(
            start,
            name_len as u32,
            bytes.len(),
            name,
            error,
        )))
    }

    /// Appends the name of a literal: from an entry, or a string if the index is 0.
    #[inline]
    fn literal_name(
        &self,
        index: u32,
        input: &mut Input<'_>,
        bytes: &mut Vec<u8>,
    ) -> Result<(Name, Option<FieldError>), HpackError> {
        if index > STATIC_ENTRIES {
            let entry = self.dynamic(index)?;
            bytes.extend_from_slice(&entry.line[..entry.name_len as usize]);
            return Ok((entry.info.name, entry.info.name_error));
        }
        if index > 0 {
            let entry = HPACK_TABLE.get(index - 1).ok_or(HpackError::Index)?;
            bytes.extend_from_slice(&entry.line[..entry.name_len as usize]);
            let error = (entry.name == Name::Connection).then_some(FieldError::Connection);
            return Ok((entry.name, error));
        }
        let start = bytes.len();
        string(input, 7, bytes)?;
        let text = &bytes[start..];
        let name = Name::of(text);
        Ok((name, FieldError::of_name(text, name)))
    }
}
