//! Order and start times of connection attempts (RFC 8305): address families alternate, and the next attempt
//! starts after a delay, or at once when one has failed. It uses no socket and no clock.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct HappyEyeballs {
    untried: VecDeque<SocketAddr>,
    running: usize,
    delay: Duration,
    /// Earliest time of the next attempt while others run.
    next_at: Instant,
}

impl HappyEyeballs {
    pub(super) fn new(addrs: &[SocketAddr], delay: Duration, now: Instant) -> Self {
        Self {
            untried: interleave(addrs),
            running: 0,
            delay,
            next_at: now,
        }
    }

    /// Returns the address of an attempt to start now.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<SocketAddr> {
        if self.running > 0 && now < self.next_at {
            return None;
        }
        let addr = self.untried.pop_front()?;
        self.running += 1;
        self.next_at = now + self.delay;
        Some(addr)
    }

    /// Records that an attempt has failed; the next may start at once.
    pub(super) fn on_failure(&mut self, now: Instant) {
        self.running = self.running.saturating_sub(1);
        self.next_at = now;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.untried.is_empty()).then_some(self.next_at)
    }

    pub(super) fn all_failed(&self) -> bool {
        self.untried.is_empty() && self.running == 0
    }
}

/// Alternates the families, beginning with that of the first address, which the system prefers (RFC 8305 4).
fn interleave(addrs: &[SocketAddr]) -> VecDeque<SocketAddr> {
    let first_is_v6 = addrs.first().is_some_and(SocketAddr::is_ipv6);
    let of = |v6: bool| {
        addrs
            .iter()
            .copied()
            .filter(move |addr| addr.is_ipv6() == v6)
    };
    let (mut first, mut second) = (of(first_is_v6), of(!first_is_v6));
    let mut order = VecDeque::with_capacity(addrs.len());
    while order.len() < addrs.len() {
        order.extend(first.next());
        order.extend(second.next());
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(250);

    fn addrs(hosts: &[&str]) -> Vec<SocketAddr> {
        let addr = |host: &&str| SocketAddr::new(host.parse().unwrap(), 80);
        hosts.iter().map(addr).collect()
    }

    #[test]
    fn address_families_alternate() {
        let order = |hosts: &[&str]| {
            let order = interleave(&addrs(hosts));
            order
                .iter()
                .map(|addr| addr.ip().to_string())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            order(&["::1", "::2", "::3", "10.0.0.1", "10.0.0.2"]),
            "::1 10.0.0.1 ::2 10.0.0.2 ::3"
        );
        assert_eq!(
            order(&["10.0.0.1", "10.0.0.2", "::1"]),
            "10.0.0.1 ::1 10.0.0.2"
        );
        assert_eq!(order(&["10.0.0.1"]), "10.0.0.1");
        assert_eq!(order(&[]), "");
    }

    #[test]
    fn attempts_start_after_the_delay_or_when_one_fails() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let list = addrs(&["::1", "10.0.0.1", "::2", "10.0.0.2"]);
        let mut happy_eyeballs = HappyEyeballs::new(&list, DELAY, start);
        assert_eq!(happy_eyeballs.next_due(start), Some(list[0]));
        assert_eq!(happy_eyeballs.next_due(start), None);
        assert_eq!(happy_eyeballs.deadline(), Some(at(250)));
        assert_eq!(happy_eyeballs.next_due(at(249)), None);
        assert_eq!(happy_eyeballs.next_due(at(250)), Some(list[1]));
        // The first fails: the next starts before 500.
        happy_eyeballs.on_failure(at(300));
        assert_eq!(happy_eyeballs.deadline(), Some(at(300)));
        assert_eq!(happy_eyeballs.next_due(at(300)), Some(list[2]));
        assert_eq!(happy_eyeballs.next_due(at(300)), None);
        assert_eq!(happy_eyeballs.next_due(at(550)), Some(list[3]));
        assert_eq!(happy_eyeballs.deadline(), None);
        happy_eyeballs.on_failure(at(600));
        happy_eyeballs.on_failure(at(600));
        assert!(!happy_eyeballs.all_failed());
        happy_eyeballs.on_failure(at(700));
        assert!(happy_eyeballs.all_failed());
    }

    #[test]
    fn without_a_running_attempt_the_next_starts_at_once() {
        let start = Instant::now();
        let list = addrs(&["::1", "10.0.0.1"]);
        let mut happy_eyeballs = HappyEyeballs::new(&list, DELAY, start);
        happy_eyeballs.next_due(start).unwrap();
        happy_eyeballs.on_failure(start);
        assert_eq!(happy_eyeballs.next_due(start), Some(list[1]));
        assert!(HappyEyeballs::new(&[], DELAY, start).all_failed());
    }
}
