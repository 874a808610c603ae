//! One load from many machines: a controller, which is the command line, and an agent on each machine.
//!
//! ```text
//!               ┌─ link: ssh HOST, or a socket ─► agent (agent/part.rs): threads first.. of all
//! controller ───┼─ link ────────────────────────► agent
//!   clocks      └─ link ────────────────────────► agent
//!   merge ◄──────── tallies, results of threads
//! ```
//!
//! Every thread of every agent has its [`Share`](crate::schedule::Share) of the whole load, as the threads of one process
//! have, so that connections, requests and the schedule of all together are those of one process. Results come back as
//! counts and histograms, bucket by bucket, and the report is made of their sum.

pub(crate) mod messages;
pub(crate) mod serialized;

mod clock;
mod controller;
mod figures;
mod fleet;
mod link;
mod member;
mod options;
mod ssh;

pub(crate) use controller::{RunOrder, run};
pub(crate) use fleet::Fleet;
pub use options::{AgentAddress, HostOptions, OnLostAgent};
