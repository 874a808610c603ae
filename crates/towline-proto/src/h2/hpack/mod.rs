//! HPACK (RFC 7541): header blocks to fields and back.
//!
//! ```text
//!   block ──► Decoder ──► text in the caller's buffer, and a DecodedField for each field
//!               │ names, Table
//!   block ◄── Encoder ◄── name, value, sensitivity
//!               │ names, Table, HashIndex
//! ```
//!
//! Both are fed whole blocks: HEADERS and its CONTINUATIONs are joined, and bounded, by the connection. Each
//! direction has a dynamic table that must change in step at both ends, so every error of the decoder is a
//! `COMPRESSION_ERROR` that ends the connection (RFC 9113 4.3).

mod decoder;
mod encoder;
mod hash_index;
mod huffman;
mod integer;
mod names;
mod scratch;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use decoder::{Bounds, DecodedField, DecodedFields, Decoder};
pub(crate) use encoder::Encoder;
pub(crate) use names::Name;
pub use scratch::HpackScratch;

/// Why a block cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HpackError {
    /// It ends inside a field.
    Truncated,
    /// An integer of more than 28 bits, or with more bytes than those need.
    Integer,
    /// Index 0, or one that neither table has.
    Index,
    /// The Huffman code of EOS.
    EndOfString,
    /// A string that ends in something other than up to seven ones.
    Padding,
    /// A table size above our setting.
    SizeUpdate,
    /// A table size behind a field.
    LateSizeUpdate,
    /// A third table size.
    ManySizeUpdates,
    /// No table size after our setting went below it.
    NoSizeUpdate,
}

impl HpackError {
    /// The rule that is broken.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Truncated => "header block ends inside a field (RFC 7541 3.1)",
            Self::Integer => "integer too long (RFC 7541 5.1)",
            Self::Index => "index without an entry (RFC 7541 2.3.3)",
            Self::EndOfString => "EOS in a string (RFC 7541 5.2)",
            Self::Padding => "wrong padding of a string (RFC 7541 5.2)",
            Self::SizeUpdate => "table size above the setting (RFC 7541 6.3)",
            Self::LateSizeUpdate => "table size update behind a field (RFC 7541 4.2)",
            Self::ManySizeUpdates => "more than two table size updates (RFC 7541 4.2)",
            Self::NoSizeUpdate => "table size not reduced as the setting was (RFC 7541 4.2)",
        }
    }
}
