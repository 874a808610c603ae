//! Whether complete responses may wait for those of other connections.
//!
//! An application may go on computing after its response is complete, and nothing can be sent meanwhile. After a service
//! that took long, responses are sent at once for ten times as long: a pause of the garbage collector has little
//! effect, and an application that computes long every time never delays its responses.
use std::time::{Duration, Instant};

/// A longer service is worth a wake-up of the client.
const LONG: Duration = Duration::from_millis(1);
/// Duration of eager flushing, as a multiple of that of the long service, and at most.
const MULTIPLE: u32 = 10;
const MAX_DURATION: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct EagerFlush {
    until: Option<Instant>,
}

impl EagerFlush {
    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Records a service from `before` to `now`.
    pub fn record(&mut self, before: Instant, now: Instant) {
        let took = now.duration_since(before);
        if took > LONG {
            self.until = Some(now + MAX_DURATION.min(took * MULTIPLE));
        }
    }

    pub fn expire(&mut self, now: Instant) {
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
        }
    }
}
