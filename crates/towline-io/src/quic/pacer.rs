//! Sending at the rate of a congestion controller: a bucket of bytes that fills at this rate.
//!
//! quinn paces by the window, at 5/4 of a window per round trip. A controller that knows the rate asks for less.

use std::time::{Duration, Instant};

/// Bytes sent at once after a pause: this time at the rate, and quinn's least burst.
const BURST_TIME: Duration = Duration::from_millis(4);
const MIN_BURST_BYTES: u64 = 10 * 1200;
/// Bytes for which a full datagram counts.
const DATAGRAM_BYTES: u64 = 1200;
/// Time between two turns of a connection that has more to send, unless one datagram takes longer.
const TURN: Duration = Duration::from_millis(1);
/// Longest wait, which also delays acknowledgements and probes: below the 25 ms that a peer expects (RFC 9000 18.2).
const MAX_WAIT: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct Pacer {
    bytes: u64,
    filled_at: Option<Instant>,
    /// Nothing is sent before this time.
    until: Option<Instant>,
}

impl Pacer {
    /// Datagrams that may be sent now at `rate`, in bytes per second; 0: wait for [`until`](Self::until).
    pub(super) fn datagrams(&mut self, now: Instant, rate: u64) -> usize {
        if self.until.is_some_and(|until| now < until) {
            return 0;
        }
        let burst = bytes_in(BURST_TIME, rate).max(MIN_BURST_BYTES);
        let filled = match self.filled_at.replace(now) {
            Some(at) => bytes_in(now.saturating_duration_since(at), rate),
            None => burst,
        };
        self.bytes = (self.bytes + filled).min(burst);
        let is_late = self.until.take().is_some();
        if self.bytes < DATAGRAM_BYTES && !is_late {
            let missing = bytes_in(TURN, rate).max(DATAGRAM_BYTES) - self.bytes;
            let wait = Duration::from_nanos(missing.saturating_mul(1_000_000_000) / rate.max(1));
            self.until = Some(now + wait.min(MAX_WAIT));
            return 0;
        }
        (self.bytes / DATAGRAM_BYTES).max(1) as usize
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }

    /// When sending goes on, if it waits for the rate.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }
}

fn bytes_in(time: Duration, rate: u64) -> u64 {
    let micros = time.min(Duration::from_secs(1)).as_micros() as u64;
    rate.saturating_mul(micros) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends for `time` whenever the pacer allows it, and returns the bytes.
    fn sent_in(time: Duration, rate: u64, lateness: Duration) -> u64 {
        let start = Instant::now();
        let (mut pacer, mut now, mut sent) = (Pacer::default(), start, 0);
        while now < start + time {
            match pacer.datagrams(now, rate) {
                0 => now = pacer.until().expect("it waits") + lateness,
                datagrams => {
                    pacer.sent(datagrams * 1200);
                    sent += datagrams as u64 * 1200;
                }
            }
        }
        sent
    }

    #[test]
    fn bytes_leave_at_the_rate_even_if_turns_are_late() {
        for rate in [1_000_000, 10_000_000, 100_000_000] {
            for lateness in [Duration::ZERO, MS / 10, 2 * MS] {
                let sent = sent_in(1000 * MS, rate, lateness);
                assert!(
                    (rate * 98 / 100..=rate * 102 / 100 + MIN_BURST_BYTES).contains(&sent),
                    "{sent} in place of {rate}, {lateness:?} late"
                );
            }
        }
    }

    #[test]
    fn a_pause_allows_one_burst() {
        let (mut pacer, now) = (Pacer::default(), Instant::now());
        assert_eq!(pacer.datagrams(now, 10_000_000), 33);
        pacer.sent(33 * 1200);
        assert_eq!(pacer.datagrams(now, 10_000_000), 0);
        assert_eq!(pacer.datagrams(now + 5000 * MS, 10_000_000), 33);
    }

    #[test]
    fn a_low_rate_delays_acknowledgements_and_probes_by_ten_milliseconds() {
        let (mut pacer, now) = (Pacer::default(), Instant::now());
        let datagrams = pacer.datagrams(now, 1000);
        pacer.sent(datagrams * 1200);
        assert_eq!(pacer.datagrams(now, 1000), 0);
        assert_eq!(pacer.until(), Some(now + MAX_WAIT));
        assert_eq!(pacer.datagrams(now + MAX_WAIT, 1000), 1);
    }

    #[test]
    fn no_rate_is_no_limit() {
        let (mut pacer, now) = (Pacer::default(), Instant::now());
        for _ in 0..100 {
            assert!(pacer.datagrams(now, u64::MAX / 8) > 1000);
            pacer.sent(64 * 1200);
        }
    }
}
