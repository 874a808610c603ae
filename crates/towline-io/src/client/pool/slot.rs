//! State per connection and per waiter.

use std::time::{Duration, Instant};

use super::list::{Links, Node};
use super::{SlotId, WaiterId};

pub(super) const AVAILABLE: usize = 0;
pub(super) const IDLE: usize = 1;
/// Dials use the list that available connections use later.
pub(super) const DIALS: usize = AVAILABLE;

pub(super) struct Slot<C> {
    pub(super) generation: u32,
    pub(super) origin: usize,
    /// `None` while it is being dialled.
    pub(super) open: Option<Open<C>>,
    /// The waiter that the dial was started for.
    pub(super) started_for: Option<WaiterId>,
    pub(super) links: [Links; 2],
}

pub(super) struct Open<C> {
    pub(super) conn: C,
    pub(super) leases: u32,
    /// Exchanges that it carries at once. `None`: one, until the server has announced how many.
    pub(super) capacity: Option<u32>,
    /// Exchanges started on it so far.
    pub(super) exchanges: u64,
    /// Set when it takes no further exchange.
    pub(super) retired: bool,
    /// Set while it is in its origin's `available`.
    pub(super) is_listed: bool,
    /// Set while it is in the pool's `idle`.
    pub(super) is_idle: bool,
    pub(super) since: Instant,
    pub(super) idle_since: Instant,
    /// The longest idle time that the server has announced.
    pub(super) most_idle: Option<Duration>,
}

impl<C> Open<C> {
    pub(super) fn is_available(&self) -> bool {
        !self.retired && self.leases < self.capacity.unwrap_or(1)
    }

    /// Whether it has been idle for longer than the client or its server allows.
    pub(super) fn has_expired(&self, expiry: Option<Duration>, now: Instant) -> bool {
        let idle = now.saturating_duration_since(self.idle_since);
        let mut limits = [expiry, self.most_idle].into_iter().flatten();
        self.leases == 0 && limits.any(|limit| idle >= limit)
    }
}

impl<C, const LIST: usize> Node<LIST> for Slot<C> {
    fn links(&mut self) -> &mut Links {
        &mut self.links[LIST]
    }
}

pub(super) struct Waiter<W> {
    pub(super) generation: u32,
    pub(super) origin: usize,
    /// Earlier waiters of any origin have smaller numbers.
    pub(super) number: u64,
    pub(super) token: W,
    /// Set while it is in its origin's `expecting`.
    pub(super) expects: bool,
    /// The dial that was started for it.
    pub(super) dial: Option<SlotId>,
    pub(super) links: Links,
}

impl<W> Node<0> for Waiter<W> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}
