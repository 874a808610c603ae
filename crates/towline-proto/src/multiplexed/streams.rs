//! The streams of a connection: reused slots, indexed by stream identifier.

use super::stream::{Number, Stream, Variant};

/// The slot of a stream in its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKey(pub u32);

/// An idle connection keeps no more slots than this.
pub(crate) const MAX_IDLE_SLOTS: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Streams<V: Variant> {
    slots: Vec<Stream<V>>,
    free: Vec<u32>,
    index: Index<V::Id>,
}

impl<V: Variant> Streams<V> {
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn find(&self, id: V::Id) -> Option<StreamKey> {
        self.index.find(id).map(StreamKey)
    }

    #[inline]
    pub fn get(&self, key: StreamKey) -> &Stream<V> {
        &self.slots[key.0 as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, key: StreamKey) -> &mut Stream<V> {
        &mut self.slots[key.0 as usize]
    }

    /// Takes a free slot for the stream `id`, which `begin` initializes.
    pub fn insert(&mut self, id: V::Id, begin: impl FnOnce(&mut Stream<V>)) -> StreamKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Stream::default());
            self.slots.len() as u32 - 1
        });
        begin(&mut self.slots[slot as usize]);
        self.index.insert(id, slot, self.len());
        StreamKey(slot)
    }

    pub fn remove(&mut self, key: StreamKey) {
        let stream = self.get_mut(key);
        let id = stream.id;
        stream.end();
        self.index.remove(id);
        self.free.push(key.0);
    }

    /// Keys of the slots in use.
    pub fn iter(&self) -> impl Iterator<Item = StreamKey> + use<V> {
        let used: Vec<StreamKey> = (0..self.slots.len() as u32)
            .filter(|&slot| self.slots[slot as usize].id != V::Id::NONE)
            .map(StreamKey)
            .collect();
        used.into_iter()
    }

    /// Nothing is allocated.
    pub fn is_unallocated(&self) -> bool {
        self.slots.is_empty()
    }

    /// Frees slots and buffers beyond what is kept for reuse.
    pub fn shrink(&mut self) {
        if self.slots.len() > MAX_IDLE_SLOTS {
            *self = Self::default();
        }
        for slot in &mut self.slots {
            slot.shrink();
        }
    }
}

/// A map of identifiers to slots: open addressing by the identifier itself. Identifiers ascend, so those of
/// concurrent streams do not collide; a peer that chooses colliding ones is bounded by the limit of streams.
///
/// Concurrent streams occupy adjacent cells, in long runs. So cells are kept in the order of their home positions
/// (Robin Hood hashing, Celis 1986): a lookup, or the shift after a removal, stops at the first cell that is at
/// its home and not at the end of the run.
#[derive(Debug, Default)]
struct Index<I> {
    /// Identifier (`NONE`: empty) and slot. The length is a power of two, at least twice the streams.
    cells: Vec<(I, u32)>,
}

impl<I: Number> Index<I> {
    #[inline]
    fn mask(&self) -> usize {
        self.cells.len().wrapping_sub(1)
    }

    /// Distance of a cell from the home position of its stream.
    #[inline]
    fn distance(&self, id: I, cell: usize) -> usize {
        cell.wrapping_sub(id.place()) & self.mask()
    }

    #[inline]
    fn find(&self, id: I) -> Option<u32> {
        self.cell_of(id).map(|cell| self.cells[cell].1)
    }

    #[inline]
    fn cell_of(&self, id: I) -> Option<usize> {
        if id == I::NONE || self.cells.is_empty() {
            return None;
        }
        let mut cell = id.place() & self.mask();
        let mut walked = 0;
        loop {
            match self.cells[cell].0 {
                found if found == id => return Some(cell),
                // The stream would be in this cell.
                empty if empty == I::NONE => return None,
                other if self.distance(other, cell) < walked => return None,
                _ => cell = (cell + 1) & self.mask(),
            }
            walked += 1;
        }
    }

    fn insert(&mut self, id: I, slot: u32, count: usize) {
        if self.cells.len() < count * 2 {
            let cells = vec![(I::NONE, 0); (count * 2).next_power_of_two().max(8)];
            for (id, slot) in std::mem::replace(&mut self.cells, cells) {
                if id != I::NONE {
                    self.put((id, slot));
                }
            }
        }
        self.put((id, slot));
    }

    /// An entry nearer to its home is displaced by one that is farther from its own.
    fn put(&mut self, mut moved: (I, u32)) {
        let mut cell = moved.0.place() & self.mask();
        while self.cells[cell].0 != I::NONE {
            if self.distance(self.cells[cell].0, cell) < self.distance(moved.0, cell) {
                std::mem::swap(&mut self.cells[cell], &mut moved);
            }
            cell = (cell + 1) & self.mask();
        }
        self.cells[cell] = moved;
    }

    /// Empties a cell and shifts back the displaced entries after it.
    fn remove(&mut self, id: I) {
        let Some(mut hole) = self.cell_of(id) else {
            return;
        };
        loop {
            let next = (hole + 1) & self.mask();
            let moved = self.cells[next];
            if moved.0 == I::NONE || self.distance(moved.0, next) == 0 {
                break;
            }
            self.cells[hole] = moved;
            hole = next;
        }
        self.cells[hole] = (I::NONE, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Compares with a map, on identifiers that collide.
    #[test]
    fn the_index_agrees_with_a_map() {
        let mut index: Index<u32> = Index::default();
        let mut map = HashMap::new();
        let mut seed = 1_u32;
        for round in 0..20_000_u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let id = (seed >> 20) % 64 * 16 + 1;
            if map.remove(&id).is_some() {
                index.remove(id);
            } else {
                map.insert(id, round);
                index.insert(id, round, map.len());
            }
            for other in (0..64).map(|n| n * 16 + 1) {
                assert_eq!(index.find(other), map.get(&other).copied(), "{other}");
            }
            let taken = index.cells.iter().filter(|cell| cell.0 != 0).count();
            assert_eq!(taken, map.len());
        }
    }

    #[test]
    fn slots_are_reused() {
        let mut streams: Streams<crate::h2::Http2> = Streams::default();
        let begin = |streams: &mut Streams<_>, id| streams.insert(id, |slot| slot.begin(id));
        for id in (1..1000).step_by(2) {
            let at = begin(&mut streams, id);
            let other = begin(&mut streams, id + 1_000_000);
            assert_eq!(streams.find(id), Some(at));
            streams.remove(other);
            streams.remove(at);
            assert_eq!(streams.find(id), None);
        }
        assert_eq!(streams.slots.len(), 2);
    }
}
