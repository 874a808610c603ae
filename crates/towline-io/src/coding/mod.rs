//! Content codings (RFC 9110 8.4.1): names, negotiation, encoders and decoders.
//!
//! The server encodes with [`encode`], the client decodes with [`decode`].

pub mod accept_encoding;
pub mod decode;
pub mod encode;

/// A content coding other than `identity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    Brotli,
    Zstd,
    Gzip,
}

impl Coding {
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstd, Self::Gzip];

    /// The registered name, for Content-Encoding.
    pub fn name(self) -> &'static str {
        ["br", "zstd", "gzip"][self as usize]
    }

    /// Finds a coding by its registered name, case-insensitive; `x-gzip` is gzip (RFC 9110 8.4.1.3).
    pub fn named(name: &[u8]) -> Option<Self> {
        if name.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Self::Gzip);
        }
        Self::ALL
            .into_iter()
            .find(|coding| name.eq_ignore_ascii_case(coding.name().as_bytes()))
    }

    /// File extension of a precompressed sibling, without the dot.
    pub fn suffix(self) -> &'static str {
        ["br", "zst", "gz"][self as usize]
    }
}
