//! A token bucket of a client in one word: the time until which its requests have spent its allowance (GCRA, ITU-T I.371).
//!
//! ```text
//!          now               spent until      now + burst
//!   ────────┼─────────────────────┼───────────────┼────►
//!           └──── the debt ───────┘ one interval is added for each request; beyond the end it is refused
//! ```
//!
//! A client has a place in one set of eight words. If all have other clients, it takes over the word with the smallest
//! debt, *with* that debt (as Space-Saving does, Metwally et al. 2005). So a client that comes back finds at least the
//! debt that it has left: nobody gets a new allowance by filling the table. A full table makes new clients wait if all
//! eight clients of a set are in debt. A word whose debt is over is free.
//!
//! The words of a set only rise. So two threads that add the same client at the same time choose the same word, and
//! one of them finds the other's client at its second look.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of a set: a cache line.
pub(super) const WAYS: usize = 8;

/// Nanoseconds of a tick, as a shift: 1024.
const TICK_SHIFT: u32 = 10;
/// The shortest interval: 50,000 requests a second. Rounding makes it at most a twentieth longer.
const MIN_INTERVAL: u64 = 20;
/// The low bits of a word are the client's tag, the others ticks, which wrap after 208 days. Zero is a free word.
const TAG_BITS: u32 = 20;
const TAG: u64 = (1 << TAG_BITS) - 1;
const TIME: u64 = u64::MAX >> TAG_BITS;
const HALF: u64 = TIME / 2;
/// A thread may be stopped for so long between its look at the clock and at a word; debts beyond burst and this time
/// are old words whose ticks have wrapped.
const LATENESS: u64 = 10_000_000_000 >> TICK_SHIFT;
const NANOS: u64 = 1_000_000_000;

/// The longest time in which a burst may be earned: far below that after which ticks wrap.
const MAX_BURST_SECONDS: u64 = 3 * 86400;

/// A rate with its burst, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    interval: u64,
    burst: u64,
}

impl Rate {
    /// `count` requests in `seconds`, of them `burst` at once. `None`: too fast for the clock, or the burst is earned in
    /// more than three days. The interval is rounded up: never more than the rate.
    pub(super) fn new(count: u32, seconds: u32, burst: u32) -> Option<Self> {
        let (count, seconds) = (u64::from(count), u64::from(seconds));
        let interval = (seconds * NANOS).div_ceil(count.max(1) << TICK_SHIFT);
        let burst = interval.checked_mul(burst.into())?;
        let is_valid =
            interval >= MIN_INTERVAL && burst <= (MAX_BURST_SECONDS * NANOS) >> TICK_SHIFT;
        is_valid.then_some(Self { interval, burst })
    }

    /// The debt at `now` of a word's ticks, plus [`HALF`]: older ones are smaller, and order words for any `now`.
    fn debt(&self, ticks: u64, now: u64) -> u64 {
        let debt = ticks.wrapping_sub(now).wrapping_add(HALF) & TIME;
        if ticks == 0 || debt > HALF + self.burst + LATENESS {
            0
        } else {
            debt
        }
    }
}

/// Counts a request of the client with this hash at `now` nanoseconds; an error is the time in nanoseconds until it
/// would be admitted.
pub(super) fn admit(
    set: &[AtomicU64; WAYS],
    hash: u64,
    rate: Rate,
    now_ns: u64,
) -> Result<(), u64> {
    let (tag, now) = (hash & TAG, now_ns >> TICK_SHIFT);
    loop {
        let (word, before) = find(set, tag, rate, now);
        let debt = rate.debt(before >> TAG_BITS, now).saturating_sub(HALF) + rate.interval;
        if debt > rate.burst {
            return Err((debt - rate.burst) << TICK_SHIFT);
        }
        let after = (now.wrapping_add(debt) << TAG_BITS) | tag;
        if word
            .compare_exchange(before, after, Relaxed, Relaxed)
            .is_ok()
        {
            return Ok(());
        }
    }
}

/// The word of a client, else the one with the smallest debt.
fn find(set: &[AtomicU64; WAYS], tag: u64, rate: Rate, now: u64) -> (&AtomicU64, u64) {
    let (mut found, mut before) = (&set[0], set[0].load(Relaxed));
    let mut smallest = u64::MAX;
    for word in set {
        let value = word.load(Relaxed);
        if value & TAG == tag {
            return (word, value);
        }
        let debt = rate.debt(value >> TAG_BITS, now);
        if debt < smallest {
            (found, before, smallest) = (word, value, debt);
        }
    }
    (found, before)
}

#[cfg(test)]
mod tests;
