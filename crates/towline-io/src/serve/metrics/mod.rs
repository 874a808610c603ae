//! Counters that all worker processes share, and the Prometheus page over them.
//!
//! The supervisor maps one anonymous shared region before it forks: one [`Slot`] per worker, each on
//! cache lines of its own, all atomics, all zero at birth. A worker counts in its own slot without a
//! lock; any worker renders the sum over all slots, so a scrape gives the whole server whichever
//! worker answers it. A slot outlives its worker: counters go on (Prometheus wants them monotonic),
//! gauges are reset by [`Slot::begin`].

mod heartbeat;
mod render;
mod slot;

pub use heartbeat::{Heartbeat, monotonic_ns, resident_bytes};
pub use render::render;
pub use slot::{Histogram, MethodClass, SLOT_BYTES, Slot, SlotHandle, Slots, StatusClass};

/// The media type of the page (text format 0.0.4).
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
