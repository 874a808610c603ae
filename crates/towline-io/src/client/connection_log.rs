//! Events of connections that no response carries: the end of a connection, and a request that is sent again.
//!
//! Off unless a program logs them, and then bounded: a log that is not taken keeps its latest events. The log is the
//! process's, as the logger is.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::connection_info::ConnectionInfo;

/// Events kept; the oldest make room for new ones.
const MAX_EVENTS: usize = 1024;

/// Attempts to take the lock, which is held for microseconds.
const MAX_TRIES: usize = 1000;

type Events = VecDeque<(ConnectionEvent, Arc<ConnectionInfo>)>;

static ENABLED: AtomicBool = AtomicBool::new(false);
static EVENTS: Mutex<Events> = Mutex::new(VecDeque::new());

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    Closed,
    /// The connection ended without a response, and its request was sent again on another one.
    Resent,
}

/// Starts or stops the log. Stopping it removes its events.
pub fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
    if !enabled {
        take();
    }
}

/// Removes and returns the events since the last time.
pub fn take() -> Vec<(ConnectionEvent, Arc<ConnectionInfo>)> {
    open().map_or_else(Vec::new, |mut events| events.drain(..).collect())
}

pub(super) fn record(event: ConnectionEvent, info: &Arc<ConnectionInfo>) {
    if ENABLED.load(Ordering::Relaxed)
        && let Some(mut events) = open()
    {
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back((event, Arc::clone(info)));
    }
}

/// Returns `None` if the lock stays taken: a forked child may have inherited it so, and a log is not worth a wait.
fn open() -> Option<MutexGuard<'static, Events>> {
    for _ in 0..MAX_TRIES {
        match EVENTS.try_lock() {
            Ok(events) => return Some(events),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Records the end of a connection when it is dropped with the connection.
pub(super) struct CloseRecord(Arc<ConnectionInfo>);

impl CloseRecord {
    pub(super) fn new(info: &Arc<ConnectionInfo>) -> Self {
        Self(Arc::clone(info))
    }
}

impl Drop for CloseRecord {
    fn drop(&mut self) {
        record(ConnectionEvent::Closed, &self.0);
    }
}
