//! Origins of a pool: their connections and waiters, and their demand for more connections.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use slab::Slab;

use super::list::{Links, List, Node};
use super::slot::{AVAILABLE, DIALS};
use super::types::{OriginId, PoolLimits};

/// Number of origins above which unused ones are removed.
const KEPT_ORIGINS: usize = 1024;
/// Size of the cache of keys, which is indexed by their address.
const RECENT: usize = 16;

const QUEUE: usize = 0;
const SURPLUS: usize = 1;

/// Demand of an origin for connections within the client-wide limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Demand {
    #[default]
    Satisfied,
    /// The origin has more waiters than its dials will serve, and is below the limit per host.
    Wanting,
    /// The origin is `Wanting` and has no connection.
    Starved,
}

pub(super) struct Origin<K> {
    pub(super) key: Arc<K>,
    generation: u32,
    /// Connections below their capacity, the most recently used first.
    pub(super) available: List<AVAILABLE>,
    /// Dials in progress, the newest first.
    pub(super) dials: List<DIALS>,
    pub(super) open: usize,
    pub(super) idle: usize,
    /// Open connections whose capacity the server has not announced yet. Each carries one exchange.
    pub(super) provisional: usize,
    /// Concurrent exchanges that a dialled connection is expected to carry; at least one.
    pub(super) expected_capacity: usize,
    /// The first waiters in order of arrival: those that the dials are expected to serve. `queued` has the others.
    pub(super) expecting: List<0>,
    pub(super) queued: List<0>,
    demand: Demand,
    /// Links in the list of origins that have more dials than their waiters need.
    is_surplus: bool,
    links: [Links; 2],
}

impl<K> Origin<K> {
    /// Connections, those being opened included.
    pub(super) fn slots(&self) -> usize {
        self.open + self.dials.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.expecting.len() + self.queued.len()
    }

    /// Waiters that the dials and the provisional connections will serve.
    pub(super) fn expected(&self) -> usize {
        let of_dials = self.dials.len().saturating_mul(self.expected_capacity);
        of_dials.saturating_add(self.expected_of_provisional())
    }

    /// Waiters that the provisional connections will serve. Each of these connections carries an exchange already.
    fn expected_of_provisional(&self) -> usize {
        self.provisional.saturating_mul(self.expected_capacity - 1)
    }

    /// Dials needed to serve all waiters.
    pub(super) fn wanted_dials(&self) -> usize {
        let waiting = self.waiting();
        let unserved = waiting.saturating_sub(self.expected_of_provisional());
        unserved.div_ceil(self.expected_capacity)
    }

    pub(super) fn first_waiter(&self) -> Option<usize> {
        self.expecting.first().or_else(|| self.queued.first())
    }

    fn is_unused(&self) -> bool {
        self.slots() == 0 && self.waiting() == 0
    }

    fn current_demand(&self, limits: &PoolLimits) -> Demand {
        let has_room = self.slots() < limits.max_connections_per_host;
        match self.slots() {
            _ if self.waiting() <= self.expected() || !has_room => Demand::Satisfied,
            0 => Demand::Starved,
            _ => Demand::Wanting,
        }
    }
}

impl<K, const LIST: usize> Node<LIST> for Origin<K> {
    fn links(&mut self) -> &mut Links {
        &mut self.links[LIST]
    }
}

pub(super) struct Origins<K> {
    slab: Slab<Origin<K>>,
    by_key: HashMap<Arc<K>, OriginId>,
    recent: [Option<OriginId>; RECENT],
    starved: List<QUEUE>,
    wanting: List<QUEUE>,
    surplus: List<SURPLUS>,
    generation: u32,
    sweep_at: usize,
}

impl<K> Default for Origins<K> {
    fn default() -> Self {
        Self {
            slab: Slab::new(),
            by_key: HashMap::new(),
            recent: [None; RECENT],
            starved: List::default(),
            wanting: List::default(),
            surplus: List::default(),
            generation: 0,
            sweep_at: KEPT_ORIGINS,
        }
    }
}

impl<K: Eq + Hash> Origins<K> {
    pub(super) fn intern(&mut self, key: &Arc<K>, expected_capacity: u32) -> OriginId {
        let slot = (Arc::as_ptr(key).addr() >> 4) % RECENT;
        if let Some(id) = self.recent[slot]
            && self
                .get(id)
                .is_some_and(|origin| Arc::ptr_eq(&origin.key, key))
        {
            return id;
        }
        let existing = self.by_key.get(key).copied();
        let id = existing.unwrap_or_else(|| self.add(key, expected_capacity));
        self.recent[slot] = Some(id);
        id
    }

    fn add(&mut self, key: &Arc<K>, expected_capacity: u32) -> OriginId {
        if self.slab.len() >= self.sweep_at {
            self.sweep();
        }
        self.generation = self.generation.wrapping_add(1);
        let index = self.slab.insert(Origin {
            key: Arc::clone(key),
            generation: self.generation,
            available: List::default(),
            dials: List::default(),
            open: 0,
            idle: 0,
            provisional: 0,
            expected_capacity: expected_capacity.max(1) as usize,
            expecting: List::default(),
            queued: List::default(),
            demand: Demand::default(),
            is_surplus: false,
            links: [Links::default(); 2],
        });
        let id = self.id(index);
        self.by_key.insert(Arc::clone(key), id);
        id
    }

    /// Removes unused origins. The amortised cost per added origin is constant.
    fn sweep(&mut self) {
        let by_key = &mut self.by_key;
        self.slab.retain(|_, origin| {
            let is_used = !origin.is_unused();
            if !is_used {
                by_key.remove(&origin.key);
            }
            is_used
        });
        self.sweep_at = KEPT_ORIGINS.max(2 * self.slab.len());
    }

    pub(super) fn get(&self, id: OriginId) -> Option<&Origin<K>> {
        let origin = self.slab.get(id.index())?;
        (origin.generation == id.generation).then_some(origin)
    }

    pub(super) fn peek(&self, index: usize) -> Option<&Origin<K>> {
        self.slab.get(index)
    }

    /// An origin that has a slot or a waiter, and therefore exists.
    pub(super) fn at(&mut self, index: usize) -> &mut Origin<K> {
        &mut self.slab[index]
    }

    pub(super) fn id(&self, index: usize) -> OriginId {
        OriginId {
            index: index as u32,
            generation: self.slab[index].generation,
        }
    }

    /// Origins in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Origin<K>> {
        let all = self.slab.iter().map(|(_, origin)| origin);
        all.filter(|origin| !origin.is_unused())
    }

    /// Call this when the number of waiters, dials or connections of an origin has changed.
    pub(super) fn reconsider(&mut self, index: usize, limits: &PoolLimits) {
        let origin = &mut self.slab[index];
        let demand = origin.current_demand(limits);
        let before = std::mem::replace(&mut origin.demand, demand);
        let is_surplus = origin.dials.len() > origin.wanted_dials();
        let was_surplus = std::mem::replace(&mut origin.is_surplus, is_surplus);
        if demand != before {
            let Self {
                slab,
                starved,
                wanting,
                ..
            } = self;
            if let Some(queue) = queue_of(starved, wanting, before) {
                queue.remove(slab, index);
            }
            if let Some(queue) = queue_of(starved, wanting, demand) {
                queue.push_back(slab, index);
            }
        }
        match (was_surplus, is_surplus) {
            (false, true) => self.surplus.push_back(&mut self.slab, index),
            (true, false) => self.surplus.remove(&mut self.slab, index),
            _ => {}
        }
    }

    /// The origin that may open the next connection.
    pub(super) fn next_to_dial(&self) -> Option<usize> {
        self.starved.first().or_else(|| self.wanting.first())
    }

    /// Moves an origin that needs more connections behind the others.
    pub(super) fn rotate(&mut self, index: usize) {
        if self.slab[index].demand == Demand::Wanting {
            self.wanting.remove(&mut self.slab, index);
            self.wanting.push_back(&mut self.slab, index);
        }
    }

    pub(super) fn first_starved(&self) -> Option<usize> {
        self.starved.first()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// An origin with a dial that no waiter needs.
    pub(super) fn first_surplus(&self) -> Option<usize> {
        self.surplus.first()
    }
}

fn queue_of<'a>(
    starved: &'a mut List<QUEUE>,
    wanting: &'a mut List<QUEUE>,
    demand: Demand,
) -> Option<&'a mut List<QUEUE>> {
    match demand {
        Demand::Satisfied => None,
        Demand::Wanting => Some(wanting),
        Demand::Starved => Some(starved),
    }
}
