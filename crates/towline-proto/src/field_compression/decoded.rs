//! Decoded fields, and the bounds of a decoded section.

use crate::head::FieldSpan;

use super::dynamic_table::{DynamicTable, OVERHEAD};
use super::integer::Input;
use super::{CodingError, FieldError, Name, huffman};

/// Bounds of a decoded section, counted as `SETTINGS_MAX_HEADER_LIST_SIZE` does (RFC 9113 6.5.2, RFC 9114 4.2.2):
/// name, value and 32 bytes per field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub max_bytes: u32,
    pub max_fields: u32,
}

/// Whether all fields of a block were reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodedFields {
    All,
    /// The first field over the bounds, and those after it, were decoded for the table only.
    Truncated,
}

/// An index without an entry.
#[derive(Debug)]
pub(crate) struct NoEntry;

/// A field line in the caller's buffer: the name, then the value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodedField {
    pub span: FieldSpan,
    pub name: Name,
    /// The error that makes the message malformed (RFC 9113 8.1.1, RFC 9114 4.1.2).
    pub error: Option<FieldError>,
}

impl DecodedField {
    pub fn new(
        start: usize,
        name_len: u32,
        end: usize,
        name: Name,
        error: Option<FieldError>,
    ) -> Self {
        let start = start as u32;
        let span = FieldSpan {
            name: start,
            name_len,
            value: start + name_len,
            value_len: end as u32 - start - name_len,
        };
        Self { span, name, error }
    }

    /// Copies the entry of that age to `bytes`, unless the last block has left it there. `Ok(None)`: the entry is over the
    /// budget. `Err`: there is no such entry.
    #[expect(
        clippy::inline_always,
        reason = "a call costs 19 instructions a field, for its large result; measured by benches/h2_memory"
    )]
    #[inline(always)]
    pub fn of_entry(
        table: &mut DynamicTable,
        age: u32,
        budget: &mut Budget,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<Self>, NoEntry> {
        let entry = table.get(age).ok_or(NoEntry)?;
        let (len, name_len, info) = (entry.line.len(), entry.name_len, entry.info);
        if !budget.take(len) {
            return Ok(None);
        }
        let at = entry.output_at as usize;
        let start = if bytes.get(at..at + len) == Some(entry.line) {
            at
        } else {
            let start = bytes.len();
            bytes.extend_from_slice(entry.line);
            table.set_output_at(age, start as u32);
            start
        };
        let field = Self::new(start, name_len, start + len, info.name, info.error);
        Ok(Some(field))
    }
}

/// Decodes whole blocks: the decoder of one direction.
pub(crate) trait FieldDecoder {
    type Error;

    /// Decodes a complete block: appends its text to `bytes` and reports each field in turn.
    fn decode(
        &mut self,
        block: &[u8],
        bounds: Bounds,
        bytes: &mut Vec<u8>,
        each: impl FnMut(DecodedField, &[u8]),
    ) -> Result<DecodedFields, Self::Error>;

    /// Whether the last block would decode to the same fields again.
    fn is_unchanged(&self) -> bool;
}

/// The rest of the bounds. After a field that does not fit, none does.
pub(crate) struct Budget {
    bytes: u32,
    fields: u32,
}

impl Budget {
    pub fn of(bounds: Bounds) -> Self {
        Self {
            bytes: bounds.max_bytes,
            fields: bounds.max_fields,
        }
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> bool {
        let cost = u32::try_from(len).map_or(u32::MAX, |len| len.saturating_add(OVERHEAD));
        let left = (self.bytes.checked_sub(cost), self.fields.checked_sub(1));
        let fits = matches!(left, (Some(_), Some(_)));
        (self.bytes, self.fields) = match left {
            (Some(bytes), Some(fields)) => (bytes, fields),
            _ => (0, 0),
        };
        fits
    }
}

/// Appends a string literal (RFC 7541 5.2), whose length has a prefix of `prefix_bits`, below the bit that marks
/// Huffman coding.
#[inline]
pub(crate) fn string(
    input: &mut Input<'_>,
    prefix_bits: u32,
    bytes: &mut Vec<u8>,
) -> Result<(), CodingError> {
    let coded = input
        .first()
        .is_some_and(|first| first & 1 << prefix_bits != 0);
    let len = input.integer(prefix_bits)?;
    let text = input.take(len)?;
    if coded {
        huffman::decode(text, bytes)
    } else {
        bytes.extend_from_slice(text);
        Ok(())
    }
}
