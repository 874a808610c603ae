//! A thread that waits for a connection, with its mailbox.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::pooled_conn::PooledConn;
use super::wake_pipe::WakePipe;
use crate::client::acquire_timer::AcquireTimer;
use crate::client::dial::Dial;
use crate::client::pool::{Lease, OriginId, SlotId};
use crate::client::request::{CallError, CallErrorKind, CallOptions};
use crate::client::route::Route;

/// A dial that the waiting thread drives.
pub(super) struct PendingDial {
    pub(super) slot: SlotId,
    pub(super) route: Arc<Route>,
    /// `None`: not started.
    pub(super) dial: Option<Box<Dial>>,
    /// Not started before this time.
    pub(super) begin_at: Option<Instant>,
    pub(super) deadline: Option<Instant>,
}

/// A message to a waiter.
pub(super) enum Message {
    /// Ends the wait.
    Assigned(Lease<PooledConn>),
    /// Ends the wait, too.
    Failed(Box<CallError>),
    /// Drive this dial while waiting.
    Dial(PendingDial),
    /// The dial of this slot is not needed any more.
    DropDial(SlotId),
    /// `bound` has changed.
    Recheck,
}

pub(super) struct Waiter {
    /// Waiters that came earlier have smaller numbers.
    pub(super) number: u64,
    pub(super) origin: OriginId,
    pub(super) options: CallOptions,
    /// Dials that failed for it.
    attempts: AtomicU8,
    timer: Mutex<AcquireTimer>,
    /// Assigned, failed, or its thread has left. Changed under the pool's lock.
    over: AtomicBool,
    inbox: Mutex<VecDeque<Message>>,
    mailed: Condvar,
    /// Wakes the thread while it sleeps in poll(2).
    wake_pipe: OnceLock<WakePipe>,
}

impl Waiter {
    pub(super) fn new(number: u64, origin: OriginId, options: CallOptions, now: Instant) -> Self {
        Self {
            number,
            origin,
            options,
            attempts: AtomicU8::new(0),
            timer: Mutex::new(AcquireTimer::new(now)),
            over: AtomicBool::new(false),
            inbox: Mutex::default(),
            mailed: Condvar::new(),
            wake_pipe: OnceLock::new(),
        }
    }

    pub(super) fn count_attempt(&self) -> u8 {
        let before = self.attempts.fetch_add(1, Ordering::Relaxed);
        before.saturating_add(1)
    }

    /// Changes the timer of the wait.
    pub(super) fn measure(&self, change: impl FnOnce(&mut AcquireTimer)) {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut timer);
    }

    /// When the wait times out, and with which timeout.
    pub(super) fn bound(&self) -> Option<(Instant, CallErrorKind)> {
        let timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        timer.bound(&self.options.timeouts)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn set_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn inbox(&self) -> MutexGuard<'_, VecDeque<Message>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message. `notify` follows, when no lock is held.
    pub(super) fn send(&self, message: Message) {
        self.inbox().push_back(message);
    }

    pub(super) fn notify(&self) {
        self.mailed.notify_one();
        if let Some(wake_pipe) = self.wake_pipe.get() {
            wake_pipe.notify();
        }
    }

    pub(super) fn next(&self) -> Option<Message> {
        self.inbox().pop_front()
    }

    /// Sleeps until a message arrives, for `most` at most.
    pub(super) fn park(&self, most: Duration) {
        let inbox = self.inbox();
        if inbox.is_empty() {
            drop(self.mailed.wait_timeout(inbox, most));
        }
    }

    /// A descriptor that becomes readable when a message arrives.
    pub(super) fn wake_pipe(&self) -> io::Result<RawFd> {
        if self.wake_pipe.get().is_none() {
            // Only the waiter's own thread gets here.
            let _ = self.wake_pipe.set(WakePipe::new()?);
        }
        let wake_pipe = self.wake_pipe.get().ok_or(io::ErrorKind::Other)?;
        wake_pipe.clear();
        Ok(wake_pipe.fd())
    }

    /// Whether messages are queued.
    pub(super) fn has_messages(&self) -> bool {
        !self.inbox().is_empty()
    }
}
