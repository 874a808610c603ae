//! Rules of the pool, one by one.

use std::sync::Arc;
use std::time::Instant;

use super::*;

pub(super) type Conn = u32;
pub(super) type Token = u32;

pub(super) fn pool(max_connections: usize, per_host: usize) -> Pool<usize, Conn, Token> {
    Pool::new(PoolLimits {
        max_connections,
        max_connections_per_host: per_host,
        ..PoolLimits::default()
    })
}

/// Performs every dial at once; returns the waiters served.
fn dial_all(pool: &mut Pool<usize, Conn, Token>, now: Instant) -> Vec<(Token, Lease<Conn>)> {
    let mut served = Vec::new();
    let mut conn = 0;
    while let Some(action) = pool.next_action() {
        match action {
            Action::Dial(slot, _) => {
                conn += 1;
                pool.dialled(slot, conn, Some(1), now);
            }
            Action::Assign(lease, token) => served.push((token, lease)),
            _ => {}
        }
    }
    served
}

#[test]
fn the_most_recently_used_connection_is_used_first() {
    let (mut pool, now) = (pool(9, 9), Instant::now());
    let origin = pool.origin(&Arc::new(0), 1);
    for token in 0..3 {
        assert!(pool.wait(origin, token, false).is_ok());
    }
    let served = dial_all(&mut pool, now);
    assert_eq!(served.len(), 3);
    for (_, lease) in &served {
        assert!(!lease.reused);
        pool.release(lease.slot, now);
    }
    let lease = pool.acquire(origin, now).unwrap();
    assert_eq!((lease.slot, lease.reused), (served[2].1.slot, true));
}

#[test]
fn an_origin_without_a_connection_is_not_starved_by_one_under_load() {
    let (mut pool, now) = (pool(1, 1), Instant::now());
    let (busy, quiet) = (pool.origin(&Arc::new(0), 1), pool.origin(&Arc::new(1), 1));
    assert!(pool.wait(busy, 0, false).is_ok());
    let first = dial_all(&mut pool, now).remove(0).1;
    assert!(pool.wait(busy, 1, false).is_ok());
    assert!(pool.wait(quiet, 2, false).is_ok());
    assert!(pool.wait(busy, 3, false).is_ok());
    // 1 came first and reuses the connection; 2 came before 3, and its origin has no connection.
    pool.release(first.slot, now);
    let served = dial_all(&mut pool, now);
    assert_eq!(
        served.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
        [1]
    );
    pool.release(served[0].1.slot, now);
    let served = dial_all(&mut pool, now);
    assert_eq!(
        served.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
        [2]
    );
}

#[test]
fn a_full_queue_refuses_all_but_urgent_waiters() {
    let mut pool: Pool<usize, Conn, Token> = Pool::new(PoolLimits {
        max_connections_per_host: 1,
        max_queue: Some(1),
        ..PoolLimits::default()
    });
    let origin = pool.origin(&Arc::new(0), 1);
    assert!(pool.wait(origin, 0, false).is_ok());
    assert!(pool.wait(origin, 1, false).is_ok());
    assert_eq!(pool.wait(origin, 2, false), Err(2));
    assert!(pool.wait(origin, 3, true).is_ok());
    let served = dial_all(&mut pool, Instant::now());
    assert_eq!(served[0].0, 3, "an urgent waiter precedes the others");
}

#[test]
fn dials_of_other_origins_do_not_change_the_queue_limit() {
    let mut pool: Pool<usize, Conn, Token> = Pool::new(PoolLimits {
        max_connections_per_host: 1,
        max_queue: Some(1),
        ..PoolLimits::default()
    });
    for other in 1..9 {
        let other = pool.origin(&Arc::new(other), 1);
        pool.prewarm(other, 1);
    }
    let origin = pool.origin(&Arc::new(0), 1);
    assert!(pool.wait(origin, 0, false).is_ok(), "has a dial");
    assert!(
        pool.wait(origin, 1, false).is_ok(),
        "within the limit of one"
    );
    assert_eq!(pool.wait(origin, 2, false), Err(2));
    let elsewhere = pool.origin(&Arc::new(9), 1);
    assert!(
        pool.wait(elsewhere, 3, false).is_ok(),
        "has a dial of its own"
    );
}

#[test]
fn a_failed_dial_reports_its_waiter_and_a_cancelled_waiter_ends_its_dial() {
    let (mut pool, now) = (pool(9, 9), Instant::now());
    let origin = pool.origin(&Arc::new(0), 1);
    let waiters = [0, 1, 2].map(|token| pool.wait(origin, token, false).unwrap());
    let mut dials = Vec::new();
    while let Some(action) = pool.next_action() {
        if let Action::Dial(slot, _) = action {
            dials.push(slot);
        }
    }
    assert_eq!(
        dials
            .iter()
            .map(|&dial| *pool.dialled_for(dial).unwrap())
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(pool.dial_failed(dials[1]), Some((waiters[1], &1)));
    pool.cancel(waiters[1]);
    pool.cancel(waiters[0]);
    assert_eq!(
        pool.dialled_for(dials[0]),
        None,
        "cancelled with its waiter"
    );
    assert_eq!(pool.dialled_for(dials[2]), Some(&2));
    // The connection goes to an urgent waiter, which precedes the one the dial was started for.
    pool.wait(origin, 3, true).unwrap();
    pool.dialled(dials[2], 7, Some(1), now);
    assert!(pool.next_action().is_some());
    assert_eq!(pool.status().waiting, 1);
}

#[test]
fn unused_origins_are_removed_and_used_ones_kept() {
    let mut pool = pool(10, 10);
    let kept = Arc::new(0);
    let origin = pool.origin(&kept, 1);
    assert!(pool.wait(origin, 0, false).is_ok());
    for key in 1..100_000 {
        pool.origin(&Arc::new(key), 1);
    }
    assert_eq!(pool.origin(&kept, 1), origin);
    assert!(pool.origins.len() <= 2048);
    assert_eq!(pool.status_by_origin().count(), 1);
}
