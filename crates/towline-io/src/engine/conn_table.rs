//! All connections of an engine, found by index and held to their generation.

use slab::Slab;

use crate::conn::Peer;
use crate::conn::id::ConnId;

/// Where a connection is.
pub(crate) enum Place<S> {
    Here(Box<Peer<S>>),
    /// Checked out to another thread.
    Away(Away),
}

/// What a connection that is checked out has missed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Away {
    pub(crate) news: News,
    /// The promised look at its deadline fell into its absence.
    pub(crate) looked: bool,
    pub(crate) close_asked: bool,
    /// Set for one that is shared: whether it stands in the ready list, whose user takes it for a visit.
    pub(crate) queued: Option<bool>,
}

/// What the poll says about a connection.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct News {
    pub(crate) readable: bool,
    pub(crate) closed: bool,
    pub(crate) writable: bool,
}

struct Slot<S> {
    generation: u32,
    place: Place<S>,
}

pub(crate) struct Table<S> {
    slots: Slab<Slot<S>>,
    generation: u32,
}

impl<S> Table<S> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Slab::new(),
            generation: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The name that the next `insert` must use.
    pub(crate) fn next_id(&self) -> ConnId {
        ConnId::new(self.slots.vacant_key(), self.generation)
    }

    pub(crate) fn insert(&mut self, peer: Box<Peer<S>>) {
        let generation = self.generation;
        // The two largest mark the engine's own tokens.
        self.generation = (generation + 1) % (u32::MAX - 1);
        let place = Place::Here(peer);
        self.slots.insert(Slot { generation, place });
    }

    pub(crate) fn place(&mut self, id: ConnId) -> Option<&mut Place<S>> {
        let slot = self.slots.get_mut(id.index())?;
        (ConnId::new(id.index(), slot.generation) == id).then_some(&mut slot.place)
    }

    pub(crate) fn peer(&mut self, id: ConnId) -> Option<&mut Peer<S>> {
        match self.place(id)? {
            Place::Here(peer) => Some(peer),
            Place::Away(_) => None,
        }
    }

    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Place<S>> {
        self.place(id)?;
        self.slots.try_remove(id.index()).map(|slot| slot.place)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> {
        let id = |(index, slot): (usize, &Slot<S>)| ConnId::new(index, slot.generation);
        self.slots.iter().map(id)
    }
}
