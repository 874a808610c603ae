//! How late the system wakes a thread that sleeps until a time: learned from its wake-ups, so that the
//! next one is aimed ahead by as much. Pure: times are arguments.
//!
//! On a virtual machine a timer costs 20 microseconds and more, the same each time but for a few. Who is
//! woken too early looks at his sockets again and again until it is time: some microseconds, not a spin
//! from one start to the next, which would cost a core and break down where another thread wants it.

use std::time::{Duration, Instant};

/// Nine of ten wake-ups are to come in time.
const UP: Duration = Duration::from_nanos(900);
const DOWN: Duration = Duration::from_nanos(100);

/// No more is aimed ahead, whatever a busy machine does.
const MOST: Duration = Duration::from_micros(60);

#[derive(Debug)]
pub(super) struct Waking {
    delay: Duration,
    aimed: Option<Instant>,
}

impl Waking {
    pub(super) fn new() -> Self {
        Self {
            delay: Duration::from_micros(10),
            aimed: None,
        }
    }

    /// When to wake so as to be there at `due`.
    pub(super) fn ahead_of(&self, due: Instant) -> Instant {
        due.checked_sub(self.delay).unwrap_or(due)
    }

    /// A sleep until `at` begins `now`; nothing is learned from one that would be none.
    pub(super) fn sleeps(&mut self, now: Instant, at: Instant) {
        self.aimed = (at > now).then_some(at);
    }

    /// It is over. A wake-up before its time was somebody else's doing.
    pub(super) fn woken(&mut self, now: Instant) {
        let Some(aimed) = self.aimed.take().filter(|aimed| now >= *aimed) else {
            return;
        };
        self.delay = if now - aimed > self.delay {
            (self.delay + UP).min(MOST)
        } else {
            self.delay.saturating_sub(DOWN)
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
        let mut waking = Waking::new();
        for n in 0..400 {
            let at = start + us(100);
            waking.sleeps(start, at);
            waking.woken(at + if n % 50 == 0 { us(3000) } else { us(25) });
        }
        let ahead = start + us(100) - waking.ahead_of(start + us(100));
        assert!((us(24)..us(28)).contains(&ahead), "{ahead:?}");
        // Never more than the bound, and nothing from sleeps that were cut short or none.
        for _ in 0..400 {
            waking.sleeps(start, start + us(100));
            waking.woken(start + us(50));
            waking.sleeps(start, start);
            waking.woken(start + us(3000));
        }
        assert_eq!(start + us(100) - waking.ahead_of(start + us(100)), ahead);
        for _ in 0..400 {
            waking.sleeps(start, start + us(100));
            waking.woken(start + us(3000));
        }
        assert_eq!(start + us(100) - waking.ahead_of(start + us(100)), MOST);
    }
}
