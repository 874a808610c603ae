//! All connections of an engine, found by index and checked by generation.

use slab::Slab;

use crate::conn::Conn;
use crate::conn::id::ConnId;

/// A connection, or what is recorded for it while it is checked out.
pub(crate) enum Slot<S> {
    Attached(Box<Conn<S>>),
    /// Checked out to another thread.
    CheckedOut(CheckedOut),
}

/// Events recorded for a connection while it is checked out.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CheckedOut {
    pub(crate) readiness: Readiness,
    /// The timer of the connection has fired.
    pub(crate) timer_fired: bool,
    pub(crate) drain_requested: bool,
    /// The socket is not registered in the poll.
    pub(crate) unwatched: bool,
    /// Whether it is in the ready list; `Some` only for a shared connection, which is serviced there.
    pub(crate) queued: Option<bool>,
}

/// Readiness of a connection, as reported by the poll.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) closed: bool,
    pub(crate) writable: bool,
}

struct Entry<S> {
    generation: u32,
    slot: Slot<S>,
}

pub(crate) struct ConnTable<S> {
    entries: Slab<Entry<S>>,
    generation: u32,
}

impl<S> ConnTable<S> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Slab::new(),
            generation: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Id of the connection that the next `insert` adds.
    pub(crate) fn next_id(&self) -> ConnId {
        ConnId::new(self.entries.vacant_key(), self.generation)
    }

    pub(crate) fn insert(&mut self, conn: Box<Conn<S>>) {
        let generation = self.generation;
        self.generation = ConnId::next_generation(generation);
        let slot = Slot::Attached(conn);
        self.entries.insert(Entry { generation, slot });
    }

    pub(crate) fn slot(&mut self, id: ConnId) -> Option<&mut Slot<S>> {
        let entry = self.entries.get_mut(id.index())?;
        (ConnId::new(id.index(), entry.generation) == id).then_some(&mut entry.slot)
    }

    pub(crate) fn conn(&mut self, id: ConnId) -> Option<&mut Conn<S>> {
        match self.slot(id)? {
            Slot::Attached(conn) => Some(conn),
            Slot::CheckedOut(_) => None,
        }
    }

    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Slot<S>> {
        self.slot(id)?;
        self.entries.try_remove(id.index()).map(|entry| entry.slot)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> {
        let id = |(index, entry): (usize, &Entry<S>)| ConnId::new(index, entry.generation);
        self.entries.iter().map(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that an idle connection of HTTP/1 has in memory, beside the front end's state.
    #[test]
    fn a_connection_is_one_small_block() {
        let bytes = size_of::<Conn<()>>();
        assert!(bytes <= 616, "{bytes} bytes for each connection");
    }
}
