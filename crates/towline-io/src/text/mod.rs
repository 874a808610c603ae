//! Incremental parsers for text streams: lines, and server-sent events.
//!
//! They take bytes and deliver complete items; incomplete ones are kept, up to a bound.

pub mod lines;
pub mod sse;
