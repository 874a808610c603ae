//! Parts of the compression of fields that HPACK (RFC 7541) and QPACK (RFC 9204) share: integers and strings, the
//! dynamic table, the names that are known in advance, and the form of decoded fields.

mod decoded;
pub(crate) mod dynamic_table;
mod error;
mod hash_index;
mod hpack_entries;
pub(crate) mod huffman;
pub(crate) mod integer;
mod last_head;
mod names;
mod qpack_entries;
mod static_table;

pub(crate) use decoded::{
    Bounds, Budget, DecodedField, DecodedFields, FieldDecoder, NoEntry, string,
};
pub(crate) use error::{CodingError, from_coding_error};
pub(crate) use hash_index::{HashIndex, hash};
pub(crate) use hpack_entries::HPACK_ENTRIES;
pub(crate) use last_head::{FieldRef, LastHead};
pub(crate) use names::{FieldError, IndexingPolicy, KnownName, Name, known};
pub(crate) use qpack_entries::QPACK_ENTRIES;
pub(crate) use static_table::{HPACK_TABLE, QPACK_TABLE};

use crate::Field;

/// A cookie shorter than this could be guessed (RFC 7541 7.1.3).
const SHORT_COOKIE_BYTES: usize = 20;

/// Encodes the fields of a head, one after the other.
pub(crate) trait FieldEncoder {
    /// Appends one field if the last head had the same at this position; returns whether it did. A field in a table
    /// was validated when it was added, so this needs no validation.
    fn encode_repeated(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) -> bool;

    /// Appends one field by the tables, and adds it to them if the policy says so.
    fn look_up(
        &mut self,
        field: Field<'_>,
        known: Option<&KnownName>,
        policy: IndexingPolicy,
        out: &mut Vec<u8>,
    ) -> FieldRef;

    fn last_head(&mut self) -> &mut LastHead;

    /// Appends one field that the last head did not have at this position. `name` is in lower case.
    fn encode_new(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let known = known(name);
        let policy = known.map_or(IndexingPolicy::OnRepeat, |known| known.policy);
        let field = self.look_up(Field { name, value }, known, policy, out);
        self.last_head().set(field);
    }

    /// Appends one field. `name` is in lower case and determines the indexing policy.
    #[inline]
    fn encode(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        if !self.encode_repeated(name, value, out) {
            self.encode_new(name, value, out);
        }
    }
}

/// Whether a value must not be added to a table.
pub(crate) fn is_secret(policy: IndexingPolicy, value: &[u8]) -> bool {
    match policy {
        IndexingPolicy::Never => true,
        IndexingPolicy::NeverIfShort => value.len() < SHORT_COOKIE_BYTES,
        IndexingPolicy::Always | IndexingPolicy::OnRepeat => false,
    }
}

/// Whether the text of an entry is this field.
#[inline]
pub(crate) fn is_line(line: &[u8], name_len: u32, field: Field<'_>) -> bool {
    let Field { name, value } = field;
    line.len() == name.len() + value.len()
        && name_len as usize == name.len()
        && &line[name.len()..] == value
        && &line[..name.len()] == name
}

/// Appends a string literal (RFC 7541 5.2), Huffman-coded if that is shorter: its length has a prefix of `prefix_bits`,
/// below the bit that marks Huffman coding and `flags`.
pub(crate) fn write_string(plain: &[u8], prefix_bits: u32, flags: u8, out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(plain);
    if coded < plain.len() {
        integer::write(coded, prefix_bits, flags | 1 << prefix_bits, out);
        huffman::encode(plain, coded, out);
    } else {
        integer::write(plain.len(), prefix_bits, flags, out);
        out.extend_from_slice(plain);
    }
}
