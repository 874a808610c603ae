//! Progress of a decoder, and its errors.

use std::fmt;

/// Most codings in a Content-Encoding header.
pub const MAX_CODINGS: usize = 5;

/// Progress of one call. If `produced` is less than the buffer, all input is consumed and more is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    pub consumed: usize,
    pub produced: usize,
}

/// Error of a body that cannot be decoded. Bytes before the error have been delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    Corrupt {
        coding: &'static str,
        why: String,
    },
    Truncated {
        coding: &'static str,
    },
    /// The decoded body is larger than `max_size`.
    TooLarge {
        max_size: u64,
    },
    /// A chain that inflates between its codings and produces almost nothing.
    Work,
    TooManyCodings,
}

impl DecodeError {
    /// Whether a bound was exceeded; otherwise the body is malformed.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. } | Self::Work | Self::TooManyCodings
        )
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt { coding, why } => write!(f, "the body is not valid {coding}: {why}"),
            Self::Truncated { coding } => write!(f, "the body ends inside its {coding} coding"),
            Self::TooLarge { max_size } => {
                write!(
                    f,
                    "the decoded body is larger than max_decompressed_size ({max_size} bytes)"
                )
            }
            Self::Work => f.write_str("the body's codings inflate far beyond what they deliver"),
            Self::TooManyCodings => {
                write!(f, "Content-Encoding names more than {MAX_CODINGS} codings")
            }
        }
    }
}

impl std::error::Error for DecodeError {}
