//! QPACK (RFC 9204): field sections to fields and back.
//!
//! ```text
//!   encoder stream of the peer ──► Decoder ◄── section ──► text in the caller's buffer, a DecodedField for each
//!                                     └──► decoder stream: acknowledgements
//!
//!   decoder stream of the peer ──► Encoder ◄── name, value ──► section
//!                                     └──► encoder stream: entries of the table
//! ```
//!
//! The streams arrive in any order, so a section can be there before the entries that it needs: it is blocked, and
//! the connection keeps it. Our encoder refers only to entries that the peer has acknowledged, so that it never
//! blocks a stream: with loss, a field once more as text costs less than a round trip.

mod acknowledgements;
mod decoder;
mod encoder;
mod instructions;
mod scratch;
#[cfg(test)]
mod tests;

pub(crate) use acknowledgements::Acknowledgements;
pub(crate) use decoder::Decoder;
pub(crate) use encoder::Encoder;
pub use scratch::QpackScratch;

use crate::field_compression::from_coding_error;

/// Error in decoding a section or an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpackError {
    /// The section ends inside a field.
    Truncated,
    /// An integer above the bound, or with unnecessary bytes.
    Integer,
    /// The Huffman code of EOS.
    EndOfString,
    /// Padding other than up to seven one bits.
    Padding,
    /// An index without an entry, or of an entry at or above the Required Insert Count.
    Index,
    /// A Required Insert Count that no encoder sends.
    InsertCount,
    /// A negative Base.
    Base,
    /// A capacity above our setting.
    Capacity,
    /// An entry that does not fit into the table.
    Entry,
    /// An instruction longer than any entry.
    Instruction,
    /// An acknowledgement of a section that is not outstanding.
    Acknowledgement,
    /// An increment of 0, or above the number of entries sent.
    Increment,
}

impl QpackError {
    /// The broken rule.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Truncated => "field section ends inside a field (RFC 9204 4.5)",
            Self::Integer => "integer too long (RFC 9204 4.1.1)",
            Self::EndOfString => "EOS in a string (RFC 7541 5.2)",
            Self::Padding => "wrong padding of a string (RFC 7541 5.2)",
            Self::Index => "index without an entry (RFC 9204 3.2.4)",
            Self::InsertCount => "impossible Required Insert Count (RFC 9204 4.5.1.1)",
            Self::Base => "negative Base (RFC 9204 4.5.1.2)",
            Self::Capacity => "table capacity above the setting (RFC 9204 4.3.1)",
            Self::Entry => "entry larger than the table (RFC 9204 3.2.2)",
            Self::Instruction => "encoder instruction too long",
            Self::Acknowledgement => {
                "acknowledgement of a section that is not outstanding (RFC 9204 4.4.1)"
            }
            Self::Increment => "Insert Count Increment out of range (RFC 9204 4.4.3)",
        }
    }
}

from_coding_error!(QpackError);
