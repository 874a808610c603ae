//! Connections that many share: who waits for which, and what a changed limit does.

use std::sync::Arc;
use std::time::Instant;

use super::tests::{Conn, Who, pool};
use super::*;

fn dials(pool: &mut Pool<usize, Conn, Who>) -> Vec<SlotId> {
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

/// The waiters served since, each with its connection.
fn served(pool: &mut Pool<usize, Conn, Who>) -> Vec<(Who, Conn)> {
    let mut served = Vec::new();
    while let Some(action) = pool.next_action() {
        if let Action::Assign(lease, who) = action {
            served.push((who, lease.conn));
        }
    }
    served
}

#[test]
fn all_wait_for_one_connection_that_may_carry_them_all() {
    let (mut pool, now) = (pool(99, 99), Instant::now());
    let origin = pool.origin(&Arc::new(0), 100);
    for who in 0..150 {
        assert!(pool.wait(origin, who, false).is_ok());
    }
    let opened = dials(&mut pool);
    assert_eq!(opened.len(), 2, "a hundred each");
    pool.dialled(opened[0], 1, 100, now);
    assert_eq!(served(&mut pool).len(), 100);
    // The server allows more than it was hoped to.
    pool.set_capacity(opened[0], 128);
    let more = served(&mut pool);
    assert_eq!(more.first(), Some(&(100, 1)), "in their order");
    assert_eq!(more.len(), 28);
    // Now fewer than are under way: nobody is served before they are over.
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
fn dials_begin_for_all_who_wait_when_the_first_connection_carries_one() {
    let (mut pool, now) = (pool(99, 99), Instant::now());
    let origin = pool.origin(&Arc::new(0), 100);
    for who in 0..5 {
        assert!(pool.wait(origin, who, false).is_ok());
    }
    let first = dials(&mut pool);
    assert_eq!(first.len(), 1);
    pool.dialled(first[0], 1, 1, now);
    assert_eq!(dials(&mut pool).len(), 4);
    assert_eq!(pool.status().waiting, 4);
}

#[test]
fn those_who_waited_for_one_dial_that_failed_try_each_for_itself() {
    let (mut pool, now) = (pool(99, 99), Instant::now());
    let origin = pool.origin(&Arc::new(0), 100);
    let waiters = [0, 1, 2].map(|who| pool.wait(origin, who, false).unwrap());
    let first = dials(&mut pool);
    assert_eq!(pool.dial_failed(first[0]), Some((waiters[0], &0)));
    pool.cancel(waiters[0]);
    let second = dials(&mut pool);
    assert_eq!(second.len(), 2);
    // One of them succeeds and carries many: the other is called off.
    pool.dialled(second[0], 1, 100, now);
    assert_eq!(
        pool.status().waiting,
        1,
        "one until the server announces more"
    );
    pool.set_capacity(second[0], 100);
    assert_eq!((pool.status().dialling, pool.status().waiting), (0, 0));
}

#[test]
fn the_first_who_waited_leaves_and_the_dial_stays_for_the_others() {
    let (mut pool, now) = (pool(99, 99), Instant::now());
    let origin = pool.origin(&Arc::new(0), 100);
    let waiters = [0, 1].map(|who| pool.wait(origin, who, false).unwrap());
    let dial = dials(&mut pool)[0];
    assert_eq!(pool.cancel(waiters[0]), Some(0));
    pool.dialled(dial, 7, 100, now);
    assert_eq!(served(&mut pool), [(1, 7)]);
}
