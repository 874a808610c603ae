//! What a face keeps for each exchange of a connection.
//!
//! HTTP/1 has one at a time, which stands here without an allocation; HTTP/2 has as many as its peer may
//! open, in the order of their numbers.

use towline_proto::StreamId;

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
            _ => self.place(id).ok().map(|place| &self.more[place].1),
        }
    }

    pub fn get_mut(&mut self, id: StreamId) -> Option<&mut T> {
        let place = self.place(id);
        match &mut self.first {
            Some((first, value)) if *first == id => Some(value),
            _ => Some(&mut self.more[place.ok()?].1),
        }
    }

    /// Keeps `value` for `id`; what stood there comes back.
    pub fn insert(&mut self, id: StreamId, value: T) -> Option<T> {
        match &mut self.first {
            Some((first, old)) if *first == id => return Some(std::mem::replace(old, value)),
            None if self.more.is_empty() => {
                self.first = Some((id, value));
                return None;
            }
            _ => {}
        }
        match self.place(id) {
            Ok(place) => Some(std::mem::replace(&mut self.more[place].1, value)),
            Err(place) => {
                self.more.insert(place, (id, value));
                None
            }
        }
    }

    pub fn remove(&mut self, id: StreamId) -> Option<T> {
        if let Some((_, value)) = self.first.take_if(|(first, _)| *first == id) {
            return Some(value);
        }
        let place = self.place(id).ok()?;
        Some(self.more.remove(place).1)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (StreamId, &T)> {
        let all = self.first.iter().chain(&self.more);
        all.map(|(id, value)| (*id, value))
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let all = self.first.iter_mut().chain(&mut self.more);
        all.map(|(_, value)| value)
    }

    /// Everything, and no memory stays.
    pub fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        let Self { first, more } = std::mem::take(self);
        first.into_iter().chain(more).map(|(_, value)| value)
    }

    fn place(&self, id: StreamId) -> Result<usize, usize> {
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
