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

/// Conversion to an error that has the same variants.
macro_rules! from_coding_error {
    ($error:ty) => {
        impl From<$crate::field_compression::CodingError> for $error {
            fn from(error: $crate::field_compression::CodingError) -> Self {
                use $crate::field_compression::CodingError;
                match error {
                    CodingError::Truncated => Self::Truncated,
                    CodingError::Integer => Self::Integer,
                    CodingError::EndOfString => Self::EndOfString,
                    CodingError::Padding => Self::Padding,
                }
            }
        }
    };
}

pub(crate) use from_coding_error;
