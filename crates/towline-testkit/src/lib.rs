//! Tools for Towline's own tests: no I/O, no real clock, only seeded random numbers.
//!
//! - [`End`] drives one [`towline_proto::Connection`] with bytes and a scripted program, and records the events
//!   in a log: stable text, one line per event.
//! - [`Pair`] joins a client and a server in memory on a virtual clock, with cuts, delays, full pipes, EOF and abort.
//! - [`case`] reads the conformance files (`conformance/README.md` describes the format), [`notation`] their wire text.
//! - [`oracle`] checks properties of any input, [`operations`] of any sequence of calls: for property tests and
//!   fuzzing.
//! - [`streams`] checks properties of HTTP/2, for any frames and for any calls on two ends.
//! - [`h3`] has a model of QUIC in memory.
//! - [`wire`] builds messages, [`h2`] and [`ws`] frames, [`Random`] is the seeded source of every cut.
#![forbid(unsafe_code)]

pub mod case;
mod clock;
mod end;
pub mod h2;
pub mod h3;
mod log;
pub mod notation;
pub mod operations;
pub mod oracle;
mod pair;
mod pieces;
mod random;
mod run;
pub mod sockets;
pub mod streams;
pub mod wire;
pub mod ws;

pub use clock::Clock;
pub use end::{App, End, Progress};
pub use log::Log;
pub use pair::{Direction, Pair};
pub use random::Random;
pub use run::Setup;
