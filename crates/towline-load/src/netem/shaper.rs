//! Rate limit, delay, jitter and loss of one direction: computes when bytes leave and when they arrive.
//! Pure: time and the random seed are arguments.

use std::time::{Duration, Instant};

use super::conditions::{NetworkConditions, bytes_in};

/// Payload of a segment on Ethernet with timestamps.
const SEGMENT_BYTES: usize = 1448;
/// Minimum retransmission timeout on Linux.
const MIN_RTO: Duration = Duration::from_millis(200);
/// Later segments that make a sender retransmit at once (RFC 5681 3.2).
const DUPLICATE_ACKS: usize = 3;
/// Largest backlog of the link, as transmission time; senders wait beyond it.
const MAX_BACKLOG: Duration = Duration::from_millis(5);
/// Largest backlog of the link for datagrams, whose senders do not wait: beyond it they are lost, which is how their
/// congestion control learns the rate. A round trip's worth, as routers have, and at least this, unless one is given.
const MIN_DATAGRAM_BACKLOG: Duration = Duration::from_millis(10);
/// Least delay of a reordered datagram; otherwise a quarter of a round trip.
const MIN_LATENESS: Duration = Duration::from_millis(1);
/// Bytes of the IPv4 and UDP headers of a datagram, which take their time on the link.
pub(super) const DATAGRAM_HEADER_BYTES: usize = 28;
/// Largest transmission time of one piece, so that connections share the link evenly.
const MAX_PIECE_TIME_S: f64 = 0.0005;

/// Arrival of a datagram, once or twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    pub due: Instant,
    pub copies: usize,
}

/// Traffic shaper of one direction, shared by all connections.
pub struct Shaper {
    conditions: NetworkConditions,
    /// Time at which the accepted bytes will have left.
    free_at: Instant,
    random_state: u64,
}

impl Shaper {
    pub fn new(conditions: &NetworkConditions, direction: u64, now: Instant) -> Self {
        Self {
            conditions: conditions.clone(),
            free_at: now,
            // Never 0, which is a fixed point of xorshift.
            random_state: conditions.seed.wrapping_mul(2).wrapping_add(direction)
                ^ 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Time at which the backlog has room again; `None` when it has room now.
    pub fn full_until(&self, now: Instant) -> Option<Instant> {
        let room_at = self.free_at.checked_sub(MAX_BACKLOG)?;
        (room_at >= now).then_some(room_at)
    }

    /// Largest size of a piece.
    pub fn piece_bytes(&self) -> usize {
        const MAX_BYTES: usize = 64 * 1024;
        self.conditions.rate.map_or(MAX_BYTES, |rate| {
            bytes_in(rate, MAX_PIECE_TIME_S).clamp(SEGMENT_BYTES, MAX_BYTES)
        })
    }

    /// Accepts a piece that is ready to leave at `now` and returns its arrival time. `in_flight` is the
    /// number of bytes that the same connection has in flight already.
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

    /// Accepts a datagram of `bytes` of payload at `now`; `None` when it is lost, on the way or because the link's
    /// queue is full. It arrives after the one sent before it, at `last_due`, unless it is reordered.
    pub fn datagram(
        &mut self,
        now: Instant,
        bytes: usize,
        last_due: &mut Instant,
    ) -> Option<Passage> {
        let mut left = now;
        if let Some(rate) = self.conditions.rate {
            let backlog = self.free_at.saturating_duration_since(now);
            let queue =
                (self.conditions.queue).unwrap_or(self.conditions.rtt.max(MIN_DATAGRAM_BACKLOG));
            if backlog > queue {
                return None;
            }
            #[expect(clippy::cast_precision_loss, reason = "a datagram is small")]
            let time = Duration::from_secs_f64((bytes + DATAGRAM_HEADER_BYTES) as f64 / rate);
            self.free_at = self.free_at.max(now) + time;
            left = self.free_at;
        }
        if self.happens(self.conditions.loss) {
            return None;
        }
        let due = left + self.one_way();
        let copies = if self.happens(self.conditions.duplicates) {
            2
        } else {
            1
        };
        let due = if self.happens(self.conditions.reorder) {
            due + (self.conditions.rtt / 4).max(MIN_LATENESS)
        } else {
            *last_due = due.max(*last_due);
            *last_due
        };
        Some(Passage { due, copies })
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.draw() < share
    }

    /// Arrival time of a FIN or a reset: a segment without payload, which is never lost.
    pub fn pass(&mut self, now: Instant) -> Instant {
        self.free_at.max(now) + self.one_way()
    }

    /// Half of a round trip, plus or minus half of the jitter.
    fn one_way(&mut self) -> Duration {
        let NetworkConditions { rtt, jitter, .. } = self.conditions;
        if jitter.is_zero() {
            return rtt / 2;
        }
        (rtt / 2 + jitter.mul_f64(self.draw())).saturating_sub(jitter / 2)
    }

    /// Delay of a lost segment: a round trip if later segments reveal the loss, else a timeout.
    fn recovery(&mut self, bytes: usize, in_flight: usize) -> Duration {
        let loss = self.conditions.loss;
        if loss <= 0.0 {
            return Duration::ZERO;
        }
        let segments = bytes.div_ceil(SEGMENT_BYTES);
        let kept = (1.0 - loss).powi(segments.try_into().unwrap_or(i32::MAX));
        if self.draw() < kept {
            Duration::ZERO
        } else if in_flight / SEGMENT_BYTES + segments > DUPLICATE_ACKS {
            self.conditions.rtt
        } else {
            MIN_RTO.max(2 * self.conditions.rtt)
        }
    }

    /// Random number from 0 to 1 by xorshift64*: repeatable, and good enough for delays.
    fn draw(&mut self) -> f64 {
        self.random_state ^= self.random_state >> 12;
        self.random_state ^= self.random_state << 25;
        self.random_state ^= self.random_state >> 27;
        let bits = self.random_state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let number = bits as f64;
        number / 2_f64.powi(53)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaper(conditions: &NetworkConditions) -> (Shaper, Instant) {
        let now = Instant::now();
        (Shaper::new(conditions, 0, now), now)
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_piece_takes_half_a_round_trip_and_its_time_on_the_link() {
        let (mut shaper, now) = shaper(&NetworkConditions {
            rtt: 20 * MS,
            rate: Some(1_000_000.0),
            ..NetworkConditions::default()
        });
        assert_eq!(shaper.send(now, 1000, 0), now + 11 * MS);
        // After the previous piece; later, the link is free again.
        assert_eq!(shaper.send(now, 1000, 0), now + 12 * MS);
        assert_eq!(shaper.send(now + 50 * MS, 2000, 0), now + 62 * MS);
        assert_eq!(shaper.full_until(now + 50 * MS), None);
        shaper.send(now + 50 * MS, 6000, 0);
        assert_eq!(shaper.full_until(now + 50 * MS), Some(now + 53 * MS));
    }

    #[test]
    fn datagrams_are_lost_repeated_and_reordered_in_the_configured_shares() {
        let (mut shaper, now) = shaper(&NetworkConditions {
            rtt: 20 * MS,
            loss: 0.02,
            reorder: 0.05,
            duplicates: 0.01,
            ..NetworkConditions::default()
        });
        let mut last_due = now;
        let passed: Vec<_> = (0..100_000)
            .map(|_| shaper.datagram(now, 1200, &mut last_due))
            .collect();
        let lost = passed.iter().filter(|one| one.is_none()).count();
        let late = passed
            .iter()
            .flatten()
            .filter(|one| one.due == now + 15 * MS);
        let late = late.count();
        let twice = passed
            .iter()
            .flatten()
            .filter(|one| one.copies == 2)
            .count();
        // Five standard deviations of each.
        assert!((1780..=2220).contains(&lost), "{lost}");
        assert!((4560..=5240).contains(&late), "{late}");
        assert!((825..=1135).contains(&twice), "{twice}");
    }

    #[test]
    fn datagrams_beyond_the_queue_of_the_link_are_lost() {
        let (mut shaper, now) = shaper(&NetworkConditions {
            rtt: 20 * MS,
            rate: Some(1_000_000.0),
            ..NetworkConditions::default()
        });
        // One takes 1 ms: 20 ms of backlog are full after 21 of them.
        let mut last_due = now;
        let passed = (0..100)
            .filter(|_| shaper.datagram(now, 972, &mut last_due).is_some())
            .count();
        assert_eq!(passed, 21);
        assert!(shaper.datagram(now + 5 * MS, 972, &mut last_due).is_some());
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_uses_them() {
        let (mut shaper, now) = shaper(&NetworkConditions {
            rtt: 20 * MS,
            jitter: 4 * MS,
            ..NetworkConditions::default()
        });
        let delays: Vec<_> = (0..1000).map(|_| shaper.send(now, 1, 0) - now).collect();
        assert!(
            delays
                .iter()
                .all(|delay| (8 * MS..=12 * MS).contains(delay))
        );
        assert!(delays.iter().any(|delay| *delay < 9 * MS));
        assert!(delays.iter().any(|delay| *delay > 11 * MS));
    }

    #[test]
    fn lost_segments_are_delayed_in_the_configured_share() {
        let (mut shaper, now) = shaper(&NetworkConditions {
            rtt: 20 * MS,
            loss: 0.01,
            ..NetworkConditions::default()
        });
        let delays: Vec<_> = (0..100_000)
            .map(|_| shaper.send(now, 100, 0) - now)
            .collect();
        let lost = delays.iter().filter(|delay| **delay == 210 * MS).count();
        // Five standard deviations.
        assert!((840..=1160).contains(&lost), "{lost}");
        let kept = delays.iter().filter(|delay| **delay == 10 * MS).count();
        assert_eq!(kept + lost, delays.len());
        // With more segments in flight the loss costs a round trip.
        let slowest = (0..10_000)
            .map(|_| shaper.send(now, 100, 10_000) - now)
            .max();
        assert_eq!(slowest, Some(30 * MS));
    }
}
