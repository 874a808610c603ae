//! Counts of one thread, and merging them. Pure: times are arguments.

mod at_end;
mod failure;
mod steps;
mod times;

use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde::{Deserialize, Serialize};
use towline_io::quic::QuicCounts;

use crate::hosts::serialized;

pub(crate) use at_end::AtEnd;
pub(crate) use failure::{FAILURES, Failure};
pub(crate) use steps::{Step, Sums};
pub(crate) use times::{ResponseTimes, Times};
use times::{add, encoded, histogram};

/// Descriptions of invalid requests that are kept.
const MAX_INVALID: usize = 10;

/// One second of the measured time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Interval {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) received_bytes: u64,
    /// Connections open at its end.
    pub(crate) live: u64,
    /// `response` in the V2 encoding: some hundred bytes, so that an hour needs little memory.
    #[serde(with = "serialized::base64_bytes")]
    times: Vec<u8>,
}

impl Interval {
    pub(crate) fn times(&self) -> Histogram<u64> {
        let decoded = Deserializer::new().deserialize(&mut &self.times[..]);
        decoded.unwrap_or_else(|_| histogram(2))
    }

    fn merge(&mut self, other: &Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.received_bytes += other.received_bytes;
        self.live += other.live;
        let mut times = self.times();
        add(&mut times, &other.times());
        self.times = encoded(&times);
    }
}

/// Counts of one thread in the measured time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) total: Sums,
    /// Counts by target, where they are counted apart; otherwise the one for all.
    steps: Vec<Step>,
    /// Open loop: lateness of the generator although a connection was free.
    pub(crate) lag: Times,
    /// Open loop: time without a free connection.
    pub(crate) wait: Times,
    pub(crate) connect: Times,
    /// Time that the generator was busy between two polls.
    pub(crate) turn: Times,
    pub(crate) failures: [u64; FAILURES],
    /// Refused by a server at its limit: neither responses nor failures.
    pub(crate) refused: u64,
    /// Description of the first failure.
    pub(crate) first_failure: Option<String>,
    /// Descriptions of what made requests invalid: the first, each once.
    pub(crate) invalid: Vec<String>,
    pub(crate) at_end: AtEnd,
    /// Responses that differ from the first one of their target, and the first difference.
    pub(crate) changed: u64,
    pub(crate) first_change: Option<String>,
    pub(crate) statuses: Vec<(u16, u64)>,
    /// Complete responses in the measured time.
    pub(crate) answered: u64,
    /// Complete responses since the beginning of the load, with those before and after the measured time.
    pub(crate) completed: u64,
    pub(crate) body_bytes: u64,
    pub(crate) received_bytes: u64,
    /// Requests sent.
    pub(crate) sent: u64,
    /// Open loop: requests that were due and never found a connection.
    pub(crate) unsent: u64,
    /// Open loop: requests that were due and found a connection only after the end.
    pub(crate) late: u64,
    pub(crate) reconnects: u64,
    /// HTTP/3: packets of the connections that have ended, or are open at the end, since they were opened.
    #[serde(with = "serialized::QuicCountsDef")]
    pub(crate) quic: QuicCounts,
    /// `None`: not sampled.
    pub(crate) min_live: Option<u64>,
    pub(crate) series: Vec<Interval>,
    #[serde(skip)]
    second: Interval,
}

impl Tally {
    /// `targets` are counted apart if there are several.
    pub(crate) fn new(targets: usize) -> Self {
        Self {
            steps: vec![Step::default(); targets.max(1)],
            ..Self::default()
        }
    }

    /// Resets all counts and keeps the memory of the histograms.
    pub(crate) fn reset(&mut self) {
        let mut kept = std::mem::take(self);
        kept.total.clear();
        kept.steps.iter_mut().for_each(Step::reset);
        let times = [
            &mut kept.lag,
            &mut kept.wait,
            &mut kept.connect,
            &mut kept.turn,
        ];
        times.into_iter().for_each(Times::clear);
        *self = Self {
            total: kept.total,
            steps: kept.steps,
            lag: kept.lag,
            wait: kept.wait,
            connect: kept.connect,
            turn: kept.turn,
            ..Self::default()
        };
    }

    /// Counts a response in the measured time and its latency.
    #[cfg(test)]
    pub(crate) fn count_response(&mut self, target: usize, response_times: &ResponseTimes) {
        self.count_answered(target, response_times.body_bytes);
        self.count_times(target, response_times);
    }

    /// Counts a response in the measured time.
    pub(crate) fn count_answered(&mut self, target: usize, body_bytes: u64) {
        self.answered += 1;
        self.body_bytes += body_bytes;
        self.second.answered += 1;
        self.step(target).answered += 1;
    }

    /// Records the latency of a response.
    #[inline]
    pub(crate) fn count_times(&mut self, target: usize, response_times: &ResponseTimes) {
        self.step(target).record(response_times);
    }

    /// Counts a failure; `None`: of no request, such as a dial.
    pub(crate) fn count_failure(&mut self, target: Option<usize>, failure: Failure) {
        self.failures[failure as usize] += 1;
        self.second.failed += 1;
        if let Some(target) = target {
            self.step(target).failed += 1;
        }
    }

    #[inline]
    fn step(&mut self, target: usize) -> &mut Step {
        let last = self.steps.len() - 1;
        &mut self.steps[target.min(last)]
    }

    /// The counts of each target, if they are counted apart.
    pub(crate) fn steps(&self) -> &[Step] {
        if self.steps.len() > 1 {
            &self.steps
        } else {
            &[]
        }
    }

    /// Describes a failure; only the first is kept.
    pub(crate) fn note(&mut self, say: impl FnOnce() -> String) {
        self.first_failure.get_or_insert_with(say);
    }

    /// Counts the time that a request has waited in vain, at which its latency is at least.
    pub(crate) fn count_unanswered(&mut self, target: usize, waited: &ResponseTimes) {
        self.step(target).record_unanswered(waited);
    }

    /// Describes what makes a request invalid.
    pub(crate) fn note_invalid(&mut self, what: String) {
        if self.invalid.len() < MAX_INVALID && !self.invalid.contains(&what) {
            self.invalid.push(what);
        }
    }

    /// The median and the maximum of the service times so far, if there is any response.
    pub(crate) fn usual_and_longest(&self) -> Option<(Duration, Duration)> {
        let mut sums = self.total.clone();
        self.steps
            .iter()
            .for_each(|step| step.add_second(&mut sums));
        let times = &sums.service.0;
        let at = |percent| Duration::from_nanos(times.value_at_percentile(percent));
        (!times.is_empty()).then(|| (at(50.0), at(100.0)))
    }

    /// Whether responses to a target are counted apart, and there is none.
    pub(crate) fn lacks_responses_to(&self, target: usize) -> bool {
        (self.steps().get(target)).is_some_and(|step| step.answered == 0)
    }

    /// All latencies, with those of requests without a response at the time that they have waited. `None`: there are
    /// no such requests.
    pub(crate) fn with_unanswered(&self) -> Option<Sums> {
        let mut all = self.total.clone();
        let unanswered: Vec<_> = self.steps.iter().filter_map(Step::unanswered).collect();
        for sums in &unanswered {
            all.merge(sums);
        }
        (!unanswered.is_empty()).then_some(all)
    }

    /// Counts a response that differs from the first one of its target.
    pub(crate) fn count_changed(&mut self, say: impl FnOnce() -> String) {
        self.changed += 1;
        self.first_change.get_or_insert_with(say);
    }

    pub(crate) fn count_status(&mut self, status: u16) {
        match self.statuses.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => self.statuses.push((status, 1)),
        }
    }

    pub(crate) fn count_received(&mut self, bytes: u64) {
        self.received_bytes += bytes;
        self.second.received_bytes += bytes;
    }

    pub(crate) fn sample_live(&mut self, live: u64) {
        self.min_live = Some(self.min_live.map_or(live, |fewest| fewest.min(live)));
    }

    /// Ends the current second; later counts belong to the next one.
    pub(crate) fn end_second(&mut self, live: u64) {
        self.second.live = live;
        let mut times = histogram(2);
        let are_several = self.steps.len() > 1;
        for step in &mut self.steps {
            step.end_second(&mut self.total, are_several, &mut times);
        }
        self.second.times = encoded(&times);
        self.series.push(std::mem::take(&mut self.second));
    }

    /// Adds what came after the last whole second to it, or makes it the only one.
    pub(crate) fn finish(&mut self, live: u64) {
        self.end_second(live);
        if self.series.len() > 1
            && let Some(rest) = self.series.pop()
            && let Some(last) = self.series.last_mut()
        {
            last.merge(&Interval { live: 0, ..rest });
        }
    }

    /// Adds the counts of another thread for the same time.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.total.merge(&other.total);
        for (step, more) in self.steps.iter_mut().zip(&other.steps) {
            step.merge(more);
        }
        self.lag.merge(&other.lag);
        self.wait.merge(&other.wait);
        self.connect.merge(&other.connect);
        self.turn.merge(&other.turn);
        for (sum, more) in self.failures.iter_mut().zip(other.failures) {
            *sum += more;
        }
        if let Some(failure) = &other.first_failure {
            self.note(|| failure.clone());
        }
        for what in &other.invalid {
            self.note_invalid(what.clone());
        }
        self.at_end.merge(&other.at_end);
        for (status, count) in &other.statuses {
            match self.statuses.iter_mut().find(|(known, _)| known == status) {
                Some((_, sum)) => *sum += count,
                None => self.statuses.push((*status, *count)),
            }
        }
        self.refused += other.refused;
        self.changed += other.changed;
        if self.first_change.is_none() {
            self.first_change.clone_from(&other.first_change);
        }
        self.answered += other.answered;
        self.completed += other.completed;
        self.body_bytes += other.body_bytes;
        self.received_bytes += other.received_bytes;
        self.sent += other.sent;
        self.unsent += other.unsent;
        self.late += other.late;
        self.reconnects += other.reconnects;
        self.quic.add(&other.quic);
        // A lower bound: the minima of the threads may be at different moments.
        let fewest = [self.min_live, other.min_live];
        self.min_live = fewest.into_iter().flatten().reduce(|sum, more| sum + more);
        for (at, interval) in other.series.iter().enumerate() {
            match self.series.get_mut(at) {
                Some(sum) => sum.merge(interval),
                None => self.series.push(interval.clone()),
            }
        }
    }

    pub(crate) fn answers(&self) -> u64 {
        self.answered
    }

    #[cfg(test)]
    pub(crate) fn failures(&self, failure: Failure) -> u64 {
        self.failures[failure as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_times(us: u64) -> ResponseTimes {
        ResponseTimes {
            response: Duration::from_micros(us),
            service: Duration::from_micros(us / 2),
            first_byte: Duration::from_micros(us / 4),
            body_bytes: 10,
        }
    }

    fn near(value: u64, truth: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let value = value as f64;
        (value / truth - 1.0).abs() < 0.002
    }

    #[test]
    fn percentiles_of_two_threads_are_those_of_all_values() {
        let (mut one, mut other) = (Tally::new(1), Tally::new(1));
        for us in 1..=10_000 {
            if us % 3 == 0 { &mut one } else { &mut other }.count_response(0, &response_times(us));
        }
        one.finish(1);
        other.finish(1);
        one.merge(&other);
        assert_eq!((one.answers(), one.body_bytes), (10_000, 100_000));
        for times in [
            &one.total.response,
            &one.total.service,
            &one.total.first_byte,
        ] {
            assert_eq!(times.0.len(), 10_000);
        }
        for (percent, us) in [
            (50.0, 5_000.0),
            (99.0, 9_900.0),
            (99.9, 9_990.0),
            (100.0, 10_000.0),
        ] {
            let value = one.total.response.0.value_at_percentile(percent);
            assert!(near(value, us * 1000.0), "p{percent}: {value}");
        }
        assert!(near(
            one.total.service.0.value_at_percentile(50.0),
            2_500_000.0
        ));
        let of_second = one.series[0].times().value_at_percentile(50.0);
        assert!(
            of_second.abs_diff(5_000_000) < 50_000,
            "two digits: {of_second}"
        );
    }

    #[test]
    fn equal_times_count_in_all_three_histograms() {
        let time = Duration::from_micros(300);
        let equal_times = ResponseTimes {
            response: time,
            service: time,
            first_byte: time,
            body_bytes: 1,
        };
        let mut tally = Tally::new(1);
        for _ in 0..2 {
            tally.count_response(0, &equal_times);
            tally.count_response(0, &response_times(100));
            assert_eq!(tally.answers(), 2, "before the end too");
            tally.finish(1);
            let of = |times: &Times, us: u64| times.0.count_at(us * 1000);
            let Sums {
                response,
                service,
                first_byte: first,
            } = &tally.total;
            assert_eq!((of(response, 300), of(response, 100)), (1, 1));
            assert_eq!((of(service, 300), of(service, 50)), (1, 1));
            assert_eq!((of(first, 300), of(first, 25)), (1, 1));
            assert_eq!((tally.answers(), tally.series[0].answered), (2, 2));
            let of_second = tally.series[0].times();
            assert_eq!(
                (of_second.count_at(300_000), of_second.count_at(100_000)),
                (1, 1)
            );
            tally.reset();
        }
    }

    #[test]
    fn seconds_add_up_by_their_place() {
        let (mut one, mut other) = (Tally::new(1), Tally::new(1));
        for (second, count) in [3_u64, 5, 2].into_iter().enumerate() {
            for _ in 0..count {
                one.count_response(0, &response_times(100));
                other.count_response(0, &response_times(200));
            }
            other.count_failure(None, Failure::Reset);
            one.count_received(7);
            if second < 2 {
                one.end_second(4);
                other.end_second(3);
            }
        }
        // The third was cut short and is added to the second.
        one.finish(4);
        other.finish(3);
        one.merge(&other);
        let seen: Vec<_> = one
            .series
            .iter()
            .map(|second| {
                (
                    second.answered,
                    second.failed,
                    second.received_bytes,
                    second.live,
                )
            })
            .collect();
        assert_eq!(seen, [(6, 1, 7, 7), (14, 2, 14, 7)]);
        assert_eq!(one.series[1].times().len(), 14);
        assert_eq!(one.failures(Failure::Reset), 3);
    }

    #[test]
    fn statuses_and_failures_are_counted_apart() {
        let (mut one, mut other) = (Tally::new(1), Tally::new(1));
        one.count_status(200);
        other.count_status(503);
        other.count_status(200);
        other.count_failure(None, Failure::Status);
        one.count_failure(None, Failure::Content);
        one.merge(&other);
        assert_eq!(one.statuses, [(200, 2), (503, 1)]);
        assert_eq!(one.failures, [0, 0, 0, 0, 1, 1, 0, 0, 0]);
    }
    #[test]
    fn each_time_is_in_the_histograms_of_its_step_and_of_all() {
        let times = |response, service, first_byte| ResponseTimes {
            response: Duration::from_micros(response),
            service: Duration::from_micros(service),
            first_byte: Duration::from_micros(first_byte),
            body_bytes: 1,
        };
        // One piece and several, in a closed and in an open loop.
        let kinds = [
            times(100, 100, 100),
            times(100, 100, 50),
            times(200, 100, 100),
            times(200, 100, 50),
        ];
        let mut tally = Tally::new(2);
        for (count, kind) in kinds.iter().enumerate() {
            (0..=count).for_each(|_| tally.count_response(0, kind));
            tally.count_response(1, kind);
        }
        tally.count_failure(Some(1), Failure::Status);
        tally.count_failure(None, Failure::Connect);
        tally.finish(1);
        let mut sum = Tally::new(2);
        sum.merge(&tally);
        let counts = |sums: &Sums| {
            let of = |times: &Times, us: u64| times.0.count_at(us * 1000);
            assert_eq!(sums.service.0.len(), of(&sums.service, 100));
            [
                of(&sums.response, 100),
                of(&sums.response, 200),
                of(&sums.first_byte, 100),
                of(&sums.first_byte, 50),
            ]
        };
        let found: Vec<_> = (sum.steps().iter())
            .map(|step| (step.answered, step.failed, counts(&step.sums)))
            .collect();
        assert_eq!(found, [(10, 0, [3, 7, 4, 6]), (4, 1, [2, 2, 2, 2])]);
        assert_eq!(counts(&sum.total), [5, 9, 6, 8]);
        assert_eq!((sum.answered, sum.failures(Failure::Connect)), (14, 1));
        tally.reset();
        tally.finish(1);
        assert!(
            tally
                .steps()
                .iter()
                .all(|step| step.answered == 0 && step.sums.service.0.is_empty())
        );
    }
}
