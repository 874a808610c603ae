//! Connection pool: assigns connections to calls, queues waiters, and decides which connections to open and close.
//!
//! Pure bookkeeping, without sockets and without a clock: its owner performs the actions of [`Pool::next_action`].
//!
//! ```text
//!            Dial ─► dialling ──dialled──► leased ◄─acquire, Assign── idle ──expire, evict──► Close
//!                       │                    └──────release───────────▲
//!                       └─dial_failed, CancelDial─► (slot is free)
//!
//!   acquire ─► an available connection of the origin, the most recently used first
//!       └─none─► wait: FIFO per origin; dials are started for the waiters, within the limits
//! ```
//!
//! A dial belongs to the pool: the first connection that is free goes to the first waiter. Only the failure of a
//! dial is reported to the waiter for which it was started. A connection has a capacity, which may change, and
//! counts its leases. A dial is expected to have the capacity of the origin's last connection (at first, the one
//! passed to [`Pool::origin`]): that many waiters wait for one dial before another is started. A connection whose
//! capacity is not known yet is provisional: it carries one exchange, and the waiters that the dial was expected to
//! serve go on waiting for `set_capacity`. Every operation is O(1), including `cancel`.

mod capacity;
#[cfg(test)]
mod capacity_tests;
mod external;
mod list;
#[cfg(test)]
mod model_tests;
mod origin;
mod slot;
mod status;
#[cfg(test)]
mod tests;
mod types;

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use list::{Links, List};
use origin::{Origin, Origins};
use slot::{IDLE, Open, Slot, Waiter};

pub use types::{Action, Lease, OriginId, PoolLimits, PoolStatus, SlotId, WaiterId};

/// A pool. `K` is the key of an origin; `C` and `W` are the owner's tokens for a connection and a waiter.
pub struct Pool<K, C, W> {
    limits: PoolLimits,
    origins: Origins<K>,
    slots: Slab<Slot<C>>,
    waiters: Slab<Waiter<W>>,
    /// Number of waiters for which a dial is in progress.
    expecting: usize,
    /// Idle connections, the longest idle first.
    idle: List<IDLE>,
    dialling: usize,
    actions: VecDeque<Action<C, W>>,
    /// Set when a slot has become free or a connection idle: `refill` may start dials.
    needs_refill: bool,
    closed: bool,
    generation: u32,
    last_number: u64,
}

impl<K: Eq + Hash, C: Clone, W: Clone> Pool<K, C, W> {
    pub fn new(limits: PoolLimits) -> Self {
        Self {
            limits,
            origins: Origins::default(),
            slots: Slab::new(),
            waiters: Slab::new(),
            expecting: 0,
            idle: List::default(),
            dialling: 0,
            actions: VecDeque::new(),
            needs_refill: false,
            closed: false,
            generation: 0,
            last_number: 0,
        }
    }

    /// Returns the id of the origin of `key`, without a hash look-up if the same `Arc` is passed again. The id stays
    /// valid at least as long as the origin has a connection or a waiter. `expected_capacity`: concurrent calls that
    /// a connection is expected to carry, until the first one is established.
    pub fn origin(&mut self, key: &Arc<K>, expected_capacity: u32) -> OriginId {
        self.origins.intern(key, expected_capacity)
    }

    pub fn key(&self, origin: OriginId) -> Option<&Arc<K>> {
        self.origins.get(origin).map(|origin| &origin.key)
    }

    /// Leases an available connection to `origin`. `None`: call `wait`.
    pub fn acquire(&mut self, origin: OriginId, now: Instant) -> Option<Lease<C>> {
        loop {
            let origin = self.origins.get(origin)?;
            if origin.waiting() > 0 {
                // Waiters precede new calls.
                return None;
            }
            let index = origin.available.first()?;
            if self.is_outdated(index, now) {
                self.retire(self.slot_id(index));
                continue;
            }
            return self.lease(index);
        }
    }

    /// Queues a waiter; [`Action::Assign`] gives it a connection. `Err` when the queue is full or the pool is closed.
    /// `urgent` puts it at the front, for a call whose connection has failed.
    pub fn wait(&mut self, origin: OriginId, token: W, urgent: bool) -> Result<WaiterId, W> {
        if self.closed || self.origins.get(origin).is_none() {
            return Err(token);
        }
        self.last_number += 1;
        let generation = self.next_generation();
        let index = self.waiters.insert(Waiter {
            generation,
            origin: origin.index(),
            number: if urgent { 0 } else { self.last_number },
            token,
            expects: false,
            dial: None,
            links: Links::default(),
        });
        let entry = self.origins.at(origin.index());
        if !urgent {
            entry.queued.push_back(&mut self.waiters, index);
        } else if entry.expecting.len() == 0 {
            entry.queued.push_front(&mut self.waiters, index);
        } else {
            entry.expecting.push_front(&mut self.waiters, index);
            self.expects(index);
        }
        self.assign_dials(origin.index());
        self.refill();
        let queued = self.waiters.len() - self.expecting;
        let is_over = self.limits.max_queue.is_some_and(|most| queued > most);
        if is_over && !urgent && !self.waiters[index].expects {
            return Err(self.unqueue(index));
        }
        Ok(WaiterId {
            index: index as u32,
            generation,
        })
    }

    /// Removes a waiter from the queue. A dial that no other waiter needs is cancelled. `None`: it has a connection.
    pub fn cancel(&mut self, waiter: WaiterId) -> Option<W> {
        let index = waiter.index as usize;
        let found = self.waiters.get(index)?;
        if found.generation != waiter.generation {
            return None;
        }
        let dial = found.dial.and_then(|dial| self.find(dial));
        let dial = dial.filter(|&dial| self.slots[dial].open.is_none());
        let at = found.origin;
        let origin = self.origins.at(at);
        let (dials, before) = (origin.dials.len(), origin.wanted_dials());
        let token = self.unqueue(index);
        let origin = self.origins.at(at);
        if dials > origin.wanted_dials() {
            // If there were more dials than waiters need before, the surplus comes from `prewarm` and stays.
            let newest = origin.dials.first().filter(|_| dials == before);
            if let Some(dial) = dial.or(newest) {
                self.cancel_dial(dial);
            }
        }
        Some(token)
    }

    /// Returns the waiter for which a dial was started, if it still waits: the dial has its deadline.
    pub fn dialled_for(&self, slot: SlotId) -> Option<&W> {
        let id = self.slots[self.find(slot)?].started_for?;
        self.waiter(id).map(|waiter| &waiter.token)
    }

    /// Adds the connection of a successful dial, which carries up to `capacity` exchanges at once. `None`: one, until
    /// `set_capacity` is called.
    pub fn dialled(&mut self, slot: SlotId, conn: C, capacity: Option<u32>, now: Instant) {
        let Some(index) = self.find(slot) else {
            // Cancelled while it succeeded.
            self.actions.push_back(Action::Close(conn));
            return;
        };
        let found = &mut self.slots[index];
        if found.open.is_some() {
            return;
        }
        let origin = found.origin;
        self.dialling -= 1;
        let entry = self.origins.at(origin);
        entry.dials.remove(&mut self.slots, index);
        entry.open += 1;
        let capacity = capacity.map(|capacity| capacity.max(1));
        match capacity {
            Some(capacity) => entry.expected_capacity = capacity as usize,
            None => entry.provisional += 1,
        }
        self.slots[index].open = Some(Open {
            conn,
            leases: 0,
            capacity,
            exchanges: 0,
            retired: false,
            is_listed: false,
            is_idle: false,
            since: now,
            idle_since: now,
            most_idle: None,
        });
        self.make_available(index, now);
        self.serve(index);
        if capacity != Some(1) {
            self.cancel_surplus_dials(origin);
        }
    }

    /// Removes a failed dial. Returns the waiter for which it was started, unless another dial may serve that one:
    /// either cancel the waiter, or let it wait for another attempt, which the next `next_action` starts.
    pub fn dial_failed(&mut self, slot: SlotId) -> Option<(WaiterId, &W)> {
        let index = self.find(slot)?;
        let (origin, id) = (self.slots[index].origin, self.slots[index].started_for);
        // Waiters that shared this dial now get one each; otherwise the last would wait for all retries.
        self.origins.at(origin).expected_capacity = 1;
        self.free(index);
        if self.origins.peek(origin)?.queued.len() == 0 {
            return None;
        }
        let waiter = self.waiter(id?)?;
        Some((id?, &waiter.token))
    }

    /// Ends a lease: the exchange is complete and the connection can carry another.
    pub fn release(&mut self, slot: SlotId, now: Instant) {
        let Some(index) = self.find(slot) else {
            return;
        };
        let Some(open) = &mut self.slots[index].open else {
            return;
        };
        open.leases = open.leases.saturating_sub(1);
        if open.retired
            || self.closed
            || self.is_too_old(index, now)
            || self.is_due_elsewhere(index)
        {
            return self.retire(slot);
        }
        self.make_available(index, now);
        self.serve(index);
    }

    /// Bounds the idle time of a connection beyond `keepalive_expiry`, as its server has announced.
    pub fn limit_idle(&mut self, slot: SlotId, most: Duration) {
        let index = self.find(slot);
        if let Some(open) = index.and_then(|index| self.slots[index].open.as_mut()) {
            open.most_idle = Some(most);
        }
    }

    /// Removes a connection or a dial that no longer exists.
    pub fn remove(&mut self, slot: SlotId) {
        if let Some(index) = self.find(slot) {
            self.end_provisional(index);
            self.free(index);
        }
    }

    /// Assigns no more exchanges to a connection (GOAWAY); it is closed when its last lease is released.
    pub fn retire(&mut self, slot: SlotId) {
        let Some(index) = self.find(slot) else {
            return;
        };
        let Slot { origin, open, .. } = &mut self.slots[index];
        let Some(open) = open else {
            return;
        };
        if open.leases == 0 {
            return self.drop_slot(index);
        }
        open.retired = true;
        let origin = *origin;
        if std::mem::take(&mut open.is_listed) {
            let available = &mut self.origins.at(origin).available;
            available.remove(&mut self.slots, index);
        }
        if self.end_provisional(index) {
            self.assign_dials(origin);
            self.needs_refill = true;
        }
    }

    /// Opens up to `n` connections in advance, within the limits and without closing others.
    pub fn prewarm(&mut self, origin: OriginId, n: usize) {
        let Some(found) = self.origins.get(origin) else {
            return;
        };
        let room = self
            .limits
            .max_connections_per_host
            .saturating_sub(found.slots());
        let room = room.min(self.limits.max_connections.saturating_sub(self.slots.len()));
        let wanted = match found.open {
            0 => n,
            // The origin has a connection, so its capacity is known.
            _ => n.div_ceil(found.expected_capacity),
        };
        let missing = wanted.saturating_sub(found.slots());
        if self.closed {
            return;
        }
        for _ in 0..missing.min(room) {
            self.dial(origin.index());
        }
    }

    /// Closes connections that have been idle for too long.
    pub fn expire(&mut self, now: Instant) {
        while let Some(index) = self.idle.first()
            && self.is_outdated(index, now)
        {
            self.drop_slot(index);
        }
    }

    /// Time of the next expiry of an idle connection.
    pub fn next_expiry(&self) -> Option<Instant> {
        let oldest = self.slots.get(self.idle.first()?)?.open.as_ref()?;
        Some(oldest.idle_since + self.limits.keepalive_expiry?)
    }

    /// Closes idle connections, cancels dials and refuses new waiters; connections in use close when they are
    /// released. Returns the waiters.
    pub fn close(&mut self) -> Vec<W> {
        self.closed = true;
        let waiters: Vec<_> = self.waiters.iter().map(|(index, _)| index).collect();
        let waiters = waiters
            .into_iter()
            .map(|index| self.unqueue(index))
            .collect();
        let all: Vec<_> = self.slots.iter().map(|(index, _)| index).collect();
        for index in all {
            match &self.slots[index].open {
                None => self.cancel_dial(index),
                Some(open) if open.leases == 0 => self.drop_slot(index),
                Some(_) => {}
            }
        }
        waiters
    }

    /// Returns the next action to perform.
    pub fn next_action(&mut self) -> Option<Action<C, W>> {
        if self.needs_refill {
            self.refill();
        }
        self.actions.pop_front()
    }

    // Slots.

    fn slot_id(&self, index: usize) -> SlotId {
        SlotId {
            index: index as u32,
            generation: self.slots[index].generation,
        }
    }

    fn find(&self, slot: SlotId) -> Option<usize> {
        let index = slot.index as usize;
        (self.slots.get(index)?.generation == slot.generation).then_some(index)
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    fn lease(&mut self, index: usize) -> Option<Lease<C>> {
        let Slot { origin, open, .. } = &mut self.slots[index];
        let (origin, open) = (*origin, open.as_mut()?);
        let reused = open.exchanges > 0;
        open.exchanges += 1;
        open.leases += 1;
        let conn = open.conn.clone();
        let was_listed = !open.is_available() && std::mem::take(&mut open.is_listed);
        if std::mem::take(&mut open.is_idle) {
            self.idle.remove(&mut self.slots, index);
            self.origins.at(origin).idle -= 1;
        }
        if was_listed {
            let available = &mut self.origins.at(origin).available;
            available.remove(&mut self.slots, index);
        }
        Some(Lease {
            slot: self.slot_id(index),
            conn,
            reused,
        })
    }

    /// Assigns the connection to waiters up to its capacity.
    fn serve(&mut self, index: usize) {
        loop {
            let slot = &self.slots[index];
            let is_available = slot.open.as_ref().is_some_and(Open::is_available);
            let (origin, first) = (slot.origin, self.origins.at(slot.origin).first_waiter());
            let Some(waiter) = first.filter(|_| is_available) else {
                break self.assign_dials(origin);
            };
            if let Some(lease) = self.lease(index) {
                let token = self.unqueue(waiter);
                self.actions.push_back(Action::Assign(lease, token));
            }
        }
        if self.idle.len() > self.limits.max_keepalive
            && let Some(oldest) = self.idle.first()
        {
            self.drop_slot(oldest);
        }
        // An idle connection here can make room for another origin.
        self.needs_refill = true;
    }

    /// Updates the lists of the connection according to its leases.
    fn make_available(&mut self, index: usize, now: Instant) {
        let Slot { origin, open, .. } = &mut self.slots[index];
        let (origin, Some(open)) = (*origin, open) else {
            return;
        };
        let is_idle = open.leases == 0;
        if is_idle {
            open.idle_since = now;
        }
        let becomes_available =
            open.is_available() && !std::mem::replace(&mut open.is_listed, true);
        let becomes_idle = is_idle && !std::mem::replace(&mut open.is_idle, true);
        if becomes_available {
            let available = &mut self.origins.at(origin).available;
            available.push_front(&mut self.slots, index);
        }
        if becomes_idle {
            self.idle.push_back(&mut self.slots, index);
            self.origins.at(origin).idle += 1;
        }
    }

    /// Removes an idle connection and orders its `Close`.
    fn drop_slot(&mut self, index: usize) {
        if let Some(open) = self.free(index) {
            self.actions.push_back(Action::Close(open.conn));
        }
    }

    fn free(&mut self, index: usize) -> Option<Open<C>> {
        let slot = &self.slots[index];
        let entry = self.origins.at(slot.origin);
        let (origin, state) = (slot.origin, slot.open.as_ref());
        let state = state.map(|open| (open.is_listed, open.is_idle, open.capacity.is_none()));
        if let Some((is_listed, is_idle, is_provisional)) = state {
            entry.open -= 1;
            entry.provisional -= usize::from(is_provisional);
            if is_listed {
                entry.available.remove(&mut self.slots, index);
            }
            if is_idle {
                entry.idle -= 1;
                self.idle.remove(&mut self.slots, index);
            }
        } else {
            self.dialling -= 1;
            entry.dials.remove(&mut self.slots, index);
        }
        let removed = self.slots.try_remove(index);
        self.assign_dials(origin);
        self.needs_refill = true;
        removed.and_then(|slot| slot.open)
    }

    fn is_outdated(&self, index: usize, now: Instant) -> bool {
        let (open, expiry) = (&self.slots[index].open, self.limits.keepalive_expiry);
        matches!(open, Some(open) if open.has_expired(expiry, now)) || self.is_too_old(index, now)
    }

    fn is_too_old(&self, index: usize, now: Instant) -> bool {
        let since = self.slots[index].open.as_ref().map(|open| open.since);
        let age = since.map(|since| now.saturating_duration_since(since));
        matches!((age, self.limits.max_connection_age), (Some(age), Some(most)) if age >= most)
    }

    // The queue.

    fn unqueue(&mut self, index: usize) -> W {
        let Waiter {
            origin, expects, ..
        } = self.waiters[index];
        let entry = self.origins.at(origin);
        if expects {
            entry.expecting.remove(&mut self.waiters, index);
            self.expecting -= 1;
        } else {
            entry.queued.remove(&mut self.waiters, index);
        }
        let token = self.waiters.remove(index).token;
        self.assign_dials(origin);
        token
    }

    fn waiter(&self, id: WaiterId) -> Option<&Waiter<W>> {
        let waiter = self.waiters.get(id.index as usize)?;
        (waiter.generation == id.generation).then_some(waiter)
    }

    /// Whether the slot is due to another origin: one without any connection whose first waiter came before those of
    /// this origin, while the pool is full. Otherwise an origin under load would keep its connections for ever.
    fn is_due_elsewhere(&self, index: usize) -> bool {
        if self.slots.len() < self.limits.max_connections {
            return false;
        }
        let number = |origin: &Origin<K>| {
            let first = origin.first_waiter()?;
            self.waiters.get(first).map(|waiter| waiter.number)
        };
        let own = self.origins.peek(self.slots[index].origin).and_then(number);
        let starved = self.origins.first_starved();
        let starved = starved
            .and_then(|index| self.origins.peek(index))
            .and_then(number);
        matches!((own, starved), (Some(own), Some(starved)) if starved < own)
    }

    /// Starts dials for waiters within the limits, for one origin after the other.
    fn refill(&mut self) {
        self.needs_refill = false;
        while !self.closed
            && let Some(origin) = self.origins.next_to_dial()
        {
            if self.slots.len() >= self.limits.max_connections && !self.make_room(origin) {
                return;
            }
            self.dial(origin);
            self.origins.rotate(origin);
        }
    }

    /// At the client-wide limit: closes an idle connection, or cancels a dial that another origin does not need.
    fn make_room(&mut self, for_origin: usize) -> bool {
        if let Some(oldest) = self.idle.first() {
            self.drop_slot(oldest);
            return true;
        }
        let spare = self.origins.first_surplus();
        let Some(spare) = spare.filter(|&spare| spare != for_origin) else {
            return false;
        };
        let Some(dial) = self.origins.at(spare).dials.first() else {
            return false;
        };
        self.cancel_dial(dial);
        true
    }

    fn dial(&mut self, origin: usize) {
        let first = self.origins.at(origin).queued.first();
        let started_for = first.map(|first| WaiterId {
            index: first as u32,
            generation: self.waiters[first].generation,
        });
        let index = self.insert_dial(origin, started_for);
        if let Some(first) = first {
            self.waiters[first].dial = Some(self.slot_id(index));
        }
        self.assign_dials(origin);
        let id = self.origins.id(origin);
        self.actions
            .push_back(Action::Dial(self.slot_id(index), id));
    }

    fn insert_dial(&mut self, origin: usize, started_for: Option<WaiterId>) -> usize {
        let generation = self.next_generation();
        let index = self.slots.insert(Slot {
            generation,
            origin,
            open: None,
            started_for,
            links: [Links::default(); 2],
        });
        self.dialling += 1;
        let dials = &mut self.origins.at(origin).dials;
        dials.push_front(&mut self.slots, index);
        index
    }
}
