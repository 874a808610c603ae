//! The protocol core of Towline: HTTP as pure state machines.
//!
//! No I/O, no clock, no threads, no random numbers: time and bytes are arguments. A [`Connection`] is one end of
//! one transport connection, client or server. Input from the peer becomes [`Event`]s and never an `Err`; an
//! `Err` is always a mistake of the caller ([`UserError`]).
//!
//! ```text
//!   socket ── recv_space/received ──►  Connection  ── next_event ──────►  program
//!   socket ◄── send_slices/sent ─────  (h1, h2)    ◄── respond/stream ──  program
//! ```
//!
//! # A connection in five lines
//!
//! ```
//! use std::{sync::Arc, time::Instant};
//! use towline_proto::{BufferPool, BodySize, Connection, Event, Limits, ResponseHead};
//!
//! let mut buffers = BufferPool::new(64 * 1024, 4);
//! let now = Instant::now();
//! let mut conn = Connection::server(Arc::new(Limits::server()), now);
//! let wire = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
//! conn.recv_space(&mut buffers)[..wire.len()].copy_from_slice(wire);
//! conn.received(now, wire.len());
//! if let Some(Event::Head { stream, .. }) = conn.next_event() {
//!     let head = ResponseHead { status: 204, reason: b"", fields: &[] };
//!     conn.respond(stream, &head, BodySize::Empty).unwrap();
//! }
//! assert!(conn.pending_bytes() > 0);
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod body;
mod buffer;
mod byte_class;
mod connection;
mod error;
mod event;
mod field_compression;
mod h1;
mod h2;
mod h3;
mod head;
mod idle_timer;
mod limits;
mod multiplexed;
mod pending_events;
mod progress_timer;
mod protocol_switch;
mod quic;
mod refusal;
mod target;
pub mod ws;

pub use body::{BodySize, parse_length};
pub use buffer::BufferPool;
pub use byte_class::{is_token_bytes, is_value_bytes};
pub use connection::{Connection, StreamMut};
pub use error::{
    CloseReason, ConnectionError, ErrorCode, ErrorSource, PeerClose, StreamError, UserError,
};
pub use event::{
    Event, Interest, Protocol, ProtocolPolicy, Side, StreamId, StreamRead, StreamStats,
};
pub use h1::{EncodedResponse, PreparedRequest, standard_reason};
pub use h3::EarlyData;
pub use head::{Field, Fields, HeadRef, OwnedHead, RequestHead, ResponseHead, Version};
pub use limits::{DateSource, Http2Limits, Http3Limits, Limits, RateLimit};
pub use quic::{QuicClose, QuicCommand, StreamRecv, StreamSend};
pub use refusal::{Refusal, RefusedLine};
pub use target::is_host;

/// The head parser and the HPACK codec on their own, for the benchmarks. Not part of the public API.
#[doc(hidden)]
pub mod bench {
    pub use crate::h1::HeadScratch;
    pub use crate::h2::hpack::{HpackError, HpackScratch};
    pub use crate::h3::qpack::{QpackError, QpackScratch};
}
