//! State of each exchange of a connection, by stream id.
//!
//! HTTP/1 has one exchange at a time, which needs no allocation; HTTP/2 has as many as its peer may open,
//! sorted by stream id.

use towline_proto::StreamId;

/// Map from stream id to the front end's state of an exchange.
pub struct StreamMap<T> {
    first: Option<(StreamId, T)>,
    more: Vec<(StreamId, T)>,
}

impl<T> Default for StreamMap<T> {
    fn default() -> Self {
        Self {
            first: None,
            more: Vec::new(),
        }
    }
}

impl<T> StreamMap<T> {
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, id: StreamId) -> Option<&T> {
        match &self.first {
            Some((first, value)) if *first == id => Some(value),
            _ => self.position(id).ok().map(|index| &self.more[index].1),
        }
    }

    pub fn get_mut(&mut self, id: StreamId) -> Option<&mut T> {
        let index = self.position(id);
        match &mut self.first {
            Some((first, value)) if *first == id => Some(value),
            _ => Some(&mut self.more[index.ok()?].1),
        }
    }

    /// Inserts `value` for `id` and returns the previous value.
    pub fn insert(&mut self, id: StreamId, value: T) -> Option<T> {
        match &mut self.first {
            Some((first, old)) if *first == id => return Some(std::mem::replace(old, value)),
            None if self.more.is_empty() => {
                self.first = Some((id, value));
                return None;
            }
            _ => {}
        }
        match self.position(id) {
            Ok(index) => Some(std::mem::replace(&mut self.more[index].1, value)),
            Err(index) => {
                self.more.insert(index, (id, value));
                None
            }
        }
    }

    pub fn remove(&mut self, id: StreamId) -> Option<T> {
        if let Some((_, value)) = self.first.take_if(|(first, _)| *first == id) {
            return Some(value);
        }
        let index = self.position(id).ok()?;
        Some(self.more.remove(index).1)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (StreamId, &T)> {
        let all = self.first.iter().chain(&self.more);
        all.map(|(id, value)| (*id, value))
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let all = self.first.iter_mut().chain(&mut self.more);
        all.map(|(_, value)| value)
    }

    /// Removes all values and frees the memory.
    pub fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        let Self { first, more } = std::mem::take(self);
        first.into_iter().chain(more).map(|(_, value)| value)
    }

    fn position(&self, id: StreamId) -> Result<usize, usize> {
        self.more.binary_search_by_key(&id, |(other, _)| *other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exchange_is_found_until_it_is_removed() {
        let mut streams = StreamMap::default();
        for id in [1, 7, 3, 5] {
            assert_eq!(streams.insert(StreamId(id), id), None);
        }
        assert_eq!(streams.insert(StreamId(5), 50), Some(5));
        assert_eq!(streams.insert(StreamId(1), 10), Some(1));
        let found = |streams: &StreamMap<u64>| {
            streams
                .iter()
                .map(|(id, &value)| (id.0, value))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&streams), [(1, 10), (3, 3), (5, 50), (7, 7)]);
        assert_eq!(streams.remove(StreamId(1)), Some(10));
        assert_eq!(streams.remove(StreamId(1)), None);
        assert_eq!(streams.get(StreamId(7)), Some(&7));
        assert_eq!(streams.insert(StreamId(9), 9), None);
        assert_eq!(streams.len(), 4);
        assert_eq!(streams.take().collect::<Vec<_>>(), [3, 50, 7, 9]);
        assert!(streams.is_empty());
    }

    #[test]
    fn one_exchange_at_a_time_allocates_nothing() {
        let mut streams = StreamMap::default();
        for id in 1..100 {
            streams.insert(StreamId(id), id);
            assert_eq!(streams.more.capacity(), 0);
            assert_eq!(streams.remove(StreamId(id)), Some(id));
        }
    }
}
