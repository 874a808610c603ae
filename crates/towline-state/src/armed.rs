//! Whether a subscriber sleeps: what its process and publishers change at once.
//!
//! ```text
//! subscriber   arm, look at the log again, sleep          publisher   commit, take, wake if it was armed
//! ```
//!
//! A publisher that does not see the subscriber armed has committed what that subscriber then sees in the log. This needs a
//! fence on both sides, because each writes one place and then reads the other.

use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicU32, fence};

/// Zero bytes are a subscriber that does not sleep.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Armed(AtomicU32);

impl Armed {
    /// Ask for a wake-up at the next publication. The caller looks at the log once more after this.
    pub(crate) fn arm(&self) {
        self.0.store(1, Relaxed);
        fence(SeqCst);
    }

    pub(crate) fn disarm(&self) {
        self.0.store(0, Relaxed);
    }

    /// Whether this caller has to wake the subscriber. It has called `committed` before.
    pub(crate) fn take(&self) -> bool {
        self.0.load(Relaxed) == 1 && self.0.swap(0, Relaxed) == 1
    }
}

/// Between the commit of a publication and the first `take`.
pub(crate) fn committed() {
    fence(SeqCst);
}
