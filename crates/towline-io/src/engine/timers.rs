//! When which connection must be looked at, at the latest.
//!
//! A heap that is lazy on purpose: every request moves its connection's deadline to later, and that
//! costs nothing here. An entry is only the promise to look again at that time; the true deadline is
//! the connection's own (`Connection::deadline`), asked when the entry's time has come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::conn::id::ConnId;

#[derive(Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, ConnId)>>,
}

impl Deadlines {
    /// Promises a look at `id`. `looked` is the connection's own earliest promise so far.
    pub(crate) fn promise(&mut self, id: ConnId, looked: &mut Option<Instant>, at: Instant) {
        if looked.is_none_or(|earlier| at < earlier) {
            *looked = Some(at);
            self.heap.push(Reverse((at, id)));
        }
    }

    /// The next entry whose time has come.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, ConnId)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_later_deadline_costs_no_entry() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let (mut deadlines, id, mut looked) = (Deadlines::default(), ConnId::new(1, 1), None);
        for ms in 10..1000 {
            deadlines.promise(id, &mut looked, at(ms));
        }
        assert_eq!(deadlines.len(), 1);
        deadlines.promise(id, &mut looked, at(5));
        assert_eq!(deadlines.len(), 2);
        assert_eq!(deadlines.pop_due(at(4)), None);
        assert_eq!(deadlines.pop_due(at(7)), Some((at(5), id)));
        assert_eq!(deadlines.pop_due(at(7)), None);
        assert_eq!(deadlines.pop_due(at(11)), Some((at(10), id)));
    }
}
