//! The pool of connections: who may use which, who waits, and what is opened and closed for it.
//!
//! Pure bookkeeping: no socket, no clock. What is to be done comes out of [`Pool::next_action`].
//!
//! ```text
//!            Dial ─► dialling ──dialled──► leased ◄─acquire/Serve── idle ──expire, evict──► Close
//!                       │                    └──────release──────────▲
//!                       └─dial_failed, CancelDial─► (slot is free)
//!
//!   acquire ─► an idle connection of the origin, the one used last
//!       └─none─► wait: FIFO per origin; dials are started for as many waiters as there is room
//! ```
//!
//! A dial belongs to the pool: whichever connection is free first serves the first waiter. Only its
//! failure is told to the one for whom it was begun. A connection has a capacity, which may change, and
//! counts its leases. What the last connection of an origin took at once (at first: what its key allows
//! to hope for), a dial is expected to take too: so many wait for one dial before another is started.
//! Every operation is O(1), cancelling included.

mod capacity;
#[cfg(test)]
mod capacity_tests;
mod list;
mod origin;
mod slot;
mod status;
#[cfg(test)]
mod tests;
mod types;

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;

use list::{Links, List};
use origin::{Origin, Origins};
use slot::{IDLE, Open, Slot, Waiter};

pub use origin::OriginId;
pub use types::{Action, Lease, PoolLimits, PoolStatus, SlotId, WaiterId};

/// See the module's picture. `K` is the key of an origin, `C` names a connection, `W` whoever waits.
pub struct Pool<K, C, W> {
    limits: PoolLimits,
    origins: Origins<K>,
    slots: Slab<Slot<C>>,
    waiters: Slab<Waiter<W>>,
    /// Number of them for which a dial is in progress.
    expecting: usize,
    /// Connections without an exchange, the one that rests longest first.
    idle: List<IDLE>,
    dialling: usize,
    actions: VecDeque<Action<C, W>>,
    /// Set when a slot or a need for one has appeared.
    unsettled: bool,
    closed: bool,
    generation: u32,
    numbers: u64,
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
            unsettled: false,
            closed: false,
            generation: 0,
            numbers: 0,
        }
    }

    /// The name of the origin of `key`. Found without a table when the same `Arc` comes again. It stays
    /// valid at least as long as the origin has a connection or a waiter. `share`: exchanges that a
    /// connection to it may be hoped to carry at once; experience overrules it.
    pub fn origin(&mut self, key: &Arc<K>, share: u32) -> OriginId {
        self.origins.intern(key, share)
    }

    pub fn key(&self, origin: OriginId) -> Option<&Arc<K>> {
        self.origins.get(origin).map(|origin| &origin.key)
    }

    /// A connection to `origin` that is free now. `None`: wait.
    pub fn acquire(&mut self, origin: OriginId, now: Instant) -> Option<Lease<C>> {
        loop {
            let origin = self.origins.get(origin)?;
            if origin.waiting() > 0 {
                // Waiters come first.
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

    /// Queues `who`; its turn comes as an action. Refused (`Err`) when the queue is full or the pool is
    /// closed. `urgent`: in front of the others, for one that has had its turn and lost it.
    pub fn wait(&mut self, origin: OriginId, who: W, urgent: bool) -> Result<WaiterId, W> {
        if self.closed || self.origins.get(origin).is_none() {
            return Err(who);
        }
        self.numbers += 1;
        let generation = self.next_generation();
        let index = self.waiters.insert(Waiter {
            generation,
            origin: origin.index(),
            number: if urgent { 0 } else { self.numbers },
            who,
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

    /// Leaves the queue. A dial that was started for it alone is cancelled. `None`: it had been served.
    pub fn cancel(&mut self, waiter: WaiterId) -> Option<W> {
        let index = waiter.index as usize;
        let found = self.waiters.get(index)?;
        if found.generation != waiter.generation {
            return None;
        }
        let own = found.dial.and_then(|dial| self.find(dial));
        let own = own.filter(|&dial| self.slots[dial].open.is_none());
        let at = found.origin;
        let origin = self.origins.at(at);
        let (dials, before) = (origin.dials.len(), origin.wanted_dials());
        let who = self.unqueue(index);
        let origin = self.origins.at(at);
        if dials > origin.wanted_dials() {
            // More than were wanted before: those were ordered ahead of need.
            let newest = origin.dials.first().filter(|_| dials == before);
            if let Some(dial) = own.or(newest) {
                self.cancel_dial(dial);
            }
        }
        Some(who)
    }

    /// For whom a dial was begun, if that one still waits: its terms are the dial's.
    pub fn dialled_for(&self, slot: SlotId) -> Option<&W> {
        let id = self.slots[self.find(slot)?].begun_for?;
        self.waiter(id).map(|waiter| &waiter.who)
    }

    /// A dial has succeeded. The connection takes `capacity` exchanges at once.
    pub fn dialled(&mut self, slot: SlotId, conn: C, capacity: u32, now: Instant) {
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
        // Capped by the capacity of the previous connection until the server announces its limit.
        let capacity = capacity.max(1).min(entry.share as u32);
        entry.share = capacity as usize;
        self.slots[index].open = Some(Open {
            conn,
            leases: 0,
            capacity,
            exchanges: 0,
            retired: false,
            listed: false,
            resting: false,
            since: now,
            idle_since: now,
        });
        self.make_available(index, now);
        self.serve(index);
        if capacity > 1 {
            self.cancel_surplus_dials(origin);
        }
    }

    /// A dial has failed. Returned is the waiter for whom it was begun, unless that one may expect
    /// another's: cancel it, or let it wait for another attempt, which the next `next_action` starts.
    pub fn dial_failed(&mut self, slot: SlotId) -> Option<(WaiterId, &W)> {
        let index = self.find(slot)?;
        let (origin, id) = (self.slots[index].origin, self.slots[index].begun_for);
        // Waiters that shared this dial now get one each; otherwise the last would wait for all retries.
        self.origins.at(origin).share = 1;
        self.free(index);
        if self.origins.peek(origin)?.queued.len() == 0 {
            return None;
        }
        let waiter = self.waiter(id?)?;
        Some((id?, &waiter.who))
    }

    /// An exchange is over and its connection can carry another.
    pub fn release(&mut self, slot: SlotId, now: Instant) {
        let Some(index) = self.find(slot) else {
            return;
        };
        let Some(open) = &mut self.slots[index].open else {
            return;
        };
        open.leases = open.leases.saturating_sub(1);
        if open.retired || self.closed || self.is_too_old(index, now) || self.is_owed(index) {
            return self.retire(slot);
        }
        self.make_available(index, now);
        self.serve(index);
    }

    /// The connection, or the attempt to open it, is gone.
    pub fn remove(&mut self, slot: SlotId) {
        if let Some(index) = self.find(slot) {
            self.free(index);
        }
    }

    /// No further exchange may begin on it (GOAWAY): it closes when those under way are over.
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
        if std::mem::take(&mut open.listed) {
            let available = &mut self.origins.at(*origin).available;
            available.remove(&mut self.slots, index);
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
            // The capacity of a connection is known.
            _ => n.div_ceil(found.share),
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

    /// Time at which `expire` has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        let oldest = self.slots.get(self.idle.first()?)?.open.as_ref()?;
        Some(oldest.idle_since + self.limits.keepalive_expiry?)
    }

    /// Closes what is idle, cancels what is being opened, and takes nobody any more; connections in use
    /// close when they are released. Returns those who waited.
    pub fn close(&mut self) -> Vec<W> {
        self.closed = true;
        let waiting: Vec<_> = self.waiters.iter().map(|(index, _)| index).collect();
        let waiting = waiting
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
        waiting
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action<C, W>> {
        if self.unsettled {
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
        let leaves = !open.is_available() && std::mem::take(&mut open.listed);
        if std::mem::take(&mut open.resting) {
            self.idle.remove(&mut self.slots, index);
            self.origins.at(origin).idle -= 1;
        }
        if leaves {
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
                let who = self.unqueue(waiter);
                self.actions.push_back(Action::Assign(lease, who));
            }
        }
        if self.idle.len() > self.limits.max_keepalive
            && let Some(oldest) = self.idle.first()
        {
            self.drop_slot(oldest);
        }
        // An idle connection here can make room for another origin.
        self.unsettled = true;
    }

    /// Updates the lists of the connection according to its leases.
    fn make_available(&mut self, index: usize, now: Instant) {
        let Slot { origin, open, .. } = &mut self.slots[index];
        let (origin, Some(open)) = (*origin, open) else {
            return;
        };
        let rests = open.leases == 0;
        if rests {
            open.idle_since = now;
        }
        let joins = open.is_available() && !std::mem::replace(&mut open.listed, true);
        let lies_down = rests && !std::mem::replace(&mut open.resting, true);
        if joins {
            let available = &mut self.origins.at(origin).available;
            available.push_front(&mut self.slots, index);
        }
        if lies_down {
            self.idle.push_back(&mut self.slots, index);
            self.origins.at(origin).idle += 1;
        }
    }

    /// Forgets an idle connection and has it closed.
    fn drop_slot(&mut self, index: usize) {
        if let Some(open) = self.free(index) {
            self.actions.push_back(Action::Close(open.conn));
        }
    }

    fn free(&mut self, index: usize) -> Option<Open<C>> {
        let slot = &self.slots[index];
        let entry = self.origins.at(slot.origin);
        let (origin, state) = (slot.origin, slot.open.as_ref());
        let state = state.map(|open| (open.listed, open.resting));
        if let Some((listed, resting)) = state {
            entry.open -= 1;
            if listed {
                entry.available.remove(&mut self.slots, index);
            }
            if resting {
                entry.idle -= 1;
                self.idle.remove(&mut self.slots, index);
            }
        } else {
            self.dialling -= 1;
            entry.dials.remove(&mut self.slots, index);
        }
        let removed = self.slots.try_remove(index);
        self.assign_dials(origin);
        self.unsettled = true;
        removed.and_then(|slot| slot.open)
    }

    fn is_outdated(&self, index: usize, now: Instant) -> bool {
        let Some(open) = &self.slots[index].open else {
            return false;
        };
        let idle = now.saturating_duration_since(open.idle_since);
        let has_expired =
            open.leases == 0 && (self.limits.keepalive_expiry).is_some_and(|expiry| idle >= expiry);
        has_expired || self.is_too_old(index, now)
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
        let who = self.waiters.remove(index).who;
        self.assign_dials(origin);
        who
    }

    fn waiter(&self, id: WaiterId) -> Option<&Waiter<W>> {
        let waiter = self.waiters.get(id.index as usize)?;
        (waiter.generation == id.generation).then_some(waiter)
    }

    /// Somebody of an origin without any connection has waited longer than everybody here, and no
    /// connection can be opened: without this an origin under load would keep its own for ever.
    fn is_owed(&self, index: usize) -> bool {
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

    /// Starts dials for those who wait, as long as there is room, each origin in its turn.
    fn refill(&mut self) {
        self.unsettled = false;
        while !self.closed
            && let Some(origin) = self.origins.next_needy()
        {
            if self.slots.len() >= self.limits.max_connections && !self.make_room(origin) {
                return;
            }
            self.dial(origin);
            self.origins.rotate(origin);
        }
    }

    /// At the client-wide limit: what another origin does not need gives way.
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
        let generation = self.next_generation();
        let first = self.origins.at(origin).queued.first();
        let begun_for = first.map(|first| WaiterId {
            index: first as u32,
            generation: self.waiters[first].generation,
        });
        let index = self.slots.insert(Slot {
            generation,
            origin,
            open: None,
            begun_for,
            links: [Links::default(); 2],
        });
        if let Some(first) = first {
            self.waiters[first].dial = Some(self.slot_id(index));
        }
        self.dialling += 1;
        self.origins
            .at(origin)
            .dials
            .push_front(&mut self.slots, index);
        self.assign_dials(origin);
        let id = self.origins.id(origin);
        self.actions
            .push_back(Action::Dial(self.slot_id(index), id));
    }
}
