//! The schedule of requests. Pure: time is an offset from the start, and chance comes from a seed.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::stages::Stages;

/// Distribution of the starts of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Constant,
    /// Independent users: exponential gaps.
    Poisson,
}

/// The rate of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    pub per_s: f64,
    pub arrivals: Arrivals,
    /// The rate rises linearly from 0 for this time.
    pub ramp: Duration,
}

/// The share of a thread in the load: of all threads, those of other agents included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub index: u32,
    pub of: u32,
}

/// The intended starts of one thread, in order and without end.
#[derive(Clone, Debug)]
pub struct Schedule {
    rate: Rate,
    ramp_s: f64,
    /// In place of the rate, which is then 1.
    stages: Option<Stages>,
    share: Share,
    random: Random,
    /// Starts produced so far.
    index: u64,
    /// Time that the starts so far would take at the full rate.
    even_s: f64,
    next: Duration,
}

impl Schedule {
    pub fn new(rate: Rate, share: Share, seed: u64) -> Self {
        let mut schedule = Self {
            rate,
            ramp_s: rate.ramp.as_secs_f64(),
            stages: None,
            share,
            random: Random::new(seed ^ u64::from(share.index).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            index: 0,
            even_s: 0.0,
            next: Duration::ZERO,
        };
        schedule.prepare();
        schedule
    }

    /// A schedule whose rate moves through `stages`.
    pub fn staged(stages: Stages, arrivals: Arrivals, share: Share, seed: u64) -> Self {
        let unit = Rate {
            per_s: 1.0,
            arrivals,
            ramp: Duration::ZERO,
        };
        let mut schedule = Self::new(unit, share, seed);
        let first = stages.time_of(schedule.even_s);
        schedule.next = Duration::from_secs_f64(first);
        schedule.stages = Some(stages);
        schedule
    }

    /// The next intended start, as an offset from the beginning of the load.
    pub fn peek(&self) -> Duration {
        self.next
    }

    /// Advances to the following start.
    pub fn advance(&mut self) {
        self.index += 1;
        self.prepare();
    }

    fn prepare(&mut self) {
        let of = f64::from(self.share.of);
        match self.rate.arrivals {
            // Threads interleave, so that together they are as even as one.
            #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 requests")]
            Arrivals::Constant => {
                let turn = self.index as f64 * of + f64::from(self.share.index);
                self.even_s = turn / self.rate.per_s;
            }
            // Independent processes of rate r/n add up to one of rate r.
            Arrivals::Poisson => {
                let gap = -self.random.open_unit().ln();
                self.even_s += gap * of / self.rate.per_s;
            }
        }
        self.next = Duration::from_secs_f64(match &self.stages {
            None => ramped(self.even_s, self.ramp_s),
            Some(stages) => stages.time_of(self.even_s),
        });
    }
}

/// The time at which a rate that rises for `ramp` seconds has produced what the full rate produces in
/// `even`.
fn ramped(even: f64, ramp: f64) -> f64 {
    if even >= ramp / 2.0 {
        even + ramp / 2.0
    } else {
        (2.0 * ramp * even).sqrt()
    }
}

/// Why a request did not start when it was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// No connection was free: the server is slow, or the pool too small.
    pub wait: Duration,
    /// A connection was free, but the generator was late.
    pub lag: Duration,
}

impl Delay {
    pub fn of(intended: Instant, free_since: Instant, sent: Instant) -> Self {
        let possible = intended.max(free_since);
        Self {
            wait: possible.saturating_duration_since(intended),
            lag: sent.saturating_duration_since(possible),
        }
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014): small, and good enough for arrivals and mixes.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Less than `n`, which is not 0. The bias is `n / 2^64`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// In (0, 1]: its logarithm is finite.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn open_unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Share = Share { index: 0, of: 1 };

    fn starts(rate: Rate, share: Share, n: usize) -> Vec<f64> {
        let mut schedule = Schedule::new(rate, share, 7);
        let next = |_| {
            let start = schedule.peek().as_secs_f64();
            schedule.advance();
            start
        };
        (0..n).map(next).collect()
    }

    fn constant(per_s: f64) -> Rate {
        Rate {
            per_s,
            arrivals: Arrivals::Constant,
            ramp: Duration::ZERO,
        }
    }

    #[test]
    fn a_constant_rate_never_drifts() {
        let starts = starts(constant(1000.0), WHOLE, 100_001);
        assert!((starts[100_000] - 100.0).abs() < 1e-6);
        assert!((starts[1] - 0.001).abs() < 1e-9);
    }

    #[test]
    fn threads_interleave_to_the_whole() {
        let rate = constant(300.0);
        let mut all: Vec<f64> = (0..3)
            .flat_map(|index| starts(rate, Share { index, of: 3 }, 100))
            .collect();
        all.sort_by(f64::total_cmp);
        for (at, whole) in all.iter().zip(starts(rate, WHOLE, 300)) {
            assert!((at - whole).abs() < 1e-8);
        }
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
        let rate = Rate {
            arrivals: Arrivals::Poisson,
            ..constant(1000.0)
        };
        let starts = starts(rate, WHOLE, 200_001);
        let gaps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let n = f64::from(u32::try_from(gaps.len()).unwrap());
        let mean = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n;
        assert!((mean * 1000.0 - 1.0).abs() < 0.01, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{variance}");
        let beyond = gaps.iter().filter(|gap| **gap > 0.001).count();
        let share = f64::from(u32::try_from(beyond).unwrap()) / n;
        assert!((share - (-1.0_f64).exp()).abs() < 0.01, "{share}");
    }

    #[test]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "some ten thousand, and none negative"
    )]
    fn poisson_starts_of_many_threads_are_one_poisson_process() {
        let rate = Rate {
            arrivals: Arrivals::Poisson,
            ..constant(1000.0)
        };
        // The threads of four agents with 1, 2, 2 and 3 threads; all reach 20 s.
        let of = 8;
        let mut all: Vec<f64> = (0..of)
            .flat_map(|index| starts(rate, Share { index, of }, 3500))
            .filter(|at| *at < 20.0)
            .collect();
        all.sort_by(f64::total_cmp);
        let n = all.len() as f64;
        // The number is Poisson's: within 4 standard deviations.
        assert!((n - 20_000.0).abs() < 4.0 * 20_000_f64.sqrt(), "{n}");
        let gaps: Vec<f64> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // No gap says anything about the next one.
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let product = |pair: &[f64]| (pair[0] - mean) * (pair[1] - mean);
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
        let correlation = gaps.windows(2).map(product).sum::<f64>() / variance;
        assert!(correlation.abs() < 4.0 / n.sqrt(), "{correlation}");
        // Kolmogorov and Smirnov: the limit is for 1 %.
        let mut sorted = gaps.clone();
        sorted.sort_by(f64::total_cmp);
        let distance = sorted.iter().enumerate().fold(0.0_f64, |most, (k, gap)| {
            let expected = 1.0 - (-1000.0 * gap).exp();
            let (below, upto) = (k as f64 / n, (k + 1) as f64 / n);
            most.max((below - expected).abs())
                .max((upto - expected).abs())
        });
        assert!(distance < 1.63 / n.sqrt(), "{distance}");
        // Counts of 100 ms vary as Poisson's do: variance and mean are equal.
        let mut counts = [0.0; 200];
        for at in &all {
            counts[(at * 10.0) as usize] += 1.0;
        }
        let mean = n / 200.0;
        let spread = counts
            .iter()
            .map(|count| (count - mean).powi(2))
            .sum::<f64>()
            / 199.0
            / mean;
        assert!(
            (spread - 1.0).abs() < 4.0 * (2.0 / 199.0_f64).sqrt(),
            "{spread}"
        );
    }

    #[test]
    fn a_ramp_does_half_the_work_in_its_time() {
        let rate = Rate {
            ramp: Duration::from_secs(10),
            ..constant(100.0)
        };
        let starts = starts(rate, WHOLE, 2000);
        let within =
            |from: f64, to: f64| starts.iter().filter(|at| (from..to).contains(*at)).count();
        assert!(within(0.0, 10.0).abs_diff(500) <= 1);
        assert!(within(0.0, 5.0).abs_diff(125) <= 1);
        assert!(within(10.0, 20.0).abs_diff(1000) <= 1);
    }

    #[test]
    fn stages_are_kept_by_threads_together() {
        let s = Duration::from_secs;
        let stages = Stages::new("", 100.0, vec![(s(10), 300.0), (s(5), 0.0)]);
        for (arrivals, tolerance) in [(Arrivals::Constant, 2), (Arrivals::Poisson, 200)] {
            let mut starts = Vec::new();
            for index in 0..3 {
                let share = Share { index, of: 3 };
                let mut schedule = Schedule::staged(stages.clone(), arrivals, share, 7);
                while schedule.peek() < s(15) {
                    starts.push(schedule.peek().as_secs_f64());
                    schedule.advance();
                }
            }
            let within =
                |from: f64, to: f64| starts.iter().filter(|at| (from..to).contains(*at)).count();
            assert!(
                within(0.0, 10.0).abs_diff(2000) <= tolerance,
                "{arrivals:?}"
            );
            assert!(within(0.0, 5.0).abs_diff(750) <= tolerance, "{arrivals:?}");
            assert!(
                within(10.0, 15.0).abs_diff(750) <= tolerance,
                "{arrivals:?}"
            );
        }
    }

    #[test]
    fn a_delay_is_split_into_connection_wait_and_lag() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let us = Duration::from_micros;
        // A connection had been free all the time.
        let delay = Delay::of(at(100), at(40), at(130));
        assert_eq!((delay.wait, delay.lag), (us(0), us(30)));
        // A connection became free 500 us after the intended start.
        let delay = Delay::of(at(100), at(600), at(605));
        assert_eq!((delay.wait, delay.lag), (us(500), us(5)));
        assert_eq!(Delay::of(at(100), at(40), at(100)).lag, us(0));
    }
}
