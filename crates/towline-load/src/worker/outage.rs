//! The time without a connection to a destination, and the decision to give it up.

use std::time::{Duration, Instant};

use super::Worker;
use super::slot::State;

/// The outages of all destinations.
pub(super) struct Outages {
    current: Vec<Option<Outage>>,
    /// Why the load ends: a destination was lost.
    gave_up: Option<String>,
}

/// The failed dials to a destination since its last connection.
struct Outage {
    since: Instant,
    /// The first failure.
    error: String,
}

impl Outages {
    pub(super) fn new(destinations: usize) -> Self {
        Self {
            current: (0..destinations).map(|_| None).collect(),
            gave_up: None,
        }
    }

    /// Begins an outage, if there is none.
    pub(super) fn begin(&mut self, destination: usize, error: &str, now: Instant) {
        self.current[destination].get_or_insert_with(|| Outage {
            since: now,
            error: error.into(),
        });
    }

    /// Ends the outage of a destination to which a connection was made.
    pub(super) fn end(&mut self, destination: usize) {
        self.current[destination] = None;
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.gave_up.is_some()
    }

    pub(super) fn take_reason(&mut self) -> Option<String> {
        self.gave_up.take()
    }

    pub(super) fn destinations(&self) -> usize {
        self.current.len()
    }

    /// Gives up a destination that had no connection for this time.
    fn check(&mut self, destination: usize, after: Duration, (begin, now): (Instant, Instant)) {
        let Some(outage) = &self.current[destination] else {
            return;
        };
        if now >= outage.since + after {
            let lasted = now.saturating_duration_since(outage.since).as_secs_f64();
            let at = outage.since.saturating_duration_since(begin).as_secs_f64();
            self.gave_up = Some(format!(
                "the server was lost {at:.1} s after the start; for {lasted:.1} s no connection was possible: {}",
                outage.error
            ));
        }
    }
}

impl Worker {
    /// The error of the first destination to which no connection is open after a failed dial.
    pub(super) fn unreachable(&self) -> Option<&str> {
        self.config.give_up_after?;
        let mut outages = self.origins.outages.current.iter().enumerate();
        outages.find_map(|(destination, outage)| {
            let outage = outage
                .as_ref()
                .filter(|_| !self.is_connected_to(destination))?;
            Some(&*outage.error)
        })
    }

    /// Gives up a destination that had no connection for the configured time.
    pub(super) fn check_outages(&mut self, now: Instant) {
        let Some(after) = self.config.give_up_after else {
            return;
        };
        let begin = self.window.at(Duration::ZERO);
        for destination in 0..self.origins.outages.destinations() {
            if self.origins.outages.current[destination].is_none() {
                continue;
            }
            if self.is_connected_to(destination) {
                self.origins.outages.end(destination);
            } else {
                self.origins.outages.check(destination, after, (begin, now));
            }
        }
    }

    fn is_connected_to(&self, destination: usize) -> bool {
        self.slots.iter().any(|slot| {
            self.origins.of(slot.origin).destination() == destination
                && matches!(slot.state(), State::Open(_) | State::Upgrading(..))
        })
    }
}
