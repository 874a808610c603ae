//! Text that comes as a stream of bytes: lines, and events made of lines.
//!
//! Parsers take bytes and hand out what is complete; what a cut leaves over is kept, up to a bound.

pub mod lines;
pub mod sse;
