//! Errors of integers and strings.

/// Error in decoding an integer or a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodingError {
    /// The input ends before the integer or the string does.
    Truncated,
    /// An integer above the bound, or with unnecessary bytes.
    Integer,
    /// The Huffman code of EOS.
    EndOfString,
    /// Padding other than up to seven one bits.
    Padding,
}
