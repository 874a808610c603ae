//! How a body ends: announced by the program ([`BodySize`]), decided from a received head
//! ([`framing`]). Decided once, in one pure function; everybody else obeys.

/// The body that the program is about to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodySize {
    /// None. The message is complete with its head.
    Empty,
    /// Exactly so many bytes.
    Known(u64),
    /// Until `finish`: chunked on HTTP/1.1, ended by closing on HTTP/1.0.
    Unknown,
}
