//! Counters shared by all worker processes, and the Prometheus page.
//!
//! The supervisor maps one anonymous shared region before it forks: one [`Slot`] per worker, each on
//! cache lines of its own, all atomics, initially zero. A worker counts in its own slot without a lock;
//! any worker renders the sum over all slots, so a scrape covers the whole server. A slot outlives its
//! worker: counters continue (Prometheus requires them to be monotonic), gauges are reset by
//! [`Slot::begin`].

mod heartbeat;
mod labels;
mod render;
mod slot;
mod totals;

pub use heartbeat::{Heartbeat, monotonic_ns};
pub use labels::MethodClass;
pub use render::{PageFormat, render};
pub use slot::{Histogram, SLOT_BYTES, Slot, SlotHandle, Slots};
pub use totals::Totals;
