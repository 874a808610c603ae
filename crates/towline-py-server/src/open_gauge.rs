//! The number of open `WebSockets` in the metrics.
use std::sync::atomic::Ordering::Relaxed;

use towline_io::serve::metrics::SlotHandle;

/// Counts a WebSocket as open in the metrics until it is dropped.
pub struct OpenGauge(SlotHandle);

impl OpenGauge {
    pub fn new(slot: SlotHandle) -> Self {
        slot.websockets_open.fetch_add(1, Relaxed);
        Self(slot)
    }
}

impl Drop for OpenGauge {
    fn drop(&mut self) {
        self.0.websockets_open.fetch_sub(1, Relaxed);
    }
}
