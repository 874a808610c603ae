//! How late the system wakes a thread that sleeps until a time: learned from its wake-ups, so that the
//! next one is aimed ahead by as much. Pure: times are arguments.
//!
//! On a virtual machine a timer costs 20 microseconds and more, the same each time but for a few. Who is
//! woken too early looks at his sockets again and again until it is time: some microseconds, not a spin
//! from one start to the next, which would cost a core and break down where another thread wants it.

use std::time::{Duration, Instant};

/// Nine of ten wake-ups are to come in time.
const STEP_UP: Duration = Duration::from_nanos(900);
const STEP_DOWN: Duration = Duration::from_nanos(100);

/// No more is aimed ahead, whatever a busy machine does.
const MAX_AHEAD: Duration = Duration::from_micros(60);

#[derive(Debug)]
pub(super) struct WakeupCompensation {
    delay: Duration,
    aimed: Option<Instant>,
}

impl WakeupCompensation {
    pub(super) fn new() -> Self {
        Self {
            delay: Duration::from_micros(10),
            aimed: None,
        }
    }

    /// When to wake so as to be there at `due`.
    pub(super) fn wake_before(&self, due: Instant) -> Instant {
        due.checked_sub(self.delay).unwrap_or(due)
    }

    /// A sleep until `at` begins `now`; nothing is learned from one that would be none.
    pub(super) fn on_sleep(&mut self, now: Instant, at: Instant) {
        self.aimed = (at > now).then_some(at);
    }

    /// It is over. A wake-up before its time was somebody else's doing.
    pub(super) fn on_wake(&mut self, now: Instant) {
        let Some(aimed) = self.aimed.take().filter(|aimed| now >= *aimed) else {
            return;
        };
        self.delay = if now - aimed > self.delay {
            (self.delay + STEP_UP).min(MAX_AHEAD)
        } else {
            self.delay.saturating_sub(STEP_DOWN)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn what_wake_ups_usually_cost_is_learned_and_what_they_seldom_cost_is_not() {
        let start = Instant::now();
        let mut wakeup = WakeupCompensation::new();
        for n in 0..400 {
            let at = start + us(100);
            wakeup.on_sleep(start, at);
            wakeup.on_wake(at + if n % 50 == 0 { us(3000) } else { us(25) });
        }
        let ahead = start + us(100) - wakeup.wake_before(start + us(100));
        assert!((us(24)..us(28)).contains(&ahead), "{ahead:?}");
        // Never more than the bound, and nothing from sleeps that were cut short or none.
        for _ in 0..400 {
            wakeup.on_sleep(start, start + us(100));
            wakeup.on_wake(start + us(50));
            wakeup.on_sleep(start, start);
            wakeup.on_wake(start + us(3000));
        }
        assert_eq!(start + us(100) - wakeup.wake_before(start + us(100)), ahead);
        for _ in 0..400 {
            wakeup.on_sleep(start, start + us(100));
            wakeup.on_wake(start + us(3000));
        }
        assert_eq!(
            start + us(100) - wakeup.wake_before(start + us(100)),
            MAX_AHEAD
        );
    }
}
