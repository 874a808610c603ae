//! The time without a connection to a destination, and the decision to give it up.

use std::time::Instant;

use super::Worker;
use super::slot::State;

/// The failed dials to a destination since its last connection.
pub(super) struct Outage {
    since: Instant,
    /// The first failure.
    error: String,
}

impl Worker {
    pub(super) fn on_dial_failed(&mut self, slot: u32, error: &str, now: Instant) {
        let destination = self.origins[self.slots[slot as usize].origin].destination;
        self.outages[destination].get_or_insert_with(|| Outage {
            since: now,
            error: error.into(),
        });
    }

    /// Ends the outage of the destination of `slot`, to which a connection was made.
    pub(super) fn end_outage(&mut self, slot: u32) {
        let destination = self.origins[self.slots[slot as usize].origin].destination;
        self.outages[destination] = None;
    }

    /// The error of the first destination to which no connection is open after a failed dial.
    pub(super) fn unreachable(&self) -> Option<&str> {
        self.config.give_up_after?;
        let outages = self.outages.iter().enumerate();
        let mut lasting = outages
            .filter_map(|(destination, outage)| Some((destination, outage.as_ref()?)))
            .filter(|(destination, _)| !self.is_connected_to(*destination));
        lasting.next().map(|(_, outage)| &*outage.error)
    }

    /// Gives up a destination that had no connection for the configured time.
    pub(super) fn check_outages(&mut self, now: Instant) {
        let Some(after) = self.config.give_up_after else {
            return;
        };
        for destination in 0..self.outages.len() {
            let Some(outage) = &self.outages[destination] else {
                continue;
            };
            if self.is_connected_to(destination) {
                self.outages[destination] = None;
            } else if now >= outage.since + after {
                let before = now.saturating_duration_since(outage.since).as_secs_f64();
                let after_s = outage.since.saturating_duration_since(self.window.begin);
                self.gave_up = Some(format!(
                    "the server was lost {:.1} s after the start, and for {before:.1} s no connection \
                     was possible: {}",
                    after_s.as_secs_f64(),
                    outage.error
                ));
            }
        }
    }

    fn is_connected_to(&self, destination: usize) -> bool {
        self.slots.iter().any(|slot| {
            self.origins[slot.origin].destination == destination
                && matches!(slot.state, State::Open(_) | State::Upgrading { .. })
        })
    }
}
