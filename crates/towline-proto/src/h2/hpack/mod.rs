//! HPACK (RFC 7541): header blocks to fields and back.
//!
//! ```text
//!   block ──► Decoder ──► text in the caller's buffer, a DecodedField for each
//!               │ HPACK_TABLE, DynamicTable
//!   block ◄── Encoder ◄── name, value, sensitivity
//!               │ HPACK_ENTRIES, DynamicTable, HashIndex
//! ```
//!
//! Both take whole blocks: HEADERS and its CONTINUATIONs are joined, and bounded, by the connection. Each
//! direction has a dynamic table that must stay in sync at both ends, so every error of the decoder is a
//! `COMPRESSION_ERROR` that ends the connection (RFC 9113 4.3).

mod decoder;
mod encoder;
mod scratch;
#[cfg(test)]
mod tests;

pub(crate) use decoder::Decoder;
pub(crate) use encoder::Encoder;
pub use scratch::HpackScratch;

use crate::field_compression::{HPACK_ENTRIES, from_coding_error};

/// Number of entries of the static table, whose indices come before those of the dynamic table (RFC 7541 2.3.3).
const STATIC_ENTRIES: u32 = HPACK_ENTRIES.len() as u32;

/// Error in decoding a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends inside a field.
    Truncated,
    /// An integer of more than 28 bits, or with unnecessary bytes.
    Integer,
    /// Index 0, or an index in neither table.
    Index,
    /// The Huffman code of EOS.
    EndOfString,
    /// Padding other than up to seven one bits.
    Padding,
    /// A table size update above our setting.
    SizeUpdate,
    /// A table size update after a field.
    LateSizeUpdate,
    /// A third table size update.
    ManySizeUpdates,
    /// No table size update after our setting was lowered.
    NoSizeUpdate,
}

impl HpackError {
    /// The broken rule.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Truncated => "header block ends inside a field (RFC 7541 3.1)",
            Self::Integer => "integer too long (RFC 7541 5.1)",
            Self::Index => "index without an entry (RFC 7541 2.3.3)",
            Self::EndOfString => "EOS in a string (RFC 7541 5.2)",
            Self::Padding => "wrong padding of a string (RFC 7541 5.2)",
            Self::SizeUpdate => "table size above the setting (RFC 7541 6.3)",
            Self::LateSizeUpdate => "table size update after a field (RFC 7541 4.2)",
            Self::ManySizeUpdates => "more than two table size updates (RFC 7541 4.2)",
            Self::NoSizeUpdate => "table size not reduced as the setting was (RFC 7541 4.2)",
        }
    }
}

from_coding_error!(HpackError);
