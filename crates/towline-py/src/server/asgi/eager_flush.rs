//! Whether answers may wait for the end of the turn.
//!
//! An application may go on computing after its last `send()`, and nothing can be sent meanwhile. One that
//! has been seen to hold a turn up has its answers sent at once for ten times as long: a pause of the
//! collector costs little, and an application that does so for good is never waited for.
use std::time::{Duration, Instant};

/// A visit longer than this is worth a wake-up of the client.
const LONG: Duration = Duration::from_millis(1);
/// How long such a visit is remembered, as a multiple of what it took, and at most.
const MEMORY: u32 = 10;
const LONGEST_MEMORY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Haste {
    until: Option<Instant>,
}

impl Haste {
    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// A visit lasted from `before` to `now`.
    pub fn note(&mut self, before: Instant, now: Instant) {
        let took = now.duration_since(before);
        if took > LONG {
            self.until = Some(now + LONGEST_MEMORY.min(took * MEMORY));
        }
    }

    pub fn expire(&mut self, now: Instant) {
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
        }
    }
}
