//! Sums over all workers, for a metrics service that is sent the changes.
use std::sync::atomic::Ordering::Relaxed;

use super::labels::{STATUSES, status_label};
use super::slot::{BOUNDS_US, Slots};

/// Sums over the slots that have had a worker.
#[derive(Debug, Default)]
pub struct Totals {
    /// Completed requests by the label of their status (`200`, `4xx`, `none`). Labels without requests are left out.
    pub statuses: Vec<(String, u64)>,
    /// Number of request durations in each bucket of the histogram, with the bounds of the bucket in microseconds.
    /// The last bucket has no upper bound: both of its bounds are the lower one.
    pub durations: Vec<(u64, u64, u64)>,
    pub in_flight: u64,
    pub connections_open: u64,
}

impl Totals {
    pub fn read(slots: &Slots) -> Self {
        let mut statuses = [0_u64; STATUSES.len()];
        let mut buckets = [0_u64; BOUNDS_US.len() + 1];
        let mut totals = Self::default();
        for slot in slots.in_use() {
            for row in slot.requests.iter().flatten() {
                for (sum, count) in statuses.iter_mut().zip(row) {
                    *sum = sum.wrapping_add(count.load(Relaxed));
                }
            }
            for (sum, count) in buckets.iter_mut().zip(&slot.duration.buckets) {
                *sum = sum.wrapping_add(count.load(Relaxed));
            }
            totals.in_flight += slot.in_flight.load(Relaxed);
            totals.connections_open += slot.connections_open.load(Relaxed);
        }
        let used = statuses.iter().enumerate().filter(|(_, count)| **count > 0);
        totals.statuses = used
            .map(|(index, count)| (status_label(index), *count))
            .collect();
        let last = BOUNDS_US[BOUNDS_US.len() - 1];
        let lower = std::iter::once(0).chain(BOUNDS_US);
        let upper = BOUNDS_US.into_iter().chain([last]);
        totals.durations = lower
            .zip(upper)
            .zip(buckets)
            .map(|((lower, upper), count)| (lower, upper, count))
            .collect();
        totals
    }
}
