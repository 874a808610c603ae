//! Comparison with the first response of a target, where nothing is expected of its responses.

use std::sync::{Arc, OnceLock};

use crate::config::Config;
use crate::stats::Tally;
use crate::target::{Expect, Target};

/// Status and length of a response.
type Shape = (u16, u64);

/// The first successful responses of all targets, common to the threads.
#[derive(Clone, Debug)]
pub(crate) struct FirstResponses(Arc<[OnceLock<Shape>]>);

/// A thread's copy for one target.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstResponse {
    status: u16,
    length: u64,
    /// Whether the target has no expectation of its own.
    compares: bool,
}

impl FirstResponses {
    pub(crate) fn new(config: &Config) -> Self {
        Self(config.targets.iter().map(|_| OnceLock::new()).collect())
    }
}

impl FirstResponse {
    /// Before the first response: equal to none, since 0 is no status.
    pub(super) fn of(target: &Target, may_differ: bool) -> Self {
        Self {
            status: 0,
            length: 0,
            compares: !may_differ
                && target.expect == Expect::default()
                && target.messages.is_none(),
        }
    }

    /// Whether a response is like the first one: then it needs no other check.
    #[inline]
    pub(super) fn is_equal(&self, status: u16, length: u64) -> bool {
        self.status == status && self.length == length
    }

    /// Keeps the first successful response, or counts the difference from it.
    #[cold]
    pub(super) fn compare(
        &mut self,
        status: u16,
        length: u64,
        shared: &FirstResponses,
        target: usize,
        tally: &mut Tally,
    ) {
        if !self.compares {
            return;
        }
        if self.status == 0 {
            (self.status, self.length) = *shared.0[target].get_or_init(|| (status, length));
        }
        if self.status != status {
            tally.count_changed(|| format!("status {status} after {}", self.status));
        } else if self.length != length {
            tally.count_changed(|| format!("a body of {length} bytes after {}", self.length));
        }
    }
}
