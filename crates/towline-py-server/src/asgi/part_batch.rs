//! Whether a part of a response may wait for the parts after it.
//!
//! An application that sends many small parts without suspending pays a system call for each, and wakes the client
//! for each. So a part that follows the one before closely waits until the application suspends or ends, or for
//! [`MAX_BYTES`]. The first part, and any part after a pause, is sent at once: the application may compute for long
//! before it suspends.
use std::time::{Duration, Instant};

/// Parts with a smaller distance are one batch. A framework needs 5 to 20 microseconds from part to part.
const MAX_GAP: Duration = Duration::from_micros(50);
/// As much as a TLS record holds; larger writes save little.
const MAX_BYTES: usize = 16 * 1024;

#[derive(Debug, Default)]
pub struct PartBatch {
    last: Option<Instant>,
    bytes: usize,
}

impl PartBatch {
    /// Records a part of `bytes` and returns whether it waits for the parts after it.
    pub fn must_wait(&mut self, bytes: usize, now: Instant) -> bool {
        let is_close = (self.last.replace(now)).is_some_and(|last| now - last < MAX_GAP);
        self.bytes += bytes;
        is_close && self.bytes < MAX_BYTES
    }

    /// Records that everything up to now is being sent. The time of sending is not a pause of the application.
    pub fn sent(&mut self, now: Instant) {
        self.last = Some(now);
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn close_parts_wait_until_there_are_enough_bytes() {
        let (mut batch, start) = (PartBatch::default(), Instant::now());
        assert!(!batch.must_wait(64, start));
        batch.sent(start);
        assert!(batch.must_wait(64, start + MICROSECOND));
        assert!(batch.must_wait(MAX_BYTES - 65, start + 2 * MICROSECOND));
        assert!(!batch.must_wait(1, start + 3 * MICROSECOND));
        batch.sent(start + 3 * MICROSECOND);
        assert!(batch.must_wait(64, start + 4 * MICROSECOND));
    }

    #[test]
    fn a_part_after_a_pause_does_not_wait() {
        let (mut batch, start) = (PartBatch::default(), Instant::now());
        assert!(!batch.must_wait(64, start));
        batch.sent(start + 100 * MICROSECOND);
        assert!(batch.must_wait(64, start + 101 * MICROSECOND));
        assert!(!batch.must_wait(64, start + 101 * MICROSECOND + MAX_GAP));
    }
}
