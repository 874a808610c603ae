//! The region in which workers count and show that they live, as the supervisor and a worker see it.
use std::process;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyIndexError, PyOSError};
use pyo3::prelude::*;
use towline_io::serve::metrics::{Heartbeat, SlotHandle, Slots, monotonic_ns};

/// One slot per worker in memory that forked processes share.
#[pyclass(frozen, module = "towline._native")]
pub struct Board {
    slots: Slots,
}

#[pymethods]
impl Board {
    #[new]
    fn new(slots: usize) -> PyResult<Self> {
        let slots = Slots::mapped(slots).map_err(|e| PyOSError::new_err(e.to_string()))?;
        Ok(Self { slots })
    }

    fn __len__(&self) -> usize {
        self.slots.len()
    }

    /// The slot of one worker.
    fn slot(&self, index: usize) -> PyResult<Slot> {
        let handle = self.slots.handle(index);
        let handle = handle.ok_or_else(|| PyIndexError::new_err("no such slot"))?;
        Ok(Slot {
            handle,
            heartbeat: Mutex::new(None),
        })
    }
}

/// One worker's slot. The times are nanoseconds of `time.monotonic_ns()`.
#[pyclass(frozen, module = "towline._native")]
pub struct Slot {
    handle: SlotHandle,
    heartbeat: Mutex<Option<Heartbeat>>,
}

impl Slot {
    /// What a server of this crate counts in.
    pub fn handle(&self) -> SlotHandle {
        self.handle.clone()
    }
}

#[pymethods]
impl Slot {
    #[getter]
    fn index(&self) -> usize {
        self.handle.index()
    }

    /// When the native thread last beat.
    #[getter]
    fn heartbeat(&self) -> u64 {
        self.handle.heartbeat_native.load(Relaxed)
    }

    /// When the loop last turned.
    #[getter]
    fn last_turn(&self) -> u64 {
        self.handle.heartbeat_turn.load(Relaxed)
    }

    /// Requests that have ended, since the board exists.
    #[getter]
    fn requests(&self) -> u64 {
        self.handle.requests_ended()
    }

    #[getter]
    fn in_flight(&self) -> u64 {
        self.handle.in_flight.load(Relaxed)
    }

    /// A worker takes the slot over; counters go on, gauges start again.
    fn begin(&self, pid: u32, again: bool) {
        self.handle.begin(pid, monotonic_ns());
        if again {
            self.handle.worker_restarts.fetch_add(1, Relaxed);
        }
    }

    /// The worker is gone.
    fn end(&self) {
        self.handle.end();
    }

    fn turned(&self) {
        self.handle.turned(monotonic_ns());
    }

    /// Beats from a native thread, which needs no GIL, until the process ends. For the worker, after the fork.
    fn start_heartbeat(&self, period: f64) -> PyResult<()> {
        // Only the worker knows its process id; the slot was taken before the fork.
        self.handle.pid.store(u64::from(process::id()), Relaxed);
        let heartbeat = Heartbeat::start(
            self.handle(),
            Duration::from_secs_f64(period.clamp(0.01, 60.0)),
        )
        .map_err(|e| PyOSError::new_err(e.to_string()))?;
        *self
            .heartbeat
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(heartbeat);
        Ok(())
    }
}
