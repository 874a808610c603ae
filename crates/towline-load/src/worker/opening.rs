//! Connections come and go: dialling, adopting, and what follows from an end.

use std::time::Instant;

use towline_io::ConnId;
use towline_io::call::{Dial, DialErrorKind};

use super::slot::{Start, State};
use super::{Phase, Worker};
use crate::stats::Failure;

impl Worker<'_> {
    /// Begins to connect `slot`, for `start` where each request has its own connection.
    pub(super) fn dial(&mut self, slot: u32, start: Option<Start>, now: Instant) {
        let state = &mut self.slots[slot as usize];
        let route = self.origins[state.origin].route.clone();
        state.state = State::Dialling { begun: now, start };
        self.dialling += 1;
        let dial = Dial::start(route, &self.dial_config, now);
        self.engine.dial(dial, u64::from(slot));
    }

    /// Dials what is absent and due.
    pub(super) fn open_due(&mut self, now: Instant) {
        if self.phase != Phase::Running || self.budget == Some(0) {
            return;
        }
        for index in 0..self.slots.len() {
            let State::Absent { due: Some(due) } = self.slots[index].state else {
                continue;
            };
            if due > now {
                continue;
            }
            let index = index as u32;
            if self.config.is_fresh() {
                // The pause after a failure is over: requests may use it again.
                self.slots[index as usize].state = State::Absent { due: None };
                self.credit(index, now);
            } else {
                self.dial(index, None, now);
            }
        }
    }

    pub(super) fn take_dialled(&mut self, now: Instant) {
        while let Some(dialled) = self.engine.next_dialled() {
            self.dialling -= 1;
            let slot = dialled.tag as u32;
            let State::Dialling { begun, start } = self.slots[slot as usize].state else {
                continue;
            };
            let adopted = dialled.result.map_err(|error| {
                self.tally.note(|| error.message.clone());
                match error.kind {
                    DialErrorKind::Timeout => Failure::Timeout,
                    _ => Failure::Connect,
                }
            });
            let adopted = adopted.and_then(|established| {
                let adopted = self.engine.adopt(*established, &self.service);
                adopted.map_err(|_| Failure::Connect)
            });
            match adopted {
                Ok(id) => self.opened(slot, id, begun, start, now),
                Err(failure) => self.not_opened(slot, start, failure, now),
            }
        }
    }

    fn opened(
        &mut self,
        slot: u32,
        id: ConnId,
        begun: Instant,
        start: Option<Start>,
        now: Instant,
    ) {
        let state = &mut self.slots[slot as usize];
        let again = state.was_open;
        state.opened(id);
        self.live += 1;
        if let Some(peer) = self.engine.peer(id) {
            peer.state.slot = Some(slot);
        }
        if self.phase == Phase::Connecting || self.counts(now, now) {
            self.tally.connect.record(now - begun);
            self.tally.reconnects += u64::from(again && !self.config.is_fresh());
        }
        match start {
            // Counted as in flight since the dial.
            Some(start) => _ = self.send(slot, id, start, begun),
            None => self.credit_all(slot, now),
        }
        self.engine.settle(id);
    }

    fn not_opened(&mut self, slot: u32, start: Option<Start>, failure: Failure, now: Instant) {
        let retry_at = self.slots[slot as usize].retry_at(now);
        self.slots[slot as usize].closed(Some(retry_at));
        if let Some(start) = start {
            self.in_flight -= 1;
            self.failed(start.intended, failure, now);
            return;
        }
        // Otherwise requests that nobody can take would be waited for without end.
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_sub(1);
        }
        if self.phase == Phase::Connecting || self.counts(now, now) {
            self.tally.failed(failure);
        }
    }

    /// A connection has ended. Requests that it leaves without answers have failed.
    pub(super) fn over(&mut self, id: ConnId, failure: Failure, rule: &str, now: Instant) {
        let Some(peer) = self.engine.peer(id) else {
            return;
        };
        let line = &mut peer.state;
        let Some(slot) = line.slot.take() else {
            return;
        };
        let flights = std::mem::take(&mut line.flights);
        self.live -= 1;
        self.in_flight -= flights.len() as u64;
        for flight in &flights {
            self.failed(flight.intended, failure, now);
            self.tally.note(|| rule.into());
        }
        // More came than was asked for: no request has failed, and yet the server has.
        if flights.is_empty() && failure == Failure::Protocol {
            self.failed(now, failure, now);
            self.tally.note(|| rule.into());
        }
        if self.phase == Phase::Connecting {
            return self.slots[slot as usize].closed(None);
        }
        let state = &mut self.slots[slot as usize];
        let did_its_work = state.used > flights.len() as u64;
        if !did_its_work && !flights.is_empty() {
            // A server that closes without a word is not to be stormed.
            let at = state.retry_at(now);
            return state.closed(Some(at));
        }
        state.closed(Some(now));
        if self.phase != Phase::Running || self.budget == Some(0) {
            return;
        }
        if self.config.is_fresh() {
            self.slots[slot as usize].state = State::Absent { due: None };
            self.credit(slot, now);
        } else {
            self.dial(slot, None, now);
        }
    }
}
