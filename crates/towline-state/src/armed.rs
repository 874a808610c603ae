//! Whether a subscriber sleeps.
//!
//! ```text
//! subscriber   arm, look at the log again, sleep          publisher   commit, take, wake if it was armed
//! ```
//!
//! Each side writes one place and then reads the other, which needs a fence in both.

use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicU32, fence};

/// Zero bytes are a subscriber that does not sleep.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Armed(AtomicU32);

impl Armed {
    pub(crate) fn arm(&self) {
        self.0.store(1, Relaxed);
        fence(SeqCst);
    }

    pub(crate) fn disarm(&self) {
        self.0.store(0, Relaxed);
    }

    /// Whether this caller, after `committed`, has to wake the subscriber.
    pub(crate) fn take(&self) -> bool {
        self.0.load(Relaxed) == 1 && self.0.swap(0, Relaxed) == 1
    }
}

/// After the commit of a publication.
pub(crate) fn committed() {
    fence(SeqCst);
}
