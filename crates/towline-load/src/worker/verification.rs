//! References for the check of responses: the body that was last decoded, and the first response of a target of which
//! nothing is expected.

use std::sync::{Arc, OnceLock};

use crate::check::{Check, Mismatch, VerifiedBody};
use crate::config::{Config, Mix};
use crate::stats::Tally;
use crate::target::{Expect, Target};

/// Status and length of a response.
type Shape = (u16, u64);

/// The first successful responses of all targets, common to the threads.
#[derive(Clone, Debug)]
pub(crate) struct FirstResponses(Arc<[OnceLock<Shape>]>);

/// The responses that a thread compares with, by target.
pub(super) struct Verification {
    /// The last verified coded body.
    bodies: Vec<VerifiedBody>,
    first: Vec<FirstResponse>,
    shared: FirstResponses,
}

/// A thread's copy for one target.
#[derive(Clone, Copy, Debug)]
struct FirstResponse {
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

impl Verification {
    pub(super) fn new(config: &Config, shared: FirstResponses) -> Self {
        // Responses to requests with values may differ in length.
        let may_differ = config.has_variables() || config.mix == Mix::Session;
        let targets = config.targets.iter();
        Self {
            bodies: targets.clone().map(|_| VerifiedBody::default()).collect(),
            first: targets
                .map(|target| FirstResponse::new(target, may_differ))
                .collect(),
            shared,
        }
    }

    pub(super) fn bodies(&self) -> &[VerifiedBody] {
        &self.bodies
    }

    /// Ends the check of a response.
    pub(super) fn end(
        &mut self,
        check: &mut Check,
        target: usize,
        expect: &Expect,
    ) -> Option<Mismatch> {
        check.end(expect, &mut self.bodies[target])
    }

    /// Whether a response is like the first one: then it needs no other check.
    #[inline]
    pub(super) fn is_like_first(&self, target: usize, status: u16, length: u64) -> bool {
        let first = &self.first[target];
        first.status == status && first.length == length
    }

    /// Keeps the first successful response, or counts the difference from it.
    #[cold]
    pub(super) fn compare(&mut self, target: usize, (status, length): Shape, tally: &mut Tally) {
        let first = &mut self.first[target];
        if !first.compares {
            return;
        }
        if first.status == 0 {
            (first.status, first.length) = *self.shared.0[target].get_or_init(|| (status, length));
        }
        if first.status != status {
            tally.count_changed(|| format!("status {status} after {}", first.status));
        } else if first.length != length {
            tally.count_changed(|| format!("a body of {length} bytes after {}", first.length));
        }
    }
}

impl FirstResponse {
    /// Before the first response: equal to none, since 0 is no status.
    fn new(target: &Target, may_differ: bool) -> Self {
        Self {
            status: 0,
            length: 0,
            compares: !may_differ
                && target.expect == Expect::default()
                && target.messages.is_none(),
        }
    }
}
