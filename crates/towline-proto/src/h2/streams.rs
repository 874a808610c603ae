//! The streams of a connection: reused slots, indexed by stream identifier.

use super::stream::Stream;
use super::window::{RecvWindow, SendWindow};

/// The slot of a stream in its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKey(pub(super) u32);

/// Number of reset streams that are remembered individually.
const MAX_REMEMBERED: usize = 128;

/// An idle connection keeps no more slots than this.
const MAX_IDLE_SLOTS: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free: Vec<u32>,
    index: Index,
}

impl Streams {
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn find(&self, id: u32) -> Option<StreamKey> {
        self.index.find(id).map(StreamKey)
    }

    #[inline]
    pub fn get(&self, key: StreamKey) -> &Stream {
        &self.slots[key.0 as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, key: StreamKey) -> &mut Stream {
        &mut self.slots[key.0 as usize]
    }

    pub fn insert(&mut self, id: u32, recv: RecvWindow, send: SendWindow) -> StreamKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Stream::default());
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize].begin(id, recv, send);
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
    pub fn iter(&self) -> impl Iterator<Item = StreamKey> + use<> {
        let used: Vec<StreamKey> = (0..self.slots.len() as u32)
            .filter(|&slot| self.slots[slot as usize].id != 0)
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
struct Index {
    /// Identifier (0: empty) and slot. The length is a power of two, at least twice the streams.
    cells: Vec<(u32, u32)>,
}

impl Index {
    #[inline]
    fn mask(&self) -> usize {
        self.cells.len().wrapping_sub(1)
    }

    /// Distance of a cell from the home position of its stream.
    #[inline]
    fn distance(&self, id: u32, cell: usize) -> usize {
        cell.wrapping_sub((id >> 1) as usize) & self.mask()
    }

    #[inline]
    fn find(&self, id: u32) -> Option<u32> {
        self.cell_of(id).map(|cell| self.cells[cell].1)
    }

    #[inline]
    fn cell_of(&self, id: u32) -> Option<usize> {
        if id == 0 || self.cells.is_empty() {
            return None;
        }
        let mut cell = (id >> 1) as usize & self.mask();
        let mut walked = 0;
        loop {
            match self.cells[cell].0 {
                found if found == id => return Some(cell),
                // The stream would be in this cell.
                0 => return None,
                other if self.distance(other, cell) < walked => return None,
                _ => cell = (cell + 1) & self.mask(),
            }
            walked += 1;
        }
    }

    fn insert(&mut self, id: u32, slot: u32, count: usize) {
        if self.cells.len() < count * 2 {
            let cells = vec![(0, 0); (count * 2).next_power_of_two().max(8)];
            for (id, slot) in std::mem::replace(&mut self.cells, cells) {
                if id != 0 {
                    self.put((id, slot));
                }
            }
        }
        self.put((id, slot));
    }

    /// An entry nearer to its home is displaced by one that is farther from its own.
    fn put(&mut self, mut moved: (u32, u32)) {
        let mut cell = (moved.0 >> 1) as usize & self.mask();
        while self.cells[cell].0 != 0 {
            if self.distance(self.cells[cell].0, cell) < self.distance(moved.0, cell) {
                std::mem::swap(&mut self.cells[cell], &mut moved);
            }
            cell = (cell + 1) & self.mask();
        }
        self.cells[cell] = moved;
    }

    /// Empties a cell and shifts back the displaced entries after it.
    fn remove(&mut self, id: u32) {
        let Some(mut hole) = self.cell_of(id) else {
            return;
        };
        loop {
            let next = (hole + 1) & self.mask();
            let moved = self.cells[next];
            if moved.0 == 0 || self.distance(moved.0, next) == 0 {
                break;
            }
            self.cells[hole] = moved;
            hole = next;
        }
        self.cells[hole] = (0, 0);
    }
}

/// Streams that we reset: until the peer has received the reset (RFC 9113 5.1) it continues to send DATA within
/// the windows. Identifiers dropped from the list raise a mark: every stream below it is taken for a reset one,
/// and the windows of the dropped ones are summed up.
#[derive(Debug, Default)]
pub(super) struct LocalResets {
    ids: Vec<(u32, u64)>,
    /// Position of the next entry when the list is full.
    next: usize,
    mark: u32,
    below_mark: u64,
}

impl LocalResets {
    /// `window`: the bytes that the peer may still send.
    pub fn add(&mut self, id: u32, window: u64) {
        if self.ids.len() < MAX_REMEMBERED {
            self.ids.push((id, window));
            return;
        }
        let (old, rest) = std::mem::replace(&mut self.ids[self.next], (id, window));
        self.mark = self.mark.max(old);
        self.below_mark = self.below_mark.saturating_add(rest);
        self.next = (self.next + 1) % MAX_REMEMBERED;
    }

    /// Removes a stream whose reset the peer has received. The mark is unchanged.
    pub fn remove(&mut self, id: u32) {
        if let Some(entry) = self.ids.iter_mut().find(|entry| entry.0 == id) {
            // No stream has this identifier.
            *entry = (0, 0);
        }
    }

    pub fn has(&self, id: u32) -> bool {
        id <= self.mark || self.ids.iter().any(|entry| entry.0 == id)
    }

    /// Bytes that the peer may still send on it; `None`: it is not one of these streams.
    pub fn window(&mut self, id: u32) -> Option<&mut u64> {
        match self.ids.iter_mut().find(|entry| entry.0 == id) {
            Some((_, window)) => Some(window),
            None => (id <= self.mark).then_some(&mut self.below_mark),
        }
    }
}

/// Streams that the peer reset recently: some clients repeat the reset for each frame that still reaches them
/// there.
#[derive(Debug, Default)]
pub(super) struct PeerResets {
    ids: Vec<u32>,
    /// Position of the next entry when the list is full.
    next: usize,
}

impl PeerResets {
    pub fn add(&mut self, id: u32) {
        if self.ids.len() < MAX_REMEMBERED {
            self.ids.push(id);
            return;
        }
        self.ids[self.next] = id;
        self.next = (self.next + 1) % MAX_REMEMBERED;
    }

    pub fn has(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Compares with a map, on identifiers that collide.
    #[test]
    fn the_index_agrees_with_a_map() {
        let mut index = Index::default();
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
        let mut streams = Streams::default();
        let begin = |streams: &mut Streams, id| {
            streams.insert(id, RecvWindow::default(), SendWindow::default())
        };
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

    #[test]
    fn ids_dropped_from_the_list_are_covered_by_the_mark() {
        let mut resets = LocalResets::default();
        let ids = || (1..=4 * MAX_REMEMBERED as u32).step_by(2);
        for id in ids() {
            assert!(!resets.has(id) && resets.window(id).is_none());
            resets.add(id, 10);
        }
        assert!(ids().all(|id| resets.has(id)));
        let last = 4 * MAX_REMEMBERED as u32 - 1;
        assert_eq!(resets.window(last), Some(&mut 10));
        assert_eq!(resets.window(1), Some(&mut (10 * MAX_REMEMBERED as u64)));
        assert!(!resets.has(last + 2));
    }
}
