//! The barrier: all connections send their next request at the same moment.

use std::time::Instant;

use super::send::Used;
use super::slot::State;
use super::{Phase, Worker};

impl Worker {
    /// Releases all connections when every request of the last round has ended.
    pub(super) fn release_barrier(&mut self) {
        if !self.config.barrier
            || self.phase != Phase::Running
            || self.in_flight + self.dialling as u64 > 0
            || self.permits.is_empty()
        {
            return;
        }
        let slots = &self.slots;
        self.permits
            .retain(|permit| slots[permit.slot as usize].serial == permit.serial);
        // A keep-alive connection that cannot be reopened must not block the others.
        let is_out = |state: &State| matches!(state, State::Absent { due: Some(_) });
        let is_fresh = self.config.is_fresh();
        let expected = (slots.iter())
            .filter(|slot| is_fresh || !is_out(&slot.state))
            .count();
        if self.permits.len() < expected {
            return;
        }
        let now = Instant::now();
        self.engine.set_clock(now);
        for permit in std::mem::take(&mut self.permits) {
            if self.budget == Some(0) {
                return;
            }
            if self.use_permit(permit, now, now) == Used::Invalid {
                self.permits.push_back(permit);
            }
            if let State::Open(id) = self.slots[permit.slot as usize].state {
                self.engine.flush_and_rearm(id);
            }
        }
    }
}
