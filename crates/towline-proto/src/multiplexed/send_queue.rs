//! The queue of streams that can send, the most urgent first (RFC 9218).

use super::priority::Priority;
use super::stream::{QueueLink, Variant};
use super::streams::{StreamKey, Streams};

/// Streams that can send, by urgency; each list is linked through the streams themselves. The priority of a stream changes
/// only while it is in no list.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    lists: [Option<List>; 8],
}

#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl SendQueue {
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(Option::is_none)
    }

    pub fn first(&self) -> Option<StreamKey> {
        self.lists
            .iter()
            .flatten()
            .next()
            .map(|list| StreamKey(list.first))
    }

    fn list(&mut self, priority: Priority) -> &mut Option<List> {
        &mut self.lists[usize::from(priority.urgency & 7)]
    }

    /// Appends a stream to the others of its urgency.
    pub fn add<V: Variant>(&mut self, streams: &mut Streams<V>, key: StreamKey) {
        let stream = streams.get_mut(key);
        if std::mem::replace(&mut stream.link.is_queued, true) {
            return;
        }
        stream.link.next = None;
        let list = self.list(stream.priority);
        match list {
            Some(list) => {
                streams.get_mut(StreamKey(list.last)).link.next = Some(key.0);
                list.last = key.0;
            }
            None => {
                *list = Some(List {
                    first: key.0,
                    last: key.0,
                });
            }
        }
    }

    /// Prepends a stream to the others of its urgency, to continue with it.
    pub fn add_first<V: Variant>(&mut self, streams: &mut Streams<V>, key: StreamKey) {
        let stream = streams.get_mut(key);
        let list = self.list(stream.priority);
        stream.link = QueueLink {
            is_queued: true,
            next: list.map(|list| list.first),
        };
        *list = Some(List {
            first: key.0,
            last: list.map_or(key.0, |list| list.last),
        });
    }

    pub fn remove<V: Variant>(&mut self, streams: &mut Streams<V>, key: StreamKey) {
        let stream = streams.get_mut(key);
        let link = std::mem::take(&mut stream.link);
        if !link.is_queued {
            return;
        }
        let next = link.next;
        let list = self.list(stream.priority);
        let Some(List { first, last }) = *list else {
            return;
        };
        if first == key.0 {
            *list = next.map(|first| List { first, last });
            return;
        }
        let mut before = first;
        while let Some(place) = streams.get_mut(StreamKey(before)).link.next {
            if place == key.0 {
                break;
            }
            before = place;
        }
        streams.get_mut(StreamKey(before)).link.next = next;
        if last == key.0 {
            *list = Some(List {
                first,
                last: before,
            });
        }
    }
}
