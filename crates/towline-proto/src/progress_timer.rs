//! Timer over the progress of a body, driven by the instants passed to it.

use std::time::{Duration, Instant};

use crate::Limits;

/// Checks the progress of a body: some bytes within every `body_timeout`, and in each such period the minimum
/// rate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum ProgressTimer {
    #[default]
    Off,
    /// Started by a call of the program, which carries no time: it runs from the next known instant.
    Armed,
    /// Paused while nothing was expected of the peer (the program did not read): the next expiry only
    /// restarts it.
    Paused(Period),
    Running(Period),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    last: Instant,
    start: Instant,
    bytes: u64,
}

impl ProgressTimer {
    pub fn started(now: Instant) -> Self {
        Self::Running(Period {
            last: now,
            start: now,
            bytes: 0,
        })
    }

    pub fn start(&mut self, now: Instant) {
        *self = Self::started(now);
    }

    /// Returns false if it is running or armed already.
    pub fn arm(&mut self) -> bool {
        let starts = matches!(self, Self::Off | Self::Paused(_));
        if starts {
            *self = Self::Armed;
        }
        starts
    }

    pub fn is_armed(self) -> bool {
        matches!(self, Self::Armed)
    }

    pub fn start_if_armed(&mut self, now: Instant) {
        if self.is_armed() {
            self.start(now);
        }
    }

    pub fn stop(&mut self) {
        *self = Self::Off;
    }

    pub fn pause(&mut self) {
        if let Self::Running(period) = *self {
            *self = Self::Paused(period);
        }
    }

    pub fn advance(&mut self, now: Instant, n: usize) {
        if let Self::Running(period) | Self::Paused(period) = self {
            period.last = now;
            period.bytes += n as u64;
        }
    }

    pub fn is_running(self) -> bool {
        matches!(self, Self::Running(_))
    }

    pub fn deadline(self, limits: &Limits) -> Option<Instant> {
        let timeout = limits.body_timeout?;
        match self {
            Self::Off | Self::Armed => None,
            Self::Paused(period) | Self::Running(period) => {
                let first = if limits.min_bytes_per_s == 0 {
                    period.last
                } else {
                    period.start
                };
                Some(first.min(period.last) + timeout)
            }
        }
    }

    /// Whether the peer is too slow. A period that passed the check starts the next one.
    pub fn expired(&mut self, now: Instant, limits: &Limits) -> bool {
        if self.deadline(limits).is_none_or(|deadline| now < deadline) {
            return false;
        }
        let Self::Running(period) = *self else {
            self.start(now);
            return false;
        };
        let timeout = limits.body_timeout.unwrap_or(Duration::MAX);
        if now >= period.last + timeout || period.bytes < min_bytes(timeout, limits) {
            return true;
        }
        *self = Self::Running(Period {
            last: period.last,
            start: now,
            bytes: 0,
        });
        false
    }
}

fn min_bytes(period: Duration, limits: &Limits) -> u64 {
    u64::from(limits.min_bytes_per_s).saturating_mul(period.as_millis() as u64) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn silence_and_slow_drip_expire_a_steady_flow_does_not() {
        let limits = Limits::server();
        let start = Instant::now();
        let mut silent = ProgressTimer::Off;
        silent.start(start);
        assert!(!silent.expired(start + 29 * S, &limits));
        assert!(silent.expired(start + 30 * S, &limits));

        let mut drip = ProgressTimer::Off;
        let mut steady = ProgressTimer::Off;
        drip.start(start);
        steady.start(start);
        for second in 1..=29 {
            drip.advance(start + second * S, 1);
            steady.advance(start + second * S, 200);
        }
        assert!(drip.expired(start + 30 * S, &limits));
        assert!(!steady.expired(start + 30 * S, &limits));
        assert!(steady.expired(start + 60 * S, &limits));
    }

    #[test]
    fn a_pause_restarts_the_period() {
        let limits = Limits::server();
        let start = Instant::now();
        let mut timer = ProgressTimer::Off;
        timer.start(start);
        timer.pause();
        assert!(!timer.expired(start + 300 * S, &limits));
        assert!(!timer.expired(start + 329 * S, &limits));
        assert!(timer.expired(start + 330 * S, &limits));
    }
}
