//! Counters and heartbeats of the workers, in memory that they share with the supervisor.
use std::os::fd::{IntoRawFd, RawFd};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyIndexError, PyOSError};
use pyo3::prelude::*;
use towline_io::quic::Forwarder;
use towline_io::serve::metrics::{Heartbeat, SlotHandle, Slots, Totals, monotonic_ns};

use super::feature_config::first_expiry;
use super::http3;
use super::options::Bind;

/// One slot per worker in memory that forked processes share, or those that inherit `descriptors` of `shared_memory()`.
#[pyclass(frozen, module = "towline._native")]
pub struct SharedStats {
    slots: Slots,
}

#[pymethods]
impl SharedStats {
    #[new]
    #[pyo3(signature = (slots, descriptors = None))]
    fn new(slots: usize, descriptors: Option<[RawFd; 2]>) -> PyResult<Self> {
        let slots = Slots::mapped(slots, descriptors);
        let slots = slots.map_err(|e| PyOSError::new_err(e.to_string()))?;
        Ok(Self { slots })
    }

    fn __len__(&self) -> usize {
        self.slots.len()
    }

    /// Sets the configured number of workers.
    fn workers_wanted(&self, count: u64) {
        self.supervisor(|slot| slot.workers_wanted.store(count, Relaxed));
    }

    /// Makes the readiness checks of all workers fail, those of workers that start later included.
    fn begin_stopping(&self) {
        self.supervisor(|slot| slot.stopping.store(1, Relaxed));
    }

    /// Counts a worker that has replaced another and is ready.
    fn worker_replaced(&self) {
        self.supervisor(|slot| _ = slot.worker_restarts.fetch_add(1, Relaxed));
    }

    /// Counts a worker that ended before it was ready.
    fn worker_boot_failed(&self) {
        self.supervisor(|slot| _ = slot.worker_boot_failures.fetch_add(1, Relaxed));
    }

    /// Counts a worker that ended without being asked to.
    fn worker_died(&self) {
        self.supervisor(|slot| _ = slot.worker_deaths.fetch_add(1, Relaxed));
    }

    /// Counts an ACME order that has failed.
    fn acme_order_failed(&self) {
        self.supervisor(|slot| _ = slot.acme_failed_orders.fetch_add(1, Relaxed));
    }

    /// Notes in the slot of each worker when the first of these certificates expires.
    fn certificates_renewed(&self, files: Vec<PathBuf>) {
        let expiry = first_expiry(&files).unwrap_or_default();
        for slot in self.slots.in_use() {
            slot.certificate_expiry.store(expiry, Relaxed);
        }
    }

    /// Sums over all workers: requests by status, request durations by bucket (lower bound and upper bound in seconds,
    /// count), requests in flight, open connections.
    #[allow(clippy::type_complexity)] // a tuple for Python
    fn totals(&self) -> (Vec<(String, u64)>, Vec<(f64, f64, u64)>, u64, u64) {
        let totals = Totals::read(&self.slots);
        let seconds = |us| Duration::from_micros(us).as_secs_f64();
        let durations = totals.durations.into_iter();
        let durations = durations.map(|(low, high, count)| (seconds(low), seconds(high), count));
        (
            totals.statuses,
            durations.collect(),
            totals.in_flight,
            totals.connections_open,
        )
    }

    /// The slot of one worker.
    fn slot(&self, index: usize) -> PyResult<Slot> {
        let handle = self.slots.handle(index);
        let handle = handle.ok_or_else(|| PyIndexError::new_err("no such slot"))?;
        Ok(Slot {
            handle,
            heartbeat: Mutex::new(None),
            forwarder: Mutex::new(None),
        })
    }
}

impl SharedStats {
    /// The counters of the supervisor are in the first slot, which the first worker has.
    fn supervisor(&self, write: impl FnOnce(&SlotHandle)) {
        if let Some(slot) = self.slots.handle(0) {
            write(&slot);
        }
    }
}

/// A descriptor of memory that processes which inherit it can share.
#[pyfunction]
pub fn shared_memory() -> PyResult<RawFd> {
    Ok(towline_io::shared_file()?.into_raw_fd())
}

/// Resident memory of a process; 0 if it has ended or the figure is not available.
#[pyfunction]
pub fn resident_bytes(pid: u32) -> u64 {
    towline_io::resident_bytes(pid).unwrap_or(0)
}

/// One worker's slot. The times are nanoseconds of `time.monotonic_ns()`.
#[pyclass(frozen, module = "towline._native")]
pub struct Slot {
    handle: SlotHandle,
    heartbeat: Mutex<Option<Heartbeat>>,
    forwarder: Mutex<Option<Forwarder>>,
}

impl Slot {
    /// The native handle, for a server's counters.
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

    /// Time of the last heartbeat of the native thread.
    #[getter]
    fn heartbeat(&self) -> u64 {
        self.handle.heartbeat_native.load(Relaxed)
    }

    /// Time of the last turn of the event loop.
    #[getter]
    fn last_turn(&self) -> u64 {
        self.handle.heartbeat_turn.load(Relaxed)
    }

    /// Completed requests of all workers that have had this slot.
    #[getter]
    fn requests(&self) -> u64 {
        self.handle.requests_ended()
    }

    /// Connections accepted by all workers that have had this slot.
    #[getter]
    fn connections(&self) -> u64 {
        self.handle.connections.load(Relaxed)
    }

    #[getter]
    fn in_flight(&self) -> u64 {
        self.handle.in_flight.load(Relaxed)
    }

    /// Assigns the slot to a worker. Counters continue, gauges are reset.
    fn begin(&self, pid: u32) {
        self.handle.begin(pid, monotonic_ns());
    }

    /// Releases the slot after the worker has ended.
    fn end(&self) {
        self.handle.end();
    }

    fn turned(&self) {
        self.handle.turned(monotonic_ns());
    }

    /// Starts a native thread, which needs no GIL, that writes heartbeats into this slot and `others` until the process
    /// ends. Called by the worker after the fork.
    #[pyo3(signature = (period, others=vec![]))]
    fn start_heartbeat(&self, period: f64, others: Vec<PyRef<'_, Self>>) -> PyResult<()> {
        let mut slots = vec![self.handle()];
        slots.extend(others.iter().map(|other| other.handle()));
        for slot in &slots {
            // The slot was assigned before the fork, when the process id was unknown.
            slot.pid.store(u64::from(process::id()), Relaxed);
        }
        let period = Duration::from_secs_f64(period.clamp(0.01, 60.0));
        let heartbeat =
            Heartbeat::start(slots, period).map_err(|e| PyOSError::new_err(e.to_string()))?;
        *self
            .heartbeat
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(heartbeat);
        Ok(())
    }

    /// Starts a native thread that forwards what arrives at the UDP sockets of `binds` to workers that are ready. Called
    /// by the worker after the fork.
    fn start_forwarding(&self, binds: Vec<Bind>) -> PyResult<()> {
        let forwarder = http3::forwarder(&binds, self.handle())
            .map_err(|e| PyOSError::new_err(e.to_string()))?;
        *self
            .forwarder
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = forwarder;
        Ok(())
    }

    /// Ends that thread, before a server reads the sockets.
    fn stop_forwarding(&self) {
        *self
            .forwarder
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }
}
