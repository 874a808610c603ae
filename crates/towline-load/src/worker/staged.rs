//! Connections in stages: the first `active` slots carry requests, the others are closed when idle.

use std::time::Instant;

use super::Worker;
use super::slot::State;
use crate::stats::Failure;

impl Worker {
    /// The number of slots that carry requests at this time.
    pub(super) fn active_at(&self, now: Instant) -> usize {
        let all = self.slots.len();
        match &self.config.stages {
            Some(stages) if !self.permits.has_schedule() => {
                let connections = stages.connections_at(self.window.since_begin(now));
                all.min(self.permits.share_of(connections) as usize)
            }
            _ => all,
        }
    }

    /// Opens and closes connections as the stages demand.
    pub(super) fn follow_stages(&mut self, now: Instant) {
        if self.config.stages.is_none() || self.permits.has_schedule() {
            return;
        }
        let active = self.active_at(now);
        let before = self.slots.set_active(active);
        for index in before..active {
            self.activate(index as u32, now);
        }
        for slot in active as u32..self.slots.len() as u32 {
            match self.slots.state(slot) {
                State::Open(id) => {
                    let conn = self.engine.conn(id);
                    if conn.is_some_and(|conn| conn.state.pending.is_empty()) {
                        self.close_websocket(id, now);
                        self.on_closed(id, Failure::Reset, "", now);
                        self.engine.close(id);
                        self.slots.get_mut(slot).forget_connection();
                    }
                }
                State::Absent { due: Some(_) } => self.slots.wait(slot, None),
                _ => {}
            }
        }
    }

    fn activate(&mut self, slot: u32, now: Instant) {
        match self.slots.state(slot) {
            State::Absent { .. } if self.config.is_fresh() => {
                self.slots.wait(slot, None);
                self.permit(slot, now);
            }
            State::Absent { .. } => self.slots.wait(slot, Some(now)),
            // Not closed yet: it goes on.
            State::Open(id) => {
                let used = (self.engine.conn(id)).map_or(0, |conn| {
                    conn.state.pending.len() + conn.state.deferred_permits
                });
                for _ in used..self.config.concurrency() {
                    self.permit(slot, now);
                }
                self.engine.flush_and_rearm(id);
            }
            State::Dialling(_) | State::Upgrading(..) => {}
        }
    }
}
