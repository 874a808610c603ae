//! Connections that start together: each waits for all others before its next request.

use std::time::Instant;

use super::slot::State;
use super::{Phase, Worker};

impl Worker {
    /// Starts a burst when every connection of the one before it has had its end.
    pub(super) fn burst_due(&mut self) {
        if !self.config.together
            || self.phase != Phase::Running
            || self.in_flight + self.dialling as u64 > 0
            || self.credits.is_empty()
        {
            return;
        }
        let slots = &self.slots;
        self.credits
            .retain(|credit| slots[credit.slot as usize].serial == credit.serial);
        // A kept-alive connection that cannot be made again must not hold the others up for ever.
        let is_out = |state: &State| matches!(state, State::Absent { due: Some(_) });
        let is_fresh = self.config.is_fresh();
        let expected = (slots.iter())
            .filter(|slot| is_fresh || !is_out(&slot.state))
            .count();
        if self.credits.len() < expected {
            return;
        }
        let now = Instant::now();
        self.engine.set_clock(now);
        for credit in std::mem::take(&mut self.credits) {
            if self.budget == Some(0) {
                return;
            }
            self.spend(credit, now, now);
            if let State::Open(id) = self.slots[credit.slot as usize].state {
                self.engine.settle(id);
            }
        }
    }
}
