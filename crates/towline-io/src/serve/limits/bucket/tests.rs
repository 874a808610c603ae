//! The bucket against a model on a virtual clock, many threads on one bucket, and a full table.

#![allow(clippy::cast_precision_loss)] // times of some hours

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use proptest::prelude::*;

use super::*;

const SECOND: u64 = NANOS;
/// A machine that has been up for an hour.
const START: u64 = 3600 * SECOND;

fn set() -> [AtomicU64; WAYS] {
    [const { AtomicU64::new(0) }; WAYS]
}

/// Requests of one client admitted at `now` until the first refusal.
fn admitted(set: &[AtomicU64; WAYS], client: u64, rate: Rate, now: u64) -> usize {
    (0..100_000)
        .take_while(|_| admit(set, client, rate, now).is_ok())
        .count()
}

#[test]
fn a_burst_then_the_rate() {
    let (set, rate) = (set(), Rate::new(10, 1, 5).unwrap());
    assert_eq!(admitted(&set, 1, rate, START), 5);
    let wait = admit(&set, 1, rate, START).unwrap_err();
    assert!((99_000_000..=101_000_000).contains(&wait), "{wait}");
    assert!(admit(&set, 1, rate, START + wait - 2048).is_err());
    assert!(admit(&set, 1, rate, START + wait).is_ok());
    assert_eq!(admitted(&set, 1, rate, START + 3 * SECOND), 5);
    assert_eq!(admitted(&set, 2, rate, START), 5, "another client");
}

#[test]
fn rates_out_of_range_are_refused() {
    assert!(Rate::new(50_000, 1, 1).is_some());
    assert!(Rate::new(60_000, 1, 1).is_none());
    assert!(Rate::new(1, 3600, 72).is_some());
    assert!(Rate::new(1, 3600, 73).is_none(), "three days");
    assert!(Rate::new(u32::MAX, 1, u32::MAX).is_none());
    assert!(Rate::new(1, u32::MAX, u32::MAX).is_none());
}

#[test]
fn a_client_that_was_away_for_any_time_has_its_burst() {
    let rate = Rate::new(1, 60, 5).unwrap();
    let (minute, day) = (60 * SECOND, 86400 * SECOND);
    for away in [5 * minute, day, 50 * day, 103 * day, 105 * day, 150 * day] {
        let set = set();
        assert_eq!(admitted(&set, 1, rate, START), 5);
        assert_eq!(admitted(&set, 1, rate, START + away), 5, "{away}");
    }
    // Machines that have been up for any time: empty words are never in debt.
    for up in 0..500 {
        assert_eq!(admitted(&set(), 1, rate, START + up * day), 5, "{up} days");
    }
    let wrapped = (1 << (64 - TAG_BITS + TICK_SHIFT)) - SECOND;
    let set = set();
    assert_eq!(admitted(&set, 1, rate, wrapped), 5);
    assert_eq!(
        admitted(&set, 1, rate, wrapped + minute),
        1,
        "across the wrap"
    );
}

#[test]
fn a_thread_that_was_stopped_gives_no_allowance() {
    let (set, rate) = (set(), Rate::new(10, 1, 5).unwrap());
    assert_eq!(admitted(&set, 1, rate, START + 5 * SECOND), 5);
    assert!(admit(&set, 1, rate, START).is_err());
}

#[test]
fn a_reload_with_another_rate_keeps_debts() {
    let set = set();
    assert_eq!(admitted(&set, 1, Rate::new(10, 60, 10).unwrap(), START), 10);
    let faster = Rate::new(10, 1, 10).unwrap();
    assert_eq!(admitted(&set, 1, faster, START + 58 * SECOND), 0);
    assert_eq!(admitted(&set, 1, faster, START + 60 * SECOND), 10);
}

/// Clients whose tags are all different: 1, 2, 3 ...
#[test]
fn a_flood_of_clients_gives_nobody_a_new_allowance() {
    let (set, rate) = (set(), Rate::new(1, 60, 10).unwrap());
    assert_eq!(admitted(&set, 1, rate, START), 10);
    for flood in 2..5_000 {
        let _ = admit(&set, flood, rate, START);
        assert!(
            admit(&set, 1, rate, START).is_err(),
            "after {flood} clients"
        );
    }
}

#[test]
fn a_full_set_makes_new_clients_wait_and_frees_itself() {
    let (set, rate) = (set(), Rate::new(1, 1, 10).unwrap());
    let total: usize = (1..100)
        .map(|client| admitted(&set, client, rate, START))
        .sum();
    assert_eq!(total, WAYS * 10, "as many as eight clients have");
    let wait = admit(&set, 200, rate, START).unwrap_err();
    assert!(wait <= SECOND + 2048);
    assert!(admit(&set, 200, rate, START + wait).is_ok());
    // Debts are over.
    assert_eq!(admitted(&set, 300, rate, START + 20 * SECOND), 10);
}

#[test]
fn many_threads_are_admitted_as_often_as_one() {
    for _ in 0..20 {
        let (set, admitted) = (Arc::new(set()), Arc::new(AtomicUsize::new(0)));
        let rate = Rate::new(1, 60, 1_000).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (set, admitted) = (set.clone(), admitted.clone());
                std::thread::spawn(move || {
                    for request in 0..600 {
                        // Others come and go in the same set meanwhile.
                        let _ = admit(&set, 100 + number * 600 + request, rate, START);
                        if admit(&set, 1, rate, START).is_ok() {
                            admitted.fetch_add(1, Relaxed);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let total = admitted.load(Relaxed);
        assert!(total <= 1_000, "{total}");
        // Others pass their debts on to a client that lost its place.
        assert!(total >= 400, "{total}");
    }
}

#[test]
fn threads_that_add_one_client_use_one_word() {
    for _ in 0..200 {
        let (set, rate) = (set(), Rate::new(1, 60, 10).unwrap());
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| admitted(&set, 7, rate, START)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(total, 10);
    }
}

proptest! {
    /// A few clients in one set: each has a bucket of tokens that the model fills by fractions.
    #[test]
    fn agrees_with_a_bucket_of_tokens(
        count in 1..500_u32,
        burst in 1..50_u32,
        steps in prop::collection::vec((0..WAYS as u64, 0..400_000_u64), 1..300),
    ) {
        let (set, rate) = (set(), Rate::new(count, 1, burst).unwrap());
        let mut model: HashMap<u64, (f64, u64)> = HashMap::new();
        let mut now = START;
        for (client, us) in steps {
            now += us * 1_000;
            let (tokens, since) = model.entry(client).or_insert((burst.into(), now));
            let elapsed = (now - *since) as f64 / SECOND as f64;
            let filled = (*tokens + elapsed * f64::from(count)).min(burst.into());
            let result = admit(&set, client, rate, now);
            // The interval is rounded up to a tick, and so is each look at the clock.
            let slack = 0.01 * f64::from(burst) + 1e-3;
            prop_assert!(result.is_ok() || filled < 1.0 + slack, "refused with {filled} tokens");
            prop_assert!(result.is_err() || filled > 1.0 - 1e-3, "admitted with {filled} tokens");
            (*tokens, *since) = (filled - f64::from(u8::from(result.is_ok())), now);
        }
    }

    /// In any time nobody gets more than the burst and what the rate adds, whatever the others do.
    #[test]
    fn nobody_exceeds_burst_and_rate(
        steps in prop::collection::vec((0..40_u64, 0..50_000_000_u64), 1..600),
    ) {
        let (set, rate) = (set(), Rate::new(20, 1, 8).unwrap());
        let mut admissions: HashMap<u64, Vec<u64>> = HashMap::new();
        let mut now = START;
        for (client, ns) in steps {
            now += ns;
            if admit(&set, client, rate, now).is_ok() {
                admissions.entry(client).or_default().push(now);
            }
        }
        for times in admissions.values() {
            for (first, &from) in times.iter().enumerate() {
                for (last, &to) in times.iter().enumerate().skip(first) {
                    let most = 8.0 + (to - from + 2048) as f64 * 20.0 / SECOND as f64;
                    prop_assert!((last - first + 1) as f64 <= most + 1e-6);
                }
            }
        }
    }
}
