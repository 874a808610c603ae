//! When a thread wakes: its ticks, and compensation for late wake-ups of timers. The delay is learned, and the next
//! timer is set earlier by that much. Pure: times are arguments.
//!
//! On a virtual machine a timer is 20 microseconds late or more, nearly the same each time. A thread
//! that wakes too early polls its sockets until it is time: for some microseconds, not from one start to
//! the next, which would cost a core and break down if another thread needs it.

use std::time::{Duration, Instant};

/// Steps that let nine of ten wake-ups come in time.
const STEP_UP: Duration = Duration::from_nanos(900);
const STEP_DOWN: Duration = Duration::from_nanos(100);

/// The largest compensation, however busy the machine is.
const MAX_AHEAD: Duration = Duration::from_micros(60);

/// The turns of a thread and its ticks.
#[derive(Debug)]
pub(super) struct Timer {
    tick_at: Instant,
    /// The end of the last turn.
    turned_at: Instant,
    wakeup: WakeupCompensation,
}

impl Timer {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            tick_at: now,
            turned_at: now,
            wakeup: WakeupCompensation::new(),
        }
    }

    /// Begins a turn: returns when to wake, at the latest at the next tick, for `events`, and to be ready for the next
    /// start of an open loop.
    pub(super) fn sleep(
        &mut self,
        events: [Option<Instant>; 2],
        start: Option<Instant>,
    ) -> Instant {
        let start = start.map(|start| self.wakeup.wake_before(start));
        let others = events.into_iter().chain([start]).flatten();
        let at = others.fold(self.tick_at, Instant::min);
        self.wakeup.on_sleep(self.turned_at, at);
        at
    }

    pub(super) fn on_wake(&mut self, now: Instant) {
        self.wakeup.on_wake(now);
    }

    /// Ends a turn; returns whether a tick is due.
    pub(super) fn end_turn(&mut self, now: Instant) -> bool {
        self.turned_at = now;
        now >= self.tick_at
    }

    pub(super) fn set_tick(&mut self, at: Instant) {
        self.tick_at = at;
    }
}

#[derive(Debug)]
struct WakeupCompensation {
    delay: Duration,
    aimed: Option<Instant>,
}

impl WakeupCompensation {
    fn new() -> Self {
        Self {
            delay: Duration::from_micros(10),
            aimed: None,
        }
    }

    /// When to wake to be ready at `due`.
    fn wake_before(&self, due: Instant) -> Instant {
        due.checked_sub(self.delay).unwrap_or(due)
    }

    /// A sleep until `at` begins `now`; ignored if it is no sleep.
    fn on_sleep(&mut self, now: Instant, at: Instant) {
        self.aimed = (at > now).then_some(at);
    }

    /// The sleep is over. A wake-up before its time had another cause and is ignored.
    fn on_wake(&mut self, now: Instant) {
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
    fn the_usual_delay_is_learned_and_outliers_are_not() {
        let start = Instant::now();
        let mut wakeup = WakeupCompensation::new();
        for n in 0..400 {
            let at = start + us(100);
            wakeup.on_sleep(start, at);
            wakeup.on_wake(at + if n % 50 == 0 { us(3000) } else { us(25) });
        }
        let ahead = start + us(100) - wakeup.wake_before(start + us(100));
        assert!((us(24)..us(28)).contains(&ahead), "{ahead:?}");
        // Never more than the bound; interrupted and empty sleeps are ignored.
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
