//! Counts of connections and waiters.

use std::hash::Hash;
use std::sync::Arc;

use super::{Pool, PoolStatus};

impl<K: Eq + Hash, C: Clone, W: Clone> Pool<K, C, W> {
    pub fn status(&self) -> PoolStatus {
        PoolStatus {
            active: self.slots.len() - self.dialling - self.idle.len(),
            idle: self.idle.len(),
            dialling: self.dialling,
            waiting: self.waiters.len(),
        }
    }

    /// Counts of each origin that has a connection or a waiter.
    pub fn status_by_origin(&self) -> impl Iterator<Item = (&Arc<K>, PoolStatus)> {
        self.origins.iter().map(|origin| {
            let status = PoolStatus {
                active: origin.open - origin.idle,
                idle: origin.idle,
                dialling: origin.dials.len(),
                waiting: origin.waiting(),
            };
            (&origin.key, status)
        })
    }
}
