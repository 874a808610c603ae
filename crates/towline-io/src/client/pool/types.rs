//! Types of the pool: limits, ids, leases and actions.

use std::ops::AddAssign;
use std::time::Duration;

/// Limits of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Limit of all connections, dials included.
    pub max_connections: usize,
    pub max_connections_per_host: usize,
    /// Limit of idle connections; above it the longest idle is closed.
    pub max_keepalive: usize,
    /// Idle time after which a connection is closed.
    pub keepalive_expiry: Option<Duration>,
    /// Age from which a connection takes no further exchange.
    pub max_connection_age: Option<Duration>,
    /// Limit of the waiters for which no dial is in progress. `None`: no limit.
    pub max_queue: Option<usize>,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            max_connections: 1000,
            max_connections_per_host: 100,
            max_keepalive: 100,
            keepalive_expiry: Some(Duration::from_secs(15)),
            max_connection_age: None,
            max_queue: None,
        }
    }
}

/// Id of an origin in one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OriginId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl OriginId {
    pub(super) fn index(self) -> usize {
        self.index as usize
    }
}

/// Id of a connection or a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl SlotId {
    /// The id as one number, for code that does not know the pool.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The inverse of [`SlotId::as_u64`].
    pub fn from_u64(number: u64) -> Self {
        Self {
            index: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

/// Id of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaiterId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Permission for one exchange on a connection. Return it with [`Pool::release`], or [`Pool::remove`] the connection.
///
/// [`Pool::release`]: super::Pool::release
/// [`Pool::remove`]: super::Pool::remove
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<C> {
    pub slot: SlotId,
    pub conn: C,
    /// The connection has carried an exchange before.
    pub reused: bool,
}

/// An action that the owner of the pool must perform.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<C, W> {
    /// Open a connection, then call `dialled` or `dial_failed`.
    Dial(SlotId, OriginId),
    /// Cancel a dial that is no longer needed; its slot is already free.
    CancelDial(SlotId),
    /// A dial is in progress that is expected to serve this waiter.
    AwaitDial(W),
    /// The waiter no longer expects a dial: it waits for a connection to become free.
    AwaitFree(W),
    /// A waiter gets a connection.
    Assign(Lease<C>, W),
    /// Close a connection that has expired, is too old or was evicted; it is no longer in the pool.
    Close(C),
}

/// Counts of connections and waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Connections that carry an exchange.
    pub active: usize,
    pub idle: usize,
    pub dialling: usize,
    /// Calls that wait for a connection.
    pub waiting: usize,
}

impl AddAssign for PoolStatus {
    fn add_assign(&mut self, other: Self) {
        self.active += other.active;
        self.idle += other.idle;
        self.dialling += other.dialling;
        self.waiting += other.waiting;
    }
}
