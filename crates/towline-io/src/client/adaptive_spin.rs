//! Decides whether to poll the socket for a moment before sleeping until the response arrives. Sleeping and
//! waking costs two context switches here and an interrupt from the server's core, which on a virtual machine
//! takes as long as a server on the same host needs to respond. Polling makes sequential GETs of a thread 1.3 times as
//! fast there, those of one or two tasks in an event loop twice, and takes no more CPU time. A thread that is alone in its
//! client, and a loop with few calls in flight, therefore polls first, as long as that succeeds: each miss doubles the
//! number of responses that are waited for without polling, each hit halves it. A loop runs its other callbacks between
//! two polls.

use std::time::Duration;

/// A server on another host takes longer; at worst this time is lost once in `LONGEST_REST` responses.
pub const SPIN_TIME: Duration = Duration::from_micros(40);

/// Most responses waited for without polling between two attempts.
const LONGEST_REST: u32 = 256;

/// Hits and misses of polling on one connection, or in one event loop.
#[derive(Debug, Default)]
pub struct AdaptiveSpin {
    /// Responses to wait for without polling before the next attempt.
    resting: u32,
    /// The value of `resting` after the next miss.
    next_rest: u32,
}

impl AdaptiveSpin {
    /// Whether to poll this time.
    pub fn should_spin(&mut self) -> bool {
        let should_spin = self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        should_spin
    }

    pub fn on_hit(&mut self) {
        self.next_rest /= 2;
    }

    pub fn on_miss(&mut self) {
        self.next_rest = (self.next_rest * 2).clamp(1, LONGEST_REST);
        self.resting = self.next_rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disappointments_make_attempts_rare_and_rewards_frequent() {
        let mut spin = AdaptiveSpin::default();
        let slow = (0..100_000)
            .filter(|_| {
                let should_spin = spin.should_spin();
                if should_spin {
                    spin.on_miss();
                }
                should_spin
            })
            .count();
        assert!(slow < 450, "{slow} attempts, all without a hit");
        while !spin.should_spin() {}
        for _ in 0..32 {
            spin.on_hit();
        }
        spin.on_miss();
        assert!(!spin.should_spin());
        assert!(
            spin.should_spin(),
            "one disappointment among rewards is forgotten at once"
        );
    }
}
