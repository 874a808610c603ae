//! Deferred wake-ups: first the waiters with an event, then those whose client has disconnected.
//!
//! A connection that fails leaves as many of the latter as it had streams. They can wait; for the former a client
//! waits.
use std::collections::VecDeque;

use pyo3::prelude::*;
use towline_py_common::task_future::TaskFuture;

/// Maximum cost of the wake-ups of one turn: the woken applications all run before the next turn, which services
/// the other connections.
pub const MAX_WOKEN_PER_TURN: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    Event,
    Disconnect,
}

impl WakeReason {
    /// Cost relative to an event. After a disconnect the application unwinds, ends and frees its objects.
    pub fn cost(self) -> usize {
        match self {
            Self::Event => 1,
            Self::Disconnect => 4,
        }
    }
}

/// Futures to complete.
#[derive(Default)]
pub struct WakeQueue {
    events: VecDeque<Py<TaskFuture>>,
    disconnects: VecDeque<Py<TaskFuture>>,
}

impl WakeQueue {
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.disconnects.is_empty()
    }

    /// Whether a new waiter would be the next one to wake.
    pub fn is_next(&self, reason: WakeReason) -> bool {
        match reason {
            WakeReason::Event => self.events.is_empty(),
            WakeReason::Disconnect => self.is_empty(),
        }
    }

    pub fn add(&mut self, futures: Vec<Py<TaskFuture>>, reason: WakeReason) {
        match reason {
            WakeReason::Event => self.events.extend(futures),
            WakeReason::Disconnect => self.disconnects.extend(futures),
        }
    }

    /// Takes the futures of one turn, and their cost. At least one disconnect is taken, however many events wait.
    pub fn take(&mut self) -> (Vec<Py<TaskFuture>>, usize) {
        let mut taken: Vec<_> = self.disconnects.pop_front().into_iter().collect();
        let mut cost = taken.len() * WakeReason::Disconnect.cost();
        let queues = [
            (&mut self.events, WakeReason::Event),
            (&mut self.disconnects, WakeReason::Disconnect),
        ];
        for (futures, reason) in queues {
            while cost < MAX_WOKEN_PER_TURN
                && let Some(future) = futures.pop_front()
            {
                cost += reason.cost();
                taken.push(future);
            }
        }
        (taken, cost)
    }

    /// Takes everything, when no turn will follow.
    pub fn take_all(&mut self) -> Vec<Py<TaskFuture>> {
        let Self {
            events,
            disconnects,
        } = std::mem::take(self);
        events.into_iter().chain(disconnects).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Py<TaskFuture>> {
        self.events.iter().chain(&self.disconnects)
    }
}
