//! Timers of connections and dials, in a heap that is updated lazily.
//!
//! Every request moves its connection's deadline to later, which costs nothing here. An entry is only the
//! time of the next check; the deadline itself is the connection's (`Connection::deadline`), read when the
//! entry is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::conn::id::ConnId;

#[derive(Default)]
pub(crate) struct TimerQueue {
    heap: BinaryHeap<Reverse<(Instant, ConnId)>>,
}

impl TimerQueue {
    /// Schedules a check of `id`, unless an earlier one is scheduled already (`scheduled_at`).
    pub(crate) fn schedule(&mut self, id: ConnId, scheduled_at: &mut Option<Instant>, at: Instant) {
        if scheduled_at.is_none_or(|earlier| at < earlier) {
            *scheduled_at = Some(at);
            self.heap.push(Reverse((at, id)));
        }
    }

    /// Removes and returns the next entry that is due.
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
        let (mut timers, id, mut scheduled_at) = (TimerQueue::default(), ConnId::new(1, 1), None);
        for ms in 10..1000 {
            timers.schedule(id, &mut scheduled_at, at(ms));
        }
        assert_eq!(timers.len(), 1);
        timers.schedule(id, &mut scheduled_at, at(5));
        assert_eq!(timers.len(), 2);
        assert_eq!(timers.pop_due(at(4)), None);
        assert_eq!(timers.pop_due(at(7)), Some((at(5), id)));
        assert_eq!(timers.pop_due(at(7)), None);
        assert_eq!(timers.pop_due(at(11)), Some((at(10), id)));
    }
}
