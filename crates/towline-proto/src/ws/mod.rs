//! WebSocket (RFC 6455, RFC 7692): a codec over a switched stream, the same on every HTTP version and on both sides.
//!
//! ```text
//!   stream.read ──► receive ──► next_event ──► program      whole messages, pings, pongs, the peer's close
//!   stream.write ◄── frame/send ◄──────────── program       messages
//!   stream.write ◄── transmit ◄── answers, keep-alive       control frames that are due
//! ```
//!
//! Pull-based like the connection below: [`WebSocket::receive`] takes bytes up to the end of one event and no
//! further, and [`WebSocket::wanted_bytes`] says how many it could take, so what the program has not asked for stays unread in
//! the stream, where it is backpressure. [`WebSocket::poll`] does both on a stream.
//!
//! A WebSocket at rest holds its state and, where contexts are kept, two short windows. What is only needed while a
//! message is under way (buffers, compressors, masks) is lent by [`Scratch`], of which each thread has one.

mod close;
pub mod deflate;
mod frame;
pub mod handshake;
mod keepalive;
mod limits;
mod mask;
mod recv;
mod rules;
mod scratch;
mod send;
mod socket;
mod utf8;

#[cfg(test)]
mod tests;

pub use frame::FrameHead;
pub use limits::Limits;
pub use rules::{SendError, Violation};
pub use scratch::Scratch;
pub use send::Frame;
pub use socket::{Event, Kind, PollOutcome, ReadAhead, Status, WebSocket};
