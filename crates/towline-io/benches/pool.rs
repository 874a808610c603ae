//! Cost of the client's pool: assignment with waiters, and an acquire with a free connection.
//!
//! `cargo bench -p towline-io --bench pool`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use towline_io::client::{Action, Lease, Pool, PoolLimits};

const ORIGINS: usize = 20;
const ROUNDS: usize = 401;
/// Connections, then requests.
const LOADS: [(usize, usize); 5] = [(10, 10), (100, 50), (100, 100), (500, 200), (1000, 500)];

fn main() {
    for (connections, requests) in LOADS {
        let per_request = median(|| assignment(connections, requests));
        println!(
            "pool_assignment ({connections} connections, {requests} requests, {ORIGINS} origins): \
             {per_request:.0} ns a request"
        );
    }
    println!("uncontended_acquire: {:.0} ns", median(uncontended));
}

fn median(mut measure: impl FnMut() -> f64) -> f64 {
    let mut samples: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect();
    samples.sort_by(f64::total_cmp);
    samples[ROUNDS / 2]
}

fn nanoseconds(start: Instant, operations: usize) -> f64 {
    let operations = u32::try_from(operations).unwrap_or(u32::MAX);
    start.elapsed().as_secs_f64() * 1e9 / f64::from(operations)
}

/// All requests arrive at a pool full of idle connections, are served, and give back: the second half
/// of them again, behind the first where there are fewer connections than requests.
fn assignment(connections: usize, requests: usize) -> f64 {
    let mut pool = Pool::<usize, usize, usize>::new(PoolLimits {
        max_connections: connections,
        max_keepalive: connections,
        ..PoolLimits::default()
    });
    let keys: Vec<_> = (0..ORIGINS).map(Arc::new).collect();
    let now = Instant::now();
    for n in 0..connections {
        let origin = pool.origin(&keys[n % ORIGINS], 1);
        let warm = connections.div_ceil(ORIGINS).min(n / ORIGINS + 1);
        pool.prewarm(origin, warm);
    }
    let mut leases = Vec::with_capacity(requests);
    act(&mut pool, &mut leases, now);
    let start = Instant::now();
    for _ in 0..4 {
        for request in 0..requests {
            let origin = pool.origin(&keys[request % ORIGINS], 1);
            match pool.acquire(origin, now) {
                Some(lease) => leases.push(lease),
                None => drop(pool.wait(origin, request, false)),
            }
            act(&mut pool, &mut leases, now);
        }
        while let Some(lease) = leases.pop() {
            pool.release(lease.slot, now);
            act(&mut pool, &mut leases, now);
        }
    }
    let per_request = nanoseconds(start, 4 * requests);
    black_box(pool.status());
    per_request
}

/// Completes every dial at once.
fn act(pool: &mut Pool<usize, usize, usize>, leases: &mut Vec<Lease<usize>>, now: Instant) {
    while let Some(action) = pool.next_action() {
        match action {
            Action::Dial(slot, _) => pool.dialled(slot, 0, Some(1), now),
            Action::Assign(lease, _) => leases.push(lease),
            Action::CancelDial(_)
            | Action::Close(_)
            | Action::AwaitDial(_)
            | Action::AwaitFree(_) => {}
        }
    }
}

fn uncontended() -> f64 {
    const TIMES: usize = 1000;
    let mut pool = Pool::<usize, usize, usize>::new(PoolLimits::default());
    let key = Arc::new(0);
    let now = Instant::now();
    let origin = pool.origin(&key, 1);
    pool.prewarm(origin, 1);
    act(&mut pool, &mut Vec::new(), now);
    let start = Instant::now();
    for _ in 0..TIMES {
        let origin = pool.origin(black_box(&key), 1);
        if let Some(lease) = pool.acquire(origin, now) {
            pool.release(lease.slot, now);
        }
        black_box(pool.next_action());
    }
    nanoseconds(start, TIMES)
}
