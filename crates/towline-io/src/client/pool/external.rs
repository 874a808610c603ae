//! Connections that the owner of the pool has dialled and assigns itself; the pool counts their leases.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use super::slot::Open;
use super::{Lease, Pool, SlotId};

impl<K: Eq + Hash, C: Clone, W: Clone> Pool<K, C, W> {
    /// Adds a connection that was not dialled by this pool. Returns its slot.
    pub fn insert(&mut self, key: &Arc<K>, conn: C, capacity: Option<u32>, now: Instant) -> SlotId {
        let origin = self.origin(key, capacity.unwrap_or(1)).index();
        let index = self.insert_dial(origin, None);
        let slot = self.slot_id(index);
        self.dialled(slot, conn, capacity, now);
        slot
    }

    /// Leases a given connection. `None`: it is gone or retired, or carries as many exchanges as it can.
    pub fn lease_on(&mut self, slot: SlotId) -> Option<Lease<C>> {
        let index = self.find(slot)?;
        let is_available = self.slots[index]
            .open
            .as_ref()
            .is_some_and(Open::is_available);
        is_available.then(|| self.lease(index))?
    }

    /// Whether a connection takes no further exchange, or is gone.
    pub fn is_retired(&self, slot: SlotId) -> bool {
        let open = self.find(slot).map(|index| &self.slots[index].open);
        open.and_then(Option::as_ref)
            .is_none_or(|open| open.retired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::pool::{Action, PoolLimits};

    #[test]
    fn an_inserted_connection_counts_its_leases_up_to_its_capacity() {
        let now = Instant::now();
        let mut pool: Pool<&str, u32, u32> = Pool::new(PoolLimits::default());
        let (key, other) = (Arc::new("a"), Arc::new("a"));
        let first = pool.insert(&key, 1, Some(2), now);
        let second = pool.insert(&other, 2, Some(1), now);
        let lease = |pool: &mut Pool<_, _, _>, slot| {
            let lease: Option<Lease<u32>> = pool.lease_on(slot);
            lease.map(|lease| (lease.conn, lease.reused))
        };
        assert_eq!(lease(&mut pool, second), Some((2, false)));
        assert_eq!(lease(&mut pool, second), None);
        assert_eq!(lease(&mut pool, first), Some((1, false)));
        assert_eq!(lease(&mut pool, first), Some((1, true)));
        assert_eq!(lease(&mut pool, first), None);
        pool.release(first, now);
        assert_eq!(lease(&mut pool, first), Some((1, true)));
        assert!(pool.next_action().is_none(), "nothing is dialled");
    }

    #[test]
    fn a_retired_connection_takes_no_lease_and_closes_with_its_last_one() {
        let now = Instant::now();
        let mut pool: Pool<&str, u32, u32> = Pool::new(PoolLimits::default());
        let slot = pool.insert(&Arc::new("a"), 1, Some(2), now);
        assert!(pool.lease_on(slot).is_some());
        assert!(!pool.is_retired(slot));
        pool.retire(slot);
        assert!(pool.is_retired(slot));
        assert!(pool.lease_on(slot).is_none());
        assert!(pool.next_action().is_none());
        pool.release(slot, now);
        assert!(matches!(pool.next_action(), Some(Action::Close(1))));
        assert!(pool.is_retired(slot));
    }
}
