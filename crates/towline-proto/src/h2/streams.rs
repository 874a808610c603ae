//! The streams of a connection: places that are used again, found by identifier.

use super::stream::Stream;
use super::window::{RecvWindow, SendWindow};

/// Where a stream stands in its connection's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKey(pub(super) u32);

/// Streams that we reset and of which more may be on its way: so many are remembered one by one.
const MAX_REMEMBERED: usize = 128;

/// A connection at rest keeps no more places than this for the next streams.
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

    /// Places in use.
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

    /// Streams of the past may have needed more than is kept for others.
    pub fn shrink(&mut self) {
        if self.slots.len() > MAX_IDLE_SLOTS {
            *self = Self::default();
        }
        for slot in &mut self.slots {
            slot.shrink();
        }
    }
}

/// Identifiers to places: open addressing by the identifier itself. Streams come in order, so those of one
/// time do not meet; a peer that chooses its identifiers so that they do meets the limit of streams.
///
/// Streams of one time stand side by side, a long row without a gap. So cells are kept in the order of their
/// homes (Robin Hood hashing, Celis 1986): whoever looks for a stream, or moves others up behind one that has
/// ended, stops at the first that stands at its home and not at the end of the row.
#[derive(Debug, Default)]
struct Index {
    /// Identifier (0: empty) and place. Its length is a power of two, at least twice the streams.
    cells: Vec<(u32, u32)>,
}

impl Index {
    #[inline]
    fn mask(&self) -> usize {
        self.cells.len().wrapping_sub(1)
    }

    /// How far a stream stands from its home.
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
                // It would stand here.
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

    /// Whoever is nearer to home makes room for who is farther from it.
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

    /// Empties a cell and moves up those that stand behind it for want of their own.
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

/// Streams that we reset: the peer may not know yet (RFC 9113 5.1), and goes on sending DATA as far as the
/// windows allowed that they had. Those that are no longer remembered leave a mark: below it everything is
/// taken for such a stream, and what they might still be sent stands in one sum.
#[derive(Debug, Default)]
pub(super) struct LocalResets {
    ids: Vec<(u32, u64)>,
    /// Where the next one goes, when there are as many as are remembered.
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

    /// The peer does know. What has left a mark stays.
    pub fn remove(&mut self, id: u32) {
        if let Some(entry) = self.ids.iter_mut().find(|entry| entry.0 == id) {
            // No stream has this number.
            *entry = (0, 0);
        }
    }

    pub fn has(&self, id: u32) -> bool {
        id <= self.mark || self.ids.iter().any(|entry| entry.0 == id)
    }

    /// What the peer may still send on it; `None`: it is none of these streams.
    pub fn window(&mut self, id: u32) -> Option<&mut u64> {
        match self.ids.iter_mut().find(|entry| entry.0 == id) {
            Some((_, window)) => Some(window),
            None => (id <= self.mark).then_some(&mut self.below_mark),
        }
    }
}

/// Streams that the peer reset lately: some clients say it again for each frame that still reaches them there.
#[derive(Debug, Default)]
pub(super) struct PeerResets {
    ids: Vec<u32>,
    /// Where the next one goes, when there are as many as are remembered.
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

    /// Against a map, with identifiers that meet.
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
    fn places_are_used_again() {
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
