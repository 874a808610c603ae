//! A load in stages: a number of connections or a rate that moves linearly from one target to the next.
//! Pure: time is an offset from the start.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longer than any run.
const NEVER_S: f64 = 1e9;

/// The time at which a load has each of its targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// Text of the option, for reports.
    text: String,
    start: f64,
    steps: Vec<(Duration, f64)>,
}

impl Stages {
    /// Durations with the targets at their ends; `start` is the value at the beginning.
    pub fn new(text: &str, start: f64, steps: Vec<(Duration, f64)>) -> Self {
        Self {
            text: text.into(),
            start,
            steps,
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn duration(&self) -> Duration {
        self.steps.iter().map(|(time, _)| *time).sum()
    }

    pub(crate) fn most(&self) -> f64 {
        let targets = self.steps.iter().map(|(_, target)| *target);
        targets.fold(self.start, f64::max)
    }

    #[expect(clippy::cast_sign_loss, reason = "targets are not negative")]
    pub(crate) fn most_connections(&self) -> usize {
        self.most() as usize
    }

    /// The number of connections at a time, rounded up.
    #[expect(clippy::cast_sign_loss, reason = "targets are not negative")]
    pub(crate) fn connections_at(&self, time: Duration) -> u64 {
        self.at(time).ceil() as u64
    }

    /// The mean over the whole duration.
    pub(crate) fn mean(&self) -> f64 {
        let areas = self
            .segments()
            .map(|(time, from, to)| time * (from + to) / 2.0);
        areas.sum::<f64>() / self.duration().as_secs_f64()
    }

    /// The value at a time; after the end, the last target.
    pub(crate) fn at(&self, time: Duration) -> f64 {
        let mut rest = time.as_secs_f64();
        for (length, from, to) in self.segments() {
            if rest < length {
                return from + (to - from) * rest / length;
            }
            rest -= length;
        }
        self.last()
    }

    /// The time in seconds at which a rate of these stages has produced `amount`.
    pub(crate) fn time_of(&self, amount: f64) -> f64 {
        let (mut rest, mut begin) = (amount, 0.0);
        for (length, from, to) in self.segments() {
            let area = length * (from + to) / 2.0;
            if rest < area {
                // The root of `from t + slope t^2 / 2 = rest`, in the form that needs no division by the slope.
                let slope = (to - from) / length;
                let root = (from * from + 2.0 * slope * rest).max(0.0).sqrt();
                return begin
                    + if rest > 0.0 {
                        2.0 * rest / (from + root)
                    } else {
                        0.0
                    };
            }
            rest -= area;
            begin += length;
        }
        let last = self.last();
        if last > 0.0 {
            (begin + rest / last).min(NEVER_S)
        } else {
            NEVER_S
        }
    }

    /// Length in seconds, first and last value of each stage.
    fn segments(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let before = std::iter::once(self.start).chain(self.steps.iter().map(|(_, to)| *to));
        (self.steps.iter().zip(before)).map(|((time, to), from)| (time.as_secs_f64(), from, *to))
    }

    fn last(&self) -> f64 {
        self.steps.last().map_or(self.start, |(_, target)| *target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 0 to 100 in 10 s, 20 s of 100, down to 0 in 5 s.
    fn stages() -> Stages {
        let s = Duration::from_secs;
        Stages::new("", 0.0, vec![(s(10), 100.0), (s(20), 100.0), (s(5), 0.0)])
    }

    #[test]
    fn values_are_on_the_line_between_targets() {
        let stages = stages();
        for (at, value) in [
            (0, 0.0),
            (5, 50.0),
            (10, 100.0),
            (29, 100.0),
            (34, 20.0),
            (99, 0.0),
        ] {
            assert!(
                (stages.at(Duration::from_secs(at)) - value).abs() < 1e-9,
                "{at}"
            );
        }
        assert_eq!(
            (stages.duration(), stages.most()),
            (Duration::from_secs(35), 100.0)
        );
        assert!((stages.mean() * 35.0 - 2750.0).abs() < 1e-6);
    }

    #[test]
    fn amounts_are_reached_at_the_time_of_their_area() {
        let stages = stages();
        for (amount, at) in [
            (0.0, 0.0),
            (125.0, 5.0),
            (500.0, 10.0),
            (1500.0, 20.0),
            (2500.0, 30.0),
        ] {
            assert!((stages.time_of(amount) - at).abs() < 1e-9, "{amount}");
        }
        // A tenth of the last stage's area is in its last 1.58 s.
        assert!((stages.time_of(2725.0) - (35.0 - 5.0 * 0.1_f64.sqrt())).abs() < 1e-9);
        assert!(stages.time_of(2751.0) >= NEVER_S);
    }
}
