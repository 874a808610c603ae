//! Tickets of TLS sessions: each is taken once, and whole.

use std::sync::Arc;

use loom::sync::atomic::AtomicU64;
use loom::thread;

use crate::ticket_entry::{Entry, Name, put, take};

const WORDS: usize = 2;
type Entries = Arc<Vec<Entry<WORDS>>>;

fn entries(count: usize) -> Entries {
    let zero = || AtomicU64::new(0);
    let entry = |_| Entry {
        state: zero(),
        session_bytes: zero(),
        name: std::array::from_fn(|_| zero()),
        session: std::array::from_fn(|_| zero()),
    };
    Arc::new((0..count).map(entry).collect())
}

fn name(number: u64) -> Name {
    [number; 4]
}

/// All bytes and the length tell which session it is.
fn session(number: u8) -> Vec<u8> {
    vec![number; 8 + usize::from(number)]
}

fn taking(entries: &Entries, number: u8) -> thread::JoinHandle<bool> {
    let entries = Arc::clone(entries);
    thread::spawn(move || is_taken(&entries, number))
}

fn is_taken(entries: &Entries, number: u8) -> bool {
    let found = take(entries, &name(number.into()));
    assert!(
        found.is_none() || found == Some(session(number)),
        "{found:?}"
    );
    found.is_some()
}

pub fn of_two_that_are_offered_a_ticket_one_takes_it() {
    let entries = entries(1);
    assert!(put(&entries, &name(1), &session(1), 1));
    let other = taking(&entries, 1);
    let mine = is_taken(&entries, 1);
    assert_ne!(mine, other.join().unwrap());
}

pub fn a_replaced_ticket_is_whole_or_gone() {
    let entries = entries(1);
    assert!(put(&entries, &name(1), &session(1), 1));
    let other = taking(&entries, 1);
    // Another worker may have the only entry at this moment.
    let is_put = put(&entries, &name(2), &session(2), 2);
    other.join().unwrap();
    assert_eq!(is_taken(&entries, 2), is_put);
    assert!(!is_taken(&entries, 1), "taken after it was replaced");
}

pub fn tickets_are_not_mixed() {
    let entries = entries(2);
    let putting = {
        let entries = Arc::clone(&entries);
        thread::spawn(move || put(&entries, &name(1), &session(1), 1))
    };
    let other = taking(&entries, 1);
    let is_put = put(&entries, &name(2), &session(2), 2);
    let [first, taken] = [putting.join().unwrap(), other.join().unwrap()];
    assert!(first && is_put, "two entries have room for two");
    assert!(is_taken(&entries, 2));
    assert_ne!(is_taken(&entries, 1), taken);
}
