//! Requests in flight at the end of a load.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::times::Times;

/// Requests in flight when the measured time ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AtEnd {
    /// The time that each request had waited.
    pub(crate) ages: Times,
    /// Connections that were being opened, or allowed no request.
    pub(crate) connections: u64,
    /// Requests and connections of these that were given up.
    pub(crate) overdue: u64,
    /// The time after which they were.
    pub(crate) patience: Duration,
}

impl AtEnd {
    pub(super) fn merge(&mut self, other: &Self) {
        self.ages.merge(&other.ages);
        self.connections += other.connections;
        self.overdue += other.overdue;
        self.patience = self.patience.max(other.patience);
    }
}
