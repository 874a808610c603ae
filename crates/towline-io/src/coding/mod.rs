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
    /// Decoded only: servers and clients disagree about its format.
    Deflate,
}

/// Coding, registered name (RFC 9110 8.4.1), and the file extension of a precompressed sibling, without the dot.
const CODINGS: [(Coding, &str, &str); 4] = [
    (Coding::Brotli, "br", "br"),
    (Coding::Zstd, "zstd", "zst"),
    (Coding::Gzip, "gzip", "gz"),
    (Coding::Deflate, "deflate", ""),
];

impl Coding {
    /// The codings that a server encodes.
    pub const ENCODED: [Self; 3] = [Self::Brotli, Self::Zstd, Self::Gzip];

    /// The registered name, for Content-Encoding.
    pub fn name(self) -> &'static str {
        CODINGS[self as usize].1
    }

    /// Finds a coding by its registered name, case-insensitive; `x-gzip` is gzip (RFC 9110 8.4.1.3).
    pub fn named(name: &[u8]) -> Option<Self> {
        let name = if name.eq_ignore_ascii_case(b"x-gzip") {
            b"gzip"
        } else {
            name
        };
        let mut codings = CODINGS.into_iter();
        let found = codings.find(|(_, known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        found.map(|(coding, ..)| coding)
    }

    /// File extension of a precompressed sibling, without the dot.
    pub fn suffix(self) -> &'static str {
        CODINGS[self as usize].2
    }
}
