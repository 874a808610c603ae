//! Counts by target: by step of a session, or by part of a mix.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::times::{ResponseTimes, Times, add};

/// Response times of the current second. Each value is in one histogram, according to which of the three times have
/// it: one record for a small response in a closed loop. `Step::end_second` adds them up.
#[derive(Clone, Debug, Default)]
struct OfSecond {
    /// All three: a response in one piece, in a closed loop.
    all: Times,
    /// `response` and `service`, of responses in several pieces.
    whole: Times,
    /// `service` and `first_byte`, of responses in one piece, in an open loop.
    from_sending: Times,
    response: Times,
    service: Times,
    first_byte: Times,
}

/// Sums of the three times.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(crate) response: Times,
    pub(crate) service: Times,
    pub(crate) first_byte: Times,
}

/// Counts of one target, or of all, if they are not counted apart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) sums: Sums,
    /// How long requests have waited in vain; `None`: no request has.
    unanswered: Option<Box<Sums>>,
    #[serde(skip)]
    second: OfSecond,
}

impl OfSecond {
    #[inline]
    fn record(&mut self, times: &ResponseTimes) {
        let in_one_piece = times.service == times.first_byte;
        if times.response == times.service {
            if in_one_piece {
                return self.all.record(times.service);
            }
            self.whole.record(times.service);
        } else {
            self.response.record(times.response);
            if in_one_piece {
                return self.from_sending.record(times.service);
            }
            self.service.record(times.service);
        }
        self.first_byte.record(times.first_byte);
    }

    fn clear(&mut self) {
        for times in [
            &mut self.all,
            &mut self.whole,
            &mut self.from_sending,
            &mut self.response,
            &mut self.service,
            &mut self.first_byte,
        ] {
            times.clear();
        }
    }
}

impl Sums {
    fn add(&mut self, second: &OfSecond) {
        self.response.merge(&second.all);
        self.response.merge(&second.whole);
        self.response.merge(&second.response);
        self.service.merge(&second.all);
        self.service.merge(&second.whole);
        self.service.merge(&second.from_sending);
        self.service.merge(&second.service);
        self.first_byte.merge(&second.all);
        self.first_byte.merge(&second.from_sending);
        self.first_byte.merge(&second.first_byte);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.response.merge(&other.response);
        self.service.merge(&other.service);
        self.first_byte.merge(&other.first_byte);
    }

    pub(super) fn clear(&mut self) {
        for times in [&mut self.response, &mut self.service, &mut self.first_byte] {
            times.clear();
        }
    }
}

impl Step {
    #[inline]
    pub(super) fn record(&mut self, times: &ResponseTimes) {
        self.second.record(times);
    }

    /// Adds this second's times, which are not added yet, to `total`.
    pub(super) fn add_second(&self, total: &mut Sums) {
        total.add(&self.second);
    }

    pub(super) fn record_unanswered(&mut self, waited: &ResponseTimes) {
        let sums = self.unanswered.get_or_insert_default();
        sums.response.record(waited.response);
        sums.service.record(waited.service);
        sums.first_byte.record(waited.first_byte);
    }

    pub(super) fn unanswered(&self) -> Option<&Sums> {
        self.unanswered.as_deref()
    }

    /// The latencies of this step with those of requests without a response; `None`: there are no such requests.
    pub(crate) fn with_unanswered(&self) -> Option<Sums> {
        self.unanswered.as_deref().map(|unanswered| {
            let mut all = self.sums.clone();
            all.merge(unanswered);
            all
        })
    }

    /// Adds this second's times to `total`, to the sums of the step if it is one of several, and `response` to
    /// `of_second`.
    pub(super) fn end_second(
        &mut self,
        total: &mut Sums,
        is_one_of_several: bool,
        of_second: &mut Histogram<u64>,
    ) {
        let second = &self.second;
        for part in [&second.all, &second.whole, &second.response] {
            add(of_second, &part.0);
        }
        total.add(second);
        if is_one_of_several {
            self.sums.add(second);
        }
        self.second.clear();
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.sums.merge(&other.sums);
        if let Some(more) = &other.unanswered {
            self.unanswered.get_or_insert_default().merge(more);
        }
    }

    pub(super) fn reset(&mut self) {
        (self.answered, self.failed) = (0, 0);
        self.sums.clear();
        self.unanswered = None;
        self.second.clear();
    }
}
