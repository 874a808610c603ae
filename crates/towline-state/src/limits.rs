//! Rate limits as functions of their stored state and the time: a token bucket and a sliding window.
#![allow(clippy::cast_precision_loss)] // counts and times far below 2^52

/// A decision: whether the request is allowed, what is left, and the seconds until it would be allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grant {
    pub is_allowed: bool,
    pub remaining: f64,
    pub retry_after: f64,
}

/// State of a token bucket: tokens at a time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    pub tokens: f64,
    pub at_ms: u64,
}

impl Bucket {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (tokens, at) = bytes.split_first_chunk::<8>()?;
        Some(Self {
            tokens: f64::from_le_bytes(*tokens),
            at_ms: u64::from_le_bytes(at.try_into().ok()?),
        })
    }

    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[8..].copy_from_slice(&self.at_ms.to_le_bytes());
        bytes
    }

    /// Take `cost` tokens, if there are as many. `bucket`: `None` is a full one. A clock that goes back adds nothing.
    pub fn take(
        bucket: Option<Self>,
        capacity: f64,
        per_second: f64,
        cost: f64,
        now_ms: u64,
    ) -> (Self, Grant) {
        let before = bucket.unwrap_or(Self {
            tokens: capacity,
            at_ms: now_ms,
        });
        let seconds = now_ms.saturating_sub(before.at_ms) as f64 / 1000.0;
        let tokens = (before.tokens + seconds * per_second).min(capacity);
        let at_ms = now_ms.max(before.at_ms);
        if cost <= tokens {
            let left = tokens - cost;
            return (
                Self {
                    tokens: left,
                    at_ms,
                },
                Grant {
                    is_allowed: true,
                    remaining: left,
                    retry_after: 0.0,
                },
            );
        }
        let retry_after = if cost > capacity {
            f64::INFINITY
        } else {
            (cost - tokens) / per_second
        };
        (
            Self { tokens, at_ms },
            Grant {
                is_allowed: false,
                remaining: tokens,
                retry_after,
            },
        )
    }
}

/// State of a sliding window: events of the fixed window `index`, and of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub index: u64,
    pub previous: u64,
    pub current: u64,
}

impl Window {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            index: number(0)?,
            previous: number(8)?,
            current: number(16)?,
        })
    }

    pub fn bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        for (at, number) in [self.index, self.previous, self.current]
            .into_iter()
            .enumerate()
        {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Count `cost` events, if the window then has at most `limit`. A refused request counts nothing.
    pub fn take(self, limit: u64, window_ms: u64, cost: u64, now_ms: u64) -> (Self, Grant) {
        let index = (now_ms / window_ms).max(self.index);
        let mut state = match index - self.index {
            0 => self,
            1 => Self {
                index,
                previous: self.current,
                current: 0,
            },
            _ => Self {
                index,
                ..Self::default()
            },
        };
        let passed = (now_ms.saturating_sub(index * window_ms) as f64 / window_ms as f64).min(1.0);
        let estimate = state.previous as f64 * (1.0 - passed) + state.current as f64;
        let (limit, cost_) = (limit as f64, cost as f64);
        if estimate + cost_ <= limit {
            state.current += cost;
            let remaining = limit - estimate - cost_;
            return (
                state,
                Grant {
                    is_allowed: true,
                    remaining,
                    retry_after: 0.0,
                },
            );
        }
        let windows = windows_until(state, passed, limit - cost_);
        let retry_after = windows * window_ms as f64 / 1000.0;
        (
            state,
            Grant {
                is_allowed: false,
                remaining: (limit - estimate).max(0.0),
                retry_after,
            },
        )
    }
}

/// Windows until the estimate is at most `target`: within this one, while the previous one leaves, or in the next.
fn windows_until(state: Window, passed: f64, target: f64) -> f64 {
    let (previous, current) = (state.previous as f64, state.current as f64);
    if target < 0.0 {
        return f64::INFINITY;
    }
    if current <= target {
        return 1.0 - (target - current) / previous - passed;
    }
    1.0 - passed + 1.0 - target / current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_allows_its_capacity_then_its_rate() {
        let mut bucket = None;
        let mut take = |now| {
            let (next, grant) = Bucket::take(bucket, 3.0, 2.0, 1.0, now);
            bucket = Some(next);
            grant
        };
        assert!((0..3).all(|_| take(1000).is_allowed));
        let refused = take(1000);
        assert_eq!(
            refused,
            Grant {
                is_allowed: false,
                remaining: 0.0,
                retry_after: 0.5
            }
        );
        assert!(!take(1499).is_allowed);
        assert!(take(1500).is_allowed);
        assert!(!take(900).is_allowed, "a clock that goes back adds nothing");
    }

    #[test]
    fn a_cost_above_the_capacity_is_never_allowed() {
        let (_, grant) = Bucket::take(None, 3.0, 2.0, 4.0, 0);
        assert_eq!(
            (grant.is_allowed, grant.retry_after),
            (false, f64::INFINITY)
        );
    }

    #[test]
    fn a_window_weighs_the_previous_one() {
        let full = Window {
            index: 5,
            previous: 0,
            current: 10,
        };
        let (state, grant) = full.take(10, 1000, 1, 5_900);
        assert_eq!(state, full);
        assert!(!grant.is_allowed);
        // At 6.1 s nine tenths of window 5 count: 9 events; one more is allowed, a second is not.
        assert!((grant.retry_after - 0.2).abs() < 1e-9, "{grant:?}");
        let (state, grant) = full.take(10, 1000, 1, 6_100);
        assert_eq!(
            (grant.is_allowed, state.previous, state.current),
            (true, 10, 1)
        );
        assert!(!state.take(10, 1000, 1, 6_100).1.is_allowed);
        // Two windows later nothing counts.
        assert!(state.take(10, 1000, 10, 8_000).1.is_allowed);
    }

    #[test]
    fn a_refused_request_is_allowed_after_the_stated_time() {
        for (previous, current, now) in [
            (10, 3, 6_300),
            (4, 9, 6_500),
            (0, 10, 6_999),
            (10, 0, 6_000),
        ] {
            let state = Window {
                index: 6,
                previous,
                current,
            };
            let (state, grant) = state.take(10, 1000, 2, now);
            if grant.is_allowed {
                continue;
            }
            let later = now + crate::values::milliseconds(grant.retry_after) + 1;
            assert!(
                state.take(10, 1000, 2, later).1.is_allowed,
                "{state:?} at {later}: {grant:?}"
            );
        }
    }

    #[test]
    fn states_are_read_as_they_were_written() {
        let bucket = Bucket {
            tokens: 1.5,
            at_ms: 7,
        };
        assert_eq!(Bucket::read(&bucket.bytes()), Some(bucket));
        let window = Window {
            index: 1,
            previous: 2,
            current: 3,
        };
        assert_eq!(Window::read(&window.bytes()), Some(window));
        assert!(Bucket::read(b"12").is_none() && Window::read(b"12").is_none());
    }
}
