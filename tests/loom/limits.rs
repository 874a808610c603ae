//! `--limit-rate`: several workers that see requests of one client admit as many as one worker would.

use std::sync::Arc;

use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

use crate::bucket::{Rate, WAYS, admit};

const NOW: u64 = 1 << 40;

/// The numbers of requests of clients 1 and 2 that are admitted if threads send one each, with `taken` words of a set in use by
/// clients that owe more.
fn admitted(clients: &'static [u64], taken: usize) -> Vec<(u64, bool)> {
    let rate = Rate::new(1, 1, 1).unwrap();
    let set: Arc<[AtomicU64; WAYS]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
    for client in 0..taken as u64 {
        assert!(admit(&set, 100 + client, rate, NOW).is_ok());
    }
    let threads: Vec<_> = clients[1..]
        .iter()
        .map(|&client| {
            let set = Arc::clone(&set);
            thread::spawn(move || (client, admit(&set, client, rate, NOW).is_ok()))
        })
        .collect();
    let mut found = vec![(clients[0], admit(&set, clients[0], rate, NOW).is_ok())];
    found.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    for client in [1, 2] {
        let words = set
            .iter()
            .filter(|word| word.load(Relaxed) & 0xf_ffff == client);
        assert!(words.count() <= 1, "a client with two words");
    }
    found
}

pub fn of_two_requests_at_once_one_is_admitted() {
    let found = admitted(&[1, 1], 0);
    assert_eq!(
        found.iter().filter(|(_, is_admitted)| *is_admitted).count(),
        1
    );
}

pub fn two_clients_at_once_are_both_admitted() {
    let found = admitted(&[1, 2], WAYS - 2);
    assert!(found.iter().all(|(_, is_admitted)| *is_admitted));
}

pub fn a_client_does_not_get_two_words() {
    let found = admitted(&[1, 2, 1], WAYS - 1);
    let of_first = found.iter().filter(|found| **found == (1, true)).count();
    assert!(of_first <= 1, "{found:?}");
    assert!(
        found.iter().any(|(_, is_admitted)| *is_admitted),
        "{found:?}"
    );
}
