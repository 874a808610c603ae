//! Connections shared by several calls: assignment of waiters, and changes of capacity.

use std::sync::Arc;
use std::time::Instant;

use super::tests::{Conn, Token, pool};
use super::*;

/// A pool in which this many calls of one origin, with the tokens from 0 on, wait for connections.
fn waited_for(calls: Token) -> (Pool<usize, Conn, Token>, OriginId) {
    let mut pool = pool(99, 99);
    let origin = pool.origin(&Arc::new(0), 100);
    for token in 0..calls {
        assert!(pool.wait(origin, token, false).is_ok());
    }
    (pool, origin)
}

/// As [`waited_for`], with one dial that has succeeded. Its server has not announced how many calls it carries, and the
/// first call has it.
fn provisional(calls: Token) -> (Pool<usize, Conn, Token>, OriginId, SlotId) {
    let (mut pool, origin) = waited_for(calls);
    let opened = dials(&mut pool);
    assert_eq!(opened.len(), 1);
    pool.dialled(opened[0], 1, None, Instant::now());
    assert_eq!(served(&mut pool), [(0, 1)], "the first call alone");
    (pool, origin, opened[0])
}

fn dials(pool: &mut Pool<usize, Conn, Token>) -> Vec<SlotId> {
    let mut dials = Vec::new();
    while let Some(action) = pool.next_action() {
        match action {
            Action::Dial(slot, _) => dials.push(slot),
            Action::CancelDial(slot) => dials.retain(|&dial| dial != slot),
            _ => {}
        }
    }
    dials
}

/// Returns the waiters assigned since the last call, each with its connection.
fn served(pool: &mut Pool<usize, Conn, Token>) -> Vec<(Token, Conn)> {
    let mut served = Vec::new();
    while let Some(action) = pool.next_action() {
        if let Action::Assign(lease, token) = action {
            served.push((token, lease.conn));
        }
    }
    served
}

#[test]
fn waiters_share_dials_up_to_the_expected_capacity() {
    let ((mut pool, _), now) = (waited_for(150), Instant::now());
    let opened = dials(&mut pool);
    assert_eq!(opened.len(), 2, "a hundred waiters per dial");
    pool.dialled(opened[0], 1, Some(100), now);
    assert_eq!(served(&mut pool).len(), 100);
    // The server allows more than expected.
    pool.set_capacity(opened[0], 128);
    let more = served(&mut pool);
    assert_eq!(more.first(), Some(&(100, 1)), "in order of arrival");
    assert_eq!(more.len(), 28);
    // Below the number of leases: no waiter is served until enough of them are released.
    pool.set_capacity(opened[0], 100);
    for _ in 0..28 {
        pool.release(opened[0], now);
        assert_eq!(served(&mut pool), []);
    }
    pool.release(opened[0], now);
    assert_eq!(served(&mut pool), [(128, 1)]);
    assert_eq!(pool.leases(opened[0]), 100);
}

#[test]
fn a_dial_is_started_per_waiter_when_the_first_connection_carries_one() {
    let ((mut pool, _), now) = (waited_for(5), Instant::now());
    let first = dials(&mut pool);
    assert_eq!(first.len(), 1);
    pool.dialled(first[0], 1, Some(1), now);
    assert_eq!(dials(&mut pool).len(), 4);
    assert_eq!(pool.status().waiting, 4);
}

#[test]
fn each_waiter_gets_its_own_dial_after_a_shared_dial_failed() {
    let (mut pool, now) = (pool(99, 99), Instant::now());
    let origin = pool.origin(&Arc::new(0), 100);
    let waiters = [0, 1, 2].map(|token| pool.wait(origin, token, false).unwrap());
    let first = dials(&mut pool);
    assert_eq!(pool.dial_failed(first[0]), Some((waiters[0], &0)));
    pool.cancel(waiters[0]);
    let second = dials(&mut pool);
    assert_eq!(second.len(), 2);
    // One of them succeeds and carries many: the other is cancelled.
    pool.dialled(second[0], 1, None, now);
    assert_eq!(
        pool.status().waiting,
        1,
        "the capacity is one until the server announces more"
    );
    pool.set_capacity(second[0], 100);
    assert_eq!((pool.status().dialling, pool.status().waiting), (0, 0));
}

#[test]
fn a_dial_stays_for_the_other_waiters_when_the_first_is_cancelled() {
    let (mut pool, now) = (pool(99, 99), Instant::now());
    let origin = pool.origin(&Arc::new(0), 100);
    let waiters = [0, 1].map(|token| pool.wait(origin, token, false).unwrap());
    let dial = dials(&mut pool)[0];
    assert_eq!(pool.cancel(waiters[0]), Some(0));
    pool.dialled(dial, 7, Some(100), now);
    assert_eq!(served(&mut pool), [(1, 7)]);
}

#[test]
fn a_provisional_connection_carries_one_exchange_and_keeps_its_waiters() {
    let (mut pool, origin, opened) = provisional(100);
    // A new call waits as well, and is not given a dial.
    assert!(pool.acquire(origin, Instant::now()).is_none());
    assert_eq!((pool.status().waiting, pool.status().dialling), (99, 0));
    // The server announces ten: the others get dials for ten each.
    pool.set_capacity(opened, 10);
    let (mut assigned, mut dialled) = (0, 0);
    while let Some(action) = pool.next_action() {
        assigned += usize::from(matches!(action, Action::Assign(..)));
        dialled += usize::from(matches!(action, Action::Dial(..)));
    }
    assert_eq!((assigned, dialled), (9, 9));
}

#[test]
fn a_limit_of_one_ends_the_provisional_state() {
    let (mut pool, _, opened) = provisional(5);
    pool.set_capacity(opened, 1);
    assert_eq!(dials(&mut pool).len(), 4, "a dial for each of the others");
}

#[test]
fn waiters_of_a_provisional_connection_that_fails_get_a_dial_each() {
    for retires in [false, true] {
        let (mut pool, _, opened) = provisional(5);
        if retires {
            pool.retire(opened);
        } else {
            pool.remove(opened);
        }
        assert_eq!(dials(&mut pool).len(), 4);
    }
}

#[test]
fn the_next_waiter_gets_a_provisional_connection_that_is_released() {
    let (mut pool, _, opened) = provisional(3);
    pool.release(opened, Instant::now());
    assert_eq!(served(&mut pool), [(1, 1)]);
    pool.set_capacity(opened, 3);
    assert_eq!(served(&mut pool), [(2, 1)]);
}
