//! Model checking: what threads or processes change at once without a lock, in every order that the memory model allows.
//!
//! The files are the product's own. They take their atomics from `crate::sync`, which is loom's here. `make loom` runs all
//! checks, with a bound on preemptions; `LOOM_MAX_PREEMPTIONS` sets another bound.
#![allow(dead_code, reason = "files of the product are used in part")]

mod sync {
    pub(crate) use loom::sync::atomic;
}

#[path = "../../crates/towline-state/src/armed.rs"]
mod armed;
#[path = "../../crates/towline-io/src/serve/limits/bucket.rs"]
mod bucket;
#[path = "../../crates/towline-io/src/quic/ticket_entry.rs"]
mod ticket_entry;

mod limits;
mod messages;
mod tickets;

/// Every check with its preemptions: switches from a thread that could go on.
const CHECKS: [(&str, usize, fn()); 7] = [
    ("a subscriber that sleeps is woken", 5, messages::a_subscriber_that_sleeps_is_woken),
    ("of two requests at once one is admitted", 4, limits::of_two_requests_at_once_one_is_admitted),
    ("two clients at once are both admitted", 3, limits::two_clients_at_once_are_both_admitted),
    ("a client does not get two words", 2, limits::a_client_does_not_get_two_words),
    ("of two that are offered a ticket one takes it", 5, tickets::of_two_that_are_offered_a_ticket_one_takes_it),
    ("a ticket that is replaced while it is taken is whole or gone", 4, tickets::a_replaced_ticket_is_whole_or_gone),
    ("two that put and one that takes do not mix tickets", 2, tickets::tickets_are_not_mixed),
];

fn main() {
    for (name, preemptions, check) in CHECKS {
        let started = std::time::Instant::now();
        let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counter = std::sync::Arc::clone(&orders);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        builder.max_branches = 100_000;
        builder.check(move || {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            check();
        });
        let orders = orders.load(std::sync::atomic::Ordering::Relaxed);
        println!("{name}: {orders} orders, {:.1} s", started.elapsed().as_secs_f64());
    }
}
