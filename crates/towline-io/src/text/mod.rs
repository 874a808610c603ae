//! Incremental parsers for text streams: lines, and server-sent events.
//!
//! Both take bytes and deliver complete items. Incomplete items are kept, up to a bound.

pub mod lines;
pub mod sse;
