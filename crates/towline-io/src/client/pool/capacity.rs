//! Capacity of connections that carry several exchanges at once: waiters per dial, and changes of capacity.

use std::hash::Hash;

use super::slot::{Open, Slot};
use super::{Action, Pool, SlotId};

impl<K: Eq + Hash, C: Clone, W: Clone> Pool<K, C, W> {
    /// Sets the number of concurrent exchanges of a connection, as the server has announced it. Exchanges above it
    /// continue.
    pub fn set_capacity(&mut self, slot: SlotId, capacity: u32) {
        let Some(index) = self.find(slot) else {
            return;
        };
        let Slot { origin, open, .. } = &mut self.slots[index];
        let (origin, Some(open)) = (*origin, open) else {
            return;
        };
        let before = open.capacity.replace(capacity);
        if before == Some(capacity) {
            return;
        }
        let was_provisional = before.is_none();
        let is_available = open.is_available();
        let was_listed = std::mem::replace(&mut open.is_listed, is_available);
        let entry = self.origins.at(origin);
        entry.provisional -= usize::from(was_provisional);
        if is_available || (was_provisional && capacity > 0) {
            // Any other connection at its limit may be about to close: its capacity does not predict that of the next.
            entry.expected_capacity = capacity as usize;
        }
        match (was_listed, is_available) {
            (true, false) => entry.available.remove(&mut self.slots, index),
            (false, true) => entry.available.push_front(&mut self.slots, index),
            _ => {}
        }
        self.serve(index);
        if capacity > 1 {
            self.cancel_surplus_dials(origin);
        }
    }

    /// Ends the provisional state of a connection that has failed; true if it was in that state. Its waiters now get
    /// a dial each; otherwise the last would wait for all failures.
    pub(super) fn end_provisional(&mut self, index: usize) -> bool {
        let Slot { origin, open, .. } = &mut self.slots[index];
        let Some(open) = open.as_mut().filter(|open| open.capacity.is_none()) else {
            return false;
        };
        open.capacity = Some(1);
        let entry = self.origins.at(*origin);
        entry.provisional -= 1;
        entry.expected_capacity = 1;
        true
    }

    /// Number of exchanges that a connection carries.
    pub fn leases(&self, slot: SlotId) -> u32 {
        let open = self.find(slot).map(|index| &self.slots[index].open);
        open.and_then(Option::as_ref)
            .map_or(0, |open: &Open<C>| open.leases)
    }

    /// Cancels dials that were started before a connection was known to carry several exchanges.
    pub(super) fn cancel_surplus_dials(&mut self, origin: usize) {
        loop {
            let entry = self.origins.at(origin);
            let is_surplus = entry.dials.len() > entry.wanted_dials();
            match entry.dials.first().filter(|_| is_surplus) {
                Some(newest) => self.cancel_dial(newest),
                None => return,
            }
        }
    }

    pub(super) fn cancel_dial(&mut self, index: usize) {
        self.actions
            .push_back(Action::CancelDial(self.slot_id(index)));
        self.free(index);
    }

    /// Call this when the dials or the waiters of an origin have changed: the first waiters are assigned to the
    /// dials, up to their expected capacity; the others wait for a connection to become free.
    pub(super) fn assign_dials(&mut self, origin: usize) {
        loop {
            let entry = self.origins.at(origin);
            let (expected, expecting) = (entry.expected(), entry.expecting.len());
            if expecting < expected
                && let Some(next) = entry.queued.first()
            {
                entry.queued.remove(&mut self.waiters, next);
                entry.expecting.push_back(&mut self.waiters, next);
                self.expects(next);
            } else if expecting > expected
                && let Some(last) = entry.expecting.last()
            {
                entry.expecting.remove(&mut self.waiters, last);
                entry.queued.push_front(&mut self.waiters, last);
                self.waiters[last].expects = false;
                self.expecting -= 1;
                let token = self.waiters[last].token.clone();
                self.actions.push_back(Action::AwaitFree(token));
            } else {
                break;
            }
        }
        self.origins.reconsider(origin, &self.limits);
    }

    pub(super) fn expects(&mut self, index: usize) {
        self.expecting += 1;
        let waiter = &mut self.waiters[index];
        waiter.expects = true;
        self.actions
            .push_back(Action::AwaitDial(waiter.token.clone()));
    }
}
