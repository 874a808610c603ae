//! The barrier: all connections send their next request at the same moment.

use std::time::Instant;

use super::Worker;
use super::send::Used;
use super::slot::{SendPermit, State};
use super::window::Phase;

impl Worker {
    /// Releases all connections when every request of the last round has ended.
    pub(super) fn release_barrier(&mut self) {
        if !self.config.barrier
            || self.window.phase() != Phase::Running
            || self.slots.in_flight() > 0
            || self.is_connecting()
            || self.permits.is_empty()
        {
            return;
        }
        let slots = &self.slots;
        // A keep-alive connection that cannot be reopened must not block the others.
        let is_out = |state: State| matches!(state, State::Absent { due: Some(_) });
        let is_fresh = self.config.is_fresh();
        let expected = slots
            .iter()
            .filter(|slot| is_fresh || !is_out(slot.state()));
        let is_valid = |permit: &SendPermit| slots.get(permit.slot).admits(permit);
        let permits = self.permits.take_all(is_valid, expected.count());
        if permits.is_empty() {
            return;
        }
        let now = Instant::now();
        self.engine.set_clock(now);
        for permit in permits {
            if self.permits.is_spent() {
                return;
            }
            if self.use_permit(permit, now, now) == Used::Invalid {
                self.permits.push(permit);
            }
            if let State::Open(id) = self.slots.state(permit.slot) {
                self.engine.flush_and_rearm(id);
            }
        }
    }
}
