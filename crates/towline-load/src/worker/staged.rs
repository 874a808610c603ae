//! Connections in stages: the first `active` slots carry requests, the others are closed when idle.

use std::time::Instant;

use super::slot::State;
use super::{Worker, share_of};
use crate::stats::Failure;

impl Worker {
    /// The number of slots that carry requests at this time.
    pub(super) fn active_at(&self, now: Instant) -> usize {
        let all = self.slots.len();
        match &self.config.stages {
            Some(stages) if self.schedule.is_none() => {
                let since = now.saturating_duration_since(self.window.begin);
                let connections = stages.connections_at(since);
                all.min(share_of(connections, self.share) as usize)
            }
            _ => all,
        }
    }

    /// Opens and closes connections as the stages demand.
    pub(super) fn follow_stages(&mut self, now: Instant) {
        if self.config.stages.is_none() || self.schedule.is_some() {
            return;
        }
        let active = self.active_at(now);
        let before = std::mem::replace(&mut self.active, active);
        for index in before..active {
            self.activate(index as u32, now);
        }
        for index in active..self.slots.len() {
            match self.slots[index].state {
                State::Open(id) => {
                    let conn = self.engine.conn(id);
                    if conn.is_some_and(|conn| conn.state.pending.is_empty()) {
                        self.close_websocket(id, now);
                        self.on_closed(id, Failure::Reset, "", now);
                        self.engine.close(id);
                        // Its next connection is none that was lost.
                        self.slots[index].was_open = false;
                    }
                }
                State::Absent { due: Some(_) } => {
                    self.slots[index].state = State::Absent { due: None };
                }
                _ => {}
            }
        }
    }

    fn activate(&mut self, index: u32, now: Instant) {
        let slot = &mut self.slots[index as usize];
        match slot.state {
            State::Absent { .. } if self.config.is_fresh() => {
                slot.state = State::Absent { due: None };
                self.permit(index, now);
            }
            State::Absent { .. } => slot.state = State::Absent { due: Some(now) },
            // Not closed yet: it goes on.
            State::Open(id) => {
                let used = (self.engine.conn(id)).map_or(0, |conn| {
                    conn.state.pending.len() + conn.state.deferred_permits
                });
                for _ in used..self.config.concurrency() {
                    self.permit(index, now);
                }
                self.engine.flush_and_rearm(id);
            }
            State::Dialling { .. } | State::Upgrading { .. } => {}
        }
    }
}
