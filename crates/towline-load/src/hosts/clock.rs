//! Alignment of an agent's clock to the controller's. Pure: times are arguments.
//!
//! A question and its reply bound the agent's time by the two times of the controller; the shortest round trip gives the
//! smallest error (F. Cristian, "Probabilistic clock synchronization", 1989).

use std::time::Duration;

/// Nearest relation of two clocks that is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClockAlignment {
    best: Option<Sample>,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    round_trip_ns: u64,
    /// Agent's clock minus the controller's.
    ahead_ns: i64,
}

impl ClockAlignment {
    /// A reply with the agent's time, and the times of question and reply on the controller's clock.
    pub(super) fn observe(&mut self, sent_ns: u64, received_ns: u64, agent_ns: u64) {
        let round_trip_ns = received_ns.saturating_sub(sent_ns);
        let middle = sent_ns + round_trip_ns / 2;
        self.count += 1;
        if self
            .best
            .is_none_or(|best| round_trip_ns < best.round_trip_ns)
        {
            self.best = Some(Sample {
                round_trip_ns,
                ahead_ns: agent_ns.wrapping_sub(middle).cast_signed(),
            });
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Agent's clock minus the controller's.
    pub(super) fn ahead_ns(&self) -> i64 {
        self.best.map_or(0, |best| best.ahead_ns)
    }

    /// Bound of the error: the reply was written at some time within the round trip.
    pub(super) fn error(&self) -> Duration {
        Duration::from_nanos(self.best.map_or(0, |best| best.round_trip_ns.div_ceil(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_decides_and_bounds_the_error() {
        // The agent's clock is 5 ms ahead, or far behind.
        for ahead in [5_000_000, -7_000_000_000_i64] {
            let mut alignment = ClockAlignment::default();
            let mut sent = 10_000_000_000_u64;
            // One way and the other, in microseconds.
            for (there, back) in [(900, 50), (30, 20), (20, 400), (25, 27)] {
                let at_agent = (sent + there * 1000).saturating_add_signed(ahead);
                alignment.observe(sent, sent + (there + back) * 1000, at_agent);
                let wrong_by = (alignment.ahead_ns() - ahead).unsigned_abs();
                assert!(u128::from(wrong_by) <= alignment.error().as_nanos());
                sent += 10_000_000;
            }
            assert_eq!(alignment.count(), 4);
            assert_eq!(alignment.error(), Duration::from_micros(25));
            assert_eq!((alignment.ahead_ns() - ahead).unsigned_abs(), 5_000);
        }
    }
}
