//! Token buckets: rate limits of frames that cost work and carry no data.

use std::time::{Duration, Instant};

use crate::RateLimit;

/// Thousandths of a token.
const TOKEN: u64 = 1000;

/// The tokens left of a [`RateLimit`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenBucket {
    milli: u64,
    filled: Instant,
}

impl TokenBucket {
    pub fn full(limit: RateLimit, now: Instant) -> Self {
        Self {
            milli: u64::from(limit.burst) * TOKEN,
            filled: now,
        }
    }

    /// Takes one token; returns false if there is none.
    pub fn take(&mut self, limit: RateLimit, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled).as_millis();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        if elapsed > 0 {
            let back = elapsed.saturating_mul(u64::from(limit.per_s));
            let max = u64::from(limit.burst) * TOKEN;
            self.milli = self.milli.saturating_add(back).min(max);
            // The rest of a millisecond counts the next time.
            self.filled += Duration::from_millis(elapsed);
        }
        match self.milli.checked_sub(TOKEN) {
            Some(milli) => {
                self.milli = milli;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_a_rate() {
        let limit = RateLimit {
            burst: 100,
            per_s: 33,
        };
        let start = Instant::now();
        let mut bucket = TokenBucket::full(limit, start);
        let mut take = |at| bucket.take(limit, at);
        assert_eq!((0..1000).filter(|_| take(start)).count(), 100);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..1000).filter(|_| take(later)).count(), 33);
        let much_later = start + Duration::from_secs(100_000);
        assert_eq!((0..1000).filter(|_| take(much_later)).count(), 100);
    }

    #[test]
    fn idle_time_saves_no_more_than_a_burst() {
        let limit = RateLimit {
            burst: 100,
            per_s: 33,
        };
        let start = Instant::now();
        let mut bucket = TokenBucket::full(limit, start);
        let later = start + Duration::from_secs(3600);
        let taken = (0..1000).filter(|_| bucket.take(limit, later)).count();
        assert_eq!(taken, 100);
    }

    #[test]
    fn fractions_of_a_millisecond_add_up() {
        let limit = RateLimit {
            burst: 1,
            per_s: 1000,
        };
        let start = Instant::now();
        let mut bucket = TokenBucket::full(limit, start);
        let times = (0..1001_u32).map(|n| start + Duration::from_micros(100) * n);
        let taken = times.filter(|&at| bucket.take(limit, at)).count();
        assert_eq!(taken, 101);
    }
}
