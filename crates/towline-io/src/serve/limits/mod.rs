//! Limits for each client, over all workers: requests by their rate, and open connections.
//!
//! ```text
//!  address (/64 of IPv6) or header ─ hash with a secret seed ─┬─► bucket.rs: time until which the client has spent its allowance
//!                                                             └─► connections.rs: its connections, by worker
//! ```

mod bucket;
mod connections;
mod memory;
mod rate;

pub(crate) use connections::ClientCount;
pub use connections::ConnectionLimits;
pub use memory::LimitMemory;
pub use rate::{RateKey, RateLimit};
