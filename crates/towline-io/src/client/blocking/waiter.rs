//! Where a thread waits for a connection: its own place, with its own bell.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::pooled_conn::Cable;
use super::wake_pipe::Bell;
use crate::client::acquire_timer::Waiting;
use crate::client::dial::Dial;
use crate::client::pool::{Lease, OriginId, SlotId};
use crate::client::request::{CallError, CallErrorKind, CallOptions};
use crate::client::route::Route;

/// A dial, and the thread that waits drives it.
pub(super) struct Errand {
    pub(super) slot: SlotId,
    pub(super) route: Arc<Route>,
    /// `None`: not begun.
    pub(super) dial: Option<Box<Dial>>,
    /// Not before.
    pub(super) begin_at: Option<Instant>,
    pub(super) deadline: Option<Instant>,
}

/// What one who waits is told.
pub(super) enum Message {
    /// The end of the wait.
    Served(Lease<Cable>),
    /// The end of the wait, too.
    Failed(Box<CallError>),
    /// Wait by driving this.
    Drive(Errand),
    /// Nobody needs that dial any more.
    Forget(SlotId),
    /// `bound` has changed.
    Look,
}

pub(super) struct Seat {
    /// Earlier ones have smaller numbers.
    pub(super) number: u64,
    pub(super) origin: OriginId,
    pub(super) options: CallOptions,
    /// Dials that failed in its name.
    attempts: AtomicU8,
    waiting: Mutex<Waiting>,
    /// Served or failed, or its thread has left. Changed under the desk's lock.
    over: AtomicBool,
    inbox: Mutex<VecDeque<Message>>,
    bell: Condvar,
    /// Rings where the thread sleeps on descriptors.
    wire: OnceLock<Bell>,
}

impl Seat {
    pub(super) fn new(number: u64, origin: OriginId, options: CallOptions, now: Instant) -> Self {
        Self {
            number,
            origin,
            options,
            attempts: AtomicU8::new(0),
            waiting: Mutex::new(Waiting::new(now)),
            over: AtomicBool::new(false),
            inbox: Mutex::default(),
            bell: Condvar::new(),
            wire: OnceLock::new(),
        }
    }

    pub(super) fn count_attempt(&self) -> u8 {
        let before = self.attempts.fetch_add(1, Ordering::Relaxed);
        before.saturating_add(1)
    }

    /// Changes how its wait is measured.
    pub(super) fn measure(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut waiting);
    }

    /// When its wait ends in vain, and as what.
    pub(super) fn bound(&self) -> Option<(Instant, CallErrorKind)> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.bound(&self.options.timeouts)
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

    /// `ring` follows, when no lock is held.
    pub(super) fn tell(&self, message: Message) {
        self.inbox().push_back(message);
    }

    pub(super) fn ring(&self) {
        self.bell.notify_one();
        if let Some(bell) = self.wire.get() {
            bell.ring();
        }
    }

    pub(super) fn next(&self) -> Option<Message> {
        self.inbox().pop_front()
    }

    /// Sleeps until something is told, for `most` at the longest.
    pub(super) fn sleep(&self, most: Duration) {
        let inbox = self.inbox();
        if inbox.is_empty() {
            drop(self.bell.wait_timeout(inbox, most));
        }
    }

    /// A descriptor that is readable when something has been told since.
    pub(super) fn wire(&self) -> io::Result<RawFd> {
        if self.wire.get().is_none() {
            // Only its own thread comes here.
            let _ = self.wire.set(Bell::new()?);
        }
        let bell = self.wire.get().ok_or(io::ErrorKind::Other)?;
        bell.hush();
        Ok(bell.fd())
    }

    /// Something has been told and not yet heard.
    pub(super) fn has_mail(&self) -> bool {
        !self.inbox().is_empty()
    }
}
