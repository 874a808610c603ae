//! Histograms of durations.

use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

use crate::hosts::serialized;

/// The times of a complete response that passed its check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseTimes {
    /// From the intended start; in a closed loop the same as `service`.
    pub(crate) response: Duration,
    /// From sending.
    pub(crate) service: Duration,
    /// From sending to the head.
    pub(crate) first_byte: Duration,
    pub(crate) body_bytes: u64,
}

/// Longer times are recorded as an hour.
const MAX_NS: u64 = 3_600_000_000_000;

/// Three significant digits: a percentile is exact to a thousandth.
pub(super) fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_NS, digits).expect("the bounds are constants and valid")
}

/// Durations in nanoseconds. The histogram grows to its largest value: with all buckets up to an hour, those of a
/// thread would take a third of the CPU time of a start, and of each `reset`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Times(#[serde(with = "serialized::histogram")] pub(crate) Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits are valid"))
    }
}

impl Times {
    pub(crate) fn record(&mut self, time: Duration) {
        put(&mut self.0, nanos(time), 1);
    }

    /// All values, in a histogram with the bounds that all exported ones have.
    pub(crate) fn exported(&self) -> Histogram<u64> {
        let mut times = histogram(3);
        add(&mut times, &self.0);
        times
    }

    /// Clears only if needed: a histogram may have a quarter of a megabyte.
    pub(super) fn clear(&mut self) {
        if !self.0.is_empty() {
            self.0.reset();
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        add(&mut self.0, &other.0);
    }
}

/// Adds the values of `other`, which has the same precision or a finer one. `Histogram::add` would read and write
/// every bucket, half a megabyte of memory; this stops at the largest value.
pub(super) fn add(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    for bucket in other.iter_recorded() {
        put(sum, bucket.value_iterated_to(), bucket.count_at_value());
    }
}

fn put(times: &mut Histogram<u64>, nanos: u64, count: u64) {
    times
        .record_n(nanos.min(MAX_NS), count)
        .expect("each histogram holds an hour, or grows to it");
}

/// At least 1: the histogram has no bucket for 0.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(MAX_NS).max(1)
}

/// The V2 encoding.
pub(super) fn encoded(times: &Histogram<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    V2Serializer::new()
        .serialize(times, &mut bytes)
        .expect("a vector takes every byte");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_histograms_is_that_of_the_library() {
        let (mut one, mut other, mut coarse) = (histogram(3), histogram(3), histogram(2));
        let mut direct = coarse.clone();
        for n in 1..2000_u64 {
            one.saturating_record(n * n);
            other.saturating_record(n * n * n);
            direct.saturating_record(n * n * n);
        }
        // Longer than the largest: recorded as an hour.
        other.saturating_record(u64::MAX);
        direct.saturating_record(u64::MAX);
        let mut sum = one.clone();
        add(&mut sum, &other);
        one.add(&other).unwrap();
        assert!(sum == one);
        assert_eq!((sum.min(), sum.max()), (one.min(), one.max()));
        add(&mut coarse, &other);
        assert!(coarse == direct);
        add(&mut coarse, &histogram(3));
        assert!(coarse == direct);
        let mut grown = Times::default();
        add(&mut grown.0, &other);
        assert!(grown.exported() == other && grown.0.len() == other.len());
    }
}
