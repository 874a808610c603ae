//! What a network does to bytes, one direction of it: when they leave and when they arrive. Pure: time and
//! the seed of chance are arguments.

use std::time::{Duration, Instant};

use super::Conditions;

/// Payload of a segment on Ethernet with timestamps.
const SEGMENT_BYTES: usize = 1448;
/// The least retransmission timeout that Linux keeps.
const LEAST_RTO: Duration = Duration::from_millis(200);
/// So many later segments tell a sender at once that one is missing (RFC 5681 3.2).
const DUPLICATES: usize = 3;
/// So much of the link's time may be queued before it; then senders wait.
pub const QUEUE: Duration = Duration::from_millis(5);
/// A piece takes so much of the link's time at most, so that connections share it evenly.
const PIECE_TIME_S: f64 = 0.0005;

/// The link in one direction, shared by all connections.
pub struct Link {
    conditions: Conditions,
    /// When what has been handed over will have left.
    free_at: Instant,
    chance: u64,
}

impl Link {
    pub fn new(conditions: &Conditions, direction: u64, now: Instant) -> Self {
        Self {
            conditions: conditions.clone(),
            free_at: now,
            // Never 0, which xorshift would keep.
            chance: conditions.seed.wrapping_mul(2).wrapping_add(direction) ^ 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// None: there is room in the queue; otherwise when there will be.
    pub fn full_until(&self, now: Instant) -> Option<Instant> {
        let room_at = self.free_at.checked_sub(QUEUE)?;
        (room_at >= now).then_some(room_at)
    }

    /// How many bytes a piece may have.
    pub fn piece_bytes(&self) -> usize {
        const MOST: usize = 64 * 1024;
        self.conditions.rate.map_or(MOST, |rate| {
            bytes_in(rate, PIECE_TIME_S).clamp(SEGMENT_BYTES, MOST)
        })
    }

    /// Takes a piece that is ready to leave at `now`; when it arrives. `in_flight` is what the same
    /// connection has on its way already.
    pub fn send(&mut self, now: Instant, bytes: usize, in_flight: usize) -> Instant {
        let mut left = now;
        if let Some(rate) = self.conditions.rate {
            #[expect(clippy::cast_precision_loss, reason = "a piece is small")]
            let time = Duration::from_secs_f64(bytes as f64 / rate);
            self.free_at = self.free_at.max(now) + time;
            left = self.free_at;
        }
        left + self.one_way() + self.recovery(bytes, in_flight)
    }

    /// What an end of stream or a reset takes: a segment without payload, which is never lost.
    pub fn pass(&mut self, now: Instant) -> Instant {
        self.free_at.max(now) + self.one_way()
    }

    /// Half of a round trip, give or take half of its jitter.
    fn one_way(&mut self) -> Duration {
        let Conditions { rtt, jitter, .. } = self.conditions;
        if jitter.is_zero() {
            return rtt / 2;
        }
        (rtt / 2 + jitter.mul_f64(self.draw())).saturating_sub(jitter / 2)
    }

    /// TCP makes a delay of each loss: a round trip where later segments show it, else a timeout.
    fn recovery(&mut self, bytes: usize, in_flight: usize) -> Duration {
        let loss = self.conditions.loss;
        if loss <= 0.0 {
            return Duration::ZERO;
        }
        let segments = bytes.div_ceil(SEGMENT_BYTES);
        let kept = (1.0 - loss).powi(segments.try_into().unwrap_or(i32::MAX));
        if self.draw() < kept {
            Duration::ZERO
        } else if in_flight / SEGMENT_BYTES + segments > DUPLICATES {
            self.conditions.rtt
        } else {
            LEAST_RTO.max(2 * self.conditions.rtt)
        }
    }

    /// 0 to 1, xorshift64*: repeatable, and good enough for delays.
    fn draw(&mut self) -> f64 {
        self.chance ^= self.chance >> 12;
        self.chance ^= self.chance << 25;
        self.chance ^= self.chance >> 27;
        let bits = self.chance.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let number = bits as f64;
        number / 2_f64.powi(53)
    }
}

/// What passes at a rate in a time.
#[expect(clippy::cast_sign_loss, reason = "neither is negative")]
pub fn bytes_in(rate: f64, seconds: f64) -> usize {
    (rate * seconds) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(conditions: &Conditions) -> (Link, Instant) {
        let now = Instant::now();
        (Link::new(conditions, 0, now), now)
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_piece_takes_half_a_round_trip_and_its_time_on_the_link() {
        let (mut link, now) = link(&Conditions {
            rtt: 20 * MS,
            rate: Some(1_000_000.0),
            ..Conditions::default()
        });
        assert_eq!(link.send(now, 1000, 0), now + 11 * MS);
        // Behind the one before; later, the link is free again.
        assert_eq!(link.send(now, 1000, 0), now + 12 * MS);
        assert_eq!(link.send(now + 50 * MS, 2000, 0), now + 62 * MS);
        assert_eq!(link.full_until(now + 50 * MS), None);
        link.send(now + 50 * MS, 6000, 0);
        assert_eq!(link.full_until(now + 50 * MS), Some(now + 53 * MS));
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_uses_them() {
        let (mut link, now) = link(&Conditions {
            rtt: 20 * MS,
            jitter: 4 * MS,
            ..Conditions::default()
        });
        let delays: Vec<_> = (0..1000).map(|_| link.send(now, 1, 0) - now).collect();
        assert!(
            delays
                .iter()
                .all(|delay| (8 * MS..=12 * MS).contains(delay))
        );
        assert!(delays.iter().any(|delay| *delay < 9 * MS));
        assert!(delays.iter().any(|delay| *delay > 11 * MS));
    }

    #[test]
    fn a_loss_is_a_delay_of_its_share() {
        let (mut link, now) = link(&Conditions {
            rtt: 20 * MS,
            loss: 0.01,
            ..Conditions::default()
        });
        let delays: Vec<_> = (0..100_000).map(|_| link.send(now, 100, 0) - now).collect();
        let lost = delays.iter().filter(|delay| **delay == 210 * MS).count();
        // Five standard deviations.
        assert!((840..=1160).contains(&lost), "{lost}");
        let kept = delays.iter().filter(|delay| **delay == 10 * MS).count();
        assert_eq!(kept + lost, delays.len());
        // In a stream the next segments show it.
        let slowest = (0..10_000).map(|_| link.send(now, 100, 10_000) - now).max();
        assert_eq!(slowest, Some(30 * MS));
    }
}
