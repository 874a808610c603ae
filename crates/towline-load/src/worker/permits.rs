//! Permits to send, the schedule that they wait for, and the budget of requests.

use std::collections::VecDeque;
use std::time::Duration;

use super::slot::SendPermit;
use crate::config::{Config, LoopMode, Until};
use crate::schedule::{Schedule, Share};
use crate::slice::Slice;

/// The permits of a thread that wait, and what limits their use.
pub(super) struct Permits {
    share: Share,
    /// Number of slices so far: each draws its own arrivals.
    slices: u64,
    /// `None`: a closed loop.
    schedule: Option<Schedule>,
    /// Requests that may still be sent.
    budget: Option<u64>,
    /// A permit is used at once: a closed loop without barrier and stages.
    are_used_at_once: bool,
    waiting: VecDeque<SendPermit>,
    /// Permits that wait for the next tick, since all their last requests were invalid.
    paused: Vec<SendPermit>,
}

impl Permits {
    pub(super) fn new(share: Share) -> Self {
        Self {
            share,
            slices: 0,
            schedule: None,
            budget: None,
            are_used_at_once: true,
            waiting: VecDeque::new(),
            paused: Vec::new(),
        }
    }

    /// Prepares for a slice.
    pub(super) fn reset(&mut self, config: &Config, slice: &Slice) {
        let seed = config.seed.wrapping_add(self.slices << 20);
        self.slices += 1;
        self.waiting.clear();
        self.paused.clear();
        self.schedule = match slice.loop_mode {
            LoopMode::Closed => None,
            LoopMode::Open(rate) => Some(match &config.stages {
                Some(stages) => Schedule::staged(stages.clone(), rate.arrivals, self.share, seed),
                None => Schedule::new(rate, self.share, seed),
            }),
        };
        self.budget = match slice.until {
            Until::Time(_) => None,
            Until::Requests(all) => Some(self.share_of(all)),
        };
        self.are_used_at_once =
            self.schedule.is_none() && !config.barrier && config.stages.is_none();
    }

    /// The share of this thread in `total`.
    pub(super) fn share_of(&self, total: u64) -> u64 {
        share_of(total, self.share)
    }

    #[inline]
    pub(super) fn has_schedule(&self) -> bool {
        self.schedule.is_some()
    }

    #[inline]
    pub(super) fn are_used_at_once(&self) -> bool {
        self.are_used_at_once
    }

    /// The intended start of the next request, as an offset from the beginning of the load.
    pub(super) fn next_start(&self) -> Option<Duration> {
        self.schedule.as_ref().map(Schedule::peek)
    }

    /// The next start of a load that is limited by time: the schedule of a run by count has no end.
    pub(super) fn next_start_in_time(&self) -> Option<Duration> {
        self.next_start().filter(|_| self.budget.is_none())
    }

    /// Goes on to the following start.
    pub(super) fn advance(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.advance();
        }
    }

    /// Whether all requests of a run by count are sent.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.budget == Some(0)
    }

    /// Takes a request from the budget.
    #[inline]
    pub(super) fn spend(&mut self) {
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_sub(1);
        }
    }

    pub(super) fn push(&mut self, permit: SendPermit) {
        self.waiting.push_back(permit);
    }

    /// Returns a permit whose request was invalid: it is the oldest again.
    pub(super) fn push_first(&mut self, permit: SendPermit) {
        self.waiting.push_front(permit);
    }

    pub(super) fn pop(&mut self) -> Option<SendPermit> {
        self.waiting.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes all waiting permits that are `valid`, if these are at least `fewest`.
    pub(super) fn take_all(
        &mut self,
        valid: impl Fn(&SendPermit) -> bool,
        fewest: usize,
    ) -> VecDeque<SendPermit> {
        self.waiting.retain(valid);
        if self.waiting.len() < fewest {
            return VecDeque::new();
        }
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn pause(&mut self, permit: SendPermit) {
        self.paused.push(permit);
    }

    pub(super) fn take_paused(&mut self) -> Vec<SendPermit> {
        std::mem::take(&mut self.paused)
    }
}

/// The share of one thread in `total`; the first threads take the remainder.
pub(super) fn share_of(total: u64, share: Share) -> u64 {
    let (of, index) = (u64::from(share.of), u64::from(share.index));
    total / of + u64::from(index < total % of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        let results: Vec<_> = (0..4)
            .map(|index| share_of(10, Share { index, of: 4 }))
            .collect();
        assert_eq!(results, [3, 3, 2, 2]);
    }
}
