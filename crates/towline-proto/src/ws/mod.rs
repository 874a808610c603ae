//! WebSocket (RFC 6455, RFC 7692): a codec on a switched stream, the same for every HTTP version and side.
//!
//! ```text
//!   stream.read ──► receive ──► next_event ──► program      whole messages, pings, pongs, the peer's close
//!   stream.write ◄── frame/send ◄──────────── program       messages
//!   stream.write ◄── transmit ◄── pongs, close, keep-alive     control frames that are due
//! ```
//!
//! Pull-based like the connection below it: [`WebSocket::receive`] takes bytes up to the end of one event and no
//! further, and [`WebSocket::wanted_bytes`] returns how many it can take. Bytes that the program has not requested
//! stay unread in the stream, which is the backpressure. [`WebSocket::poll`] does both on a stream.
//!
//! An idle WebSocket holds its state and, with context takeover, two short windows. Resources needed only while a
//! message is in progress (buffers, compressors, masks) are borrowed from [`Scratch`], of which each thread has
//! one.

mod close;
pub mod deflate;
mod frame;
pub mod handshake;
mod keepalive;
mod limits;
mod mask;
mod message;
mod recv;
mod rules;
mod scratch;
mod send;
mod socket;
mod state;
mod utf8;

#[cfg(test)]
mod tests;

pub use frame::FrameHead;
pub use limits::Limits;
pub use message::Kind;
pub use rules::{SendError, Violation};
pub use scratch::Scratch;
pub use send::Frame;
pub use socket::{Event, PollOutcome, ReadAhead, Status, WebSocket};
