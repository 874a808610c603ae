//! Measures the connection pool of the client alone: the time to assign connections to requests.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use towline_io::client::{Action, Lease, Pool, PoolLimits};

/// A pool of idle connections to several origins, without sockets.
#[pyclass(module = "towline._native")]
pub struct PoolBench {
    pool: Pool<usize, usize, usize>,
    keys: Vec<Arc<usize>>,
}

#[pymethods]
impl PoolBench {
    /// Connection `n` belongs to origin `n % origins`.
    #[new]
    fn new(connections: usize, origins: usize) -> PyResult<Self> {
        if origins == 0 {
            return Err(PyValueError::new_err("origins must be at least 1"));
        }
        let mut pool = Pool::new(PoolLimits {
            max_connections: connections,
            max_connections_per_host: connections,
            max_keepalive: connections,
            keepalive_expiry: None,
            ..PoolLimits::default()
        });
        let keys: Vec<_> = (0..origins).map(Arc::new).collect();
        let now = Instant::now();
        for n in 0..connections {
            let origin = pool.origin(&keys[n % origins], 1);
            pool.prewarm(origin, n / origins + 1);
        }
        while let Some(action) = pool.next_action() {
            if let Action::Dial(slot, _) = action {
                pool.dialled(slot, 0, Some(1), now);
            }
        }
        Ok(Self { pool, keys })
    }

    /// Returns the seconds in which each of `requests` gets a connection of its origin. Releasing them is not timed.
    fn assign(&mut self, requests: usize) -> PyResult<f64> {
        let (now, mut leases) = (Instant::now(), Vec::with_capacity(requests));
        let start = Instant::now();
        for request in 0..requests {
            let key = &self.keys[request % self.keys.len()];
            leases.extend(acquire(&mut self.pool, key, now));
        }
        let seconds = start.elapsed().as_secs_f64();
        let assigned = leases.len();
        for lease in leases {
            self.pool.release(lease.slot, now);
            black_box(self.pool.next_action());
        }
        if assigned == requests {
            Ok(seconds)
        } else {
            let text = format!("{assigned} of {requests} requests got a connection");
            Err(PyValueError::new_err(text))
        }
    }

    /// Returns the mean seconds, over `times` repetitions, to acquire and release a connection.
    fn acquire(&mut self, times: u32) -> f64 {
        let now = Instant::now();
        let start = Instant::now();
        for _ in 0..times {
            if let Some(lease) = acquire(&mut self.pool, black_box(&self.keys[0]), now) {
                self.pool.release(lease.slot, now);
            }
            black_box(self.pool.next_action());
        }
        start.elapsed().as_secs_f64() / f64::from(times.max(1))
    }
}

fn acquire(
    pool: &mut Pool<usize, usize, usize>,
    key: &Arc<usize>,
    now: Instant,
) -> Option<Lease<usize>> {
    let origin = pool.origin(key, 1);
    pool.acquire(origin, now)
}
