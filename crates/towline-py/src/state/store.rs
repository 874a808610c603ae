//! `StateStore`: the primitives of `towline.state.backend` on the embedded store.
use std::path::PathBuf;
use std::ptr::{null, with_exposed_provenance_mut};
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use towline_state::{
    Blocking, Check, Error, Lifetime, Options, Post, Remaining, Store, WhenFull, Write,
    milliseconds,
};

use super::log_reader::StateLog;
use super::{closed, to_python};
use towline_py_common::cell::StateCell;
use towline_py_common::errors::{StateUnavailable, UsageError};

/// An open store. With `short`, a call that would wait or work for long raises `BlockingIOError` instead.
#[pyclass(frozen, module = "towline._native")]
pub struct StateStore {
    /// `None`: closed.
    store: StateCell<Option<Arc<Store>>>,
    blocking: Blocking,
}

/// Number of bytes whose copy takes some microseconds.
const LARGE_BYTES: usize = 64 * 1024;

type Keys = Vec<PyBackedBytes>;
type Checks = Vec<(PyBackedBytes, Option<PyBackedBytes>)>;
type Writes = Vec<(PyBackedBytes, Option<PyBackedBytes>, Option<f64>)>;
type Posts = Vec<(PyBackedBytes, PyBackedBytes)>;
type Grant = (bool, f64, f64);

#[pymethods]
impl StateStore {
    #[new]
    #[pyo3(signature = (path, *, size=None, when_full=None, sync=None, workers=None, short=false))]
    fn new(
        path: PathBuf,
        size: Option<u64>,
        when_full: Option<&str>,
        sync: Option<bool>,
        workers: Option<u32>,
        short: bool,
    ) -> PyResult<Self> {
        let rule = |name: &str| {
            WhenFull::from_name(name).ok_or_else(|| {
                UsageError::new_err(format!("when_full is \"error\" or \"evict\", not {name:?}"))
            })
        };
        let when_full = when_full.map(rule).transpose()?;
        // Attached: no other thread of Python forks while the list of open stores is locked.
        let store = Store::open(
            &path,
            Options {
                size,
                when_full,
                sync,
                workers,
            },
        )
        .map_err(to_python)?;
        let blocking = if short {
            Blocking::Short
        } else {
            Blocking::Wait
        };
        Ok(Self {
            store: StateCell::new(Some(Arc::new(store))),
            blocking,
        })
    }

    #[getter]
    fn name(&self) -> &'static str {
        "embedded"
    }

    #[pyo3(signature = (key, /))]
    fn get<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let store = self.store(py)?;
        let found = store.get(Blocking::Short, key, |value| PyBytes::new(py, value));
        match found {
            Err(Error::Busy) if self.blocking == Blocking::Wait => {}
            found => return found.map_err(to_python),
        }
        let found = py.detach(|| store.get(Blocking::Wait, key, <[u8]>::to_vec));
        let value = found.map_err(to_python)?;
        value.map(|value| bytes_of(py, &value)).transpose()
    }

    #[pyo3(signature = (keys, /))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let values = self.run(py, |store, blocking| store.get_many(blocking, &keys))?;
        let values = values.into_iter();
        values
            .map(|value| value.map(|value| bytes_of(py, &value)).transpose())
            .collect()
    }

    #[pyo3(signature = (key, value, ttl=None, /))]
    fn set(&self, py: Python<'_>, key: &[u8], value: &[u8], ttl: Option<f64>) -> PyResult<()> {
        self.run(py, |store, blocking| {
            store.set(blocking, key, value, lifetime(ttl))
        })
    }

    #[pyo3(signature = (keys, /))]
    fn delete(&self, py: Python<'_>, keys: Keys) -> PyResult<usize> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.run(py, |store, blocking| store.delete(blocking, &keys))
    }

    #[pyo3(signature = (checks, writes, posts=Vec::new(), /))]
    fn apply(
        &self,
        py: Python<'_>,
        checks: Checks,
        writes: Writes,
        posts: Posts,
    ) -> PyResult<bool> {
        let checks: Vec<_> = checks
            .iter()
            .map(|(key, expected)| Check {
                key,
                expected: expected.as_deref(),
            })
            .collect();
        let writes: Vec<_> = writes
            .iter()
            .map(|(key, value, ttl)| Write {
                key,
                value: value.as_deref(),
                lifetime: lifetime(*ttl),
            })
            .collect();
        let posts: Vec<_> = posts
            .iter()
            .map(|(channel, message)| Post { channel, message })
            .collect();
        self.run(py, |store, blocking| {
            store.apply(blocking, &checks, &writes, &posts)
        })
    }

    #[pyo3(signature = (key, delta, ttl=None, /))]
    fn add(&self, py: Python<'_>, key: &[u8], delta: i64, ttl: Option<f64>) -> PyResult<i64> {
        self.run(py, |store, blocking| {
            store.add(blocking, key, delta, lifetime(ttl))
        })
    }

    #[pyo3(signature = (key, /))]
    #[allow(clippy::cast_precision_loss)] // of milliseconds
    fn ttl(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<f64>> {
        let remaining = self.run(py, |store, _| store.remaining(key))?;
        Ok(match remaining {
            Remaining::Missing => None,
            Remaining::Forever => Some(f64::INFINITY),
            Remaining::Milliseconds(left) => Some(left as f64 / 1000.0),
        })
    }

    #[pyo3(signature = (key, ttl, /))]
    fn expire(&self, py: Python<'_>, key: &[u8], ttl: Option<f64>) -> PyResult<bool> {
        self.run(py, |store, blocking| {
            store.expire(blocking, key, lifetime(ttl))
        })
    }

    #[pyo3(signature = (prefix, cursor, limit, values, /))]
    #[allow(clippy::type_complexity)] // a tuple for Python
    fn scan<'py>(
        &self,
        py: Python<'py>,
        prefix: &[u8],
        cursor: Option<&[u8]>,
        limit: usize,
        values: bool,
    ) -> PyResult<(
        Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>,
        Option<Bound<'py, PyBytes>>,
    )> {
        let page = self.run(py, |store, blocking| {
            store.scan(blocking, prefix, cursor, limit, values)
        })?;
        let items = page
            .items
            .iter()
            .map(|(key, value)| Ok((PyBytes::new(py, key), bytes_of(py, value)?)))
            .collect::<PyResult<_>>()?;
        let next = page.next.as_deref().map(|key| PyBytes::new(py, key));
        Ok((items, next))
    }

    #[pyo3(signature = (key, capacity, per_second, cost, /))]
    fn take_tokens(
        &self,
        py: Python<'_>,
        key: &[u8],
        capacity: f64,
        per_second: f64,
        cost: f64,
    ) -> PyResult<Grant> {
        self.run(py, |store, blocking| {
            store.take_tokens(blocking, key, (capacity, per_second), cost)
        })
        .map(|grant| (grant.is_allowed, grant.remaining, grant.retry_after))
    }

    #[pyo3(signature = (key, limit, seconds, cost, /))]
    fn take_window(
        &self,
        py: Python<'_>,
        key: &[u8],
        limit: u64,
        seconds: f64,
        cost: u64,
    ) -> PyResult<Grant> {
        self.run(py, |store, blocking| {
            store.take_window(blocking, key, (limit, seconds), cost)
        })
        .map(|grant| (grant.is_allowed, grant.remaining, grant.retry_after))
    }

    #[pyo3(signature = (channel, message, /))]
    fn publish(&self, py: Python<'_>, channel: &[u8], message: &[u8]) -> PyResult<()> {
        self.run(py, |store, blocking| {
            store.publish(blocking, Post { channel, message })
        })
    }

    /// Begins to read all messages that are published from now on.
    fn open_log(&self, py: Python<'_>) -> PyResult<StateLog> {
        let store = self.store(py)?;
        py.detach(|| store.subscribe())
            .map(StateLog::new)
            .map_err(to_python)
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.run(py, |store, _| store.info())?;
        let (size, when_full, sync) = info.settings;
        let found = PyDict::new(py);
        found.set_item("backend", "embedded")?;
        found.set_item("keys", info.keys)?;
        found.set_item("expiring", info.expiring)?;
        found.set_item("size", size)?;
        found.set_item("used_bytes", info.used_bytes)?;
        found.set_item("file_bytes", info.file_bytes)?;
        found.set_item("messages", info.messages)?;
        found.set_item("subscribers", info.subscribers)?;
        found.set_item("writes", info.writes)?;
        found.set_item("when_full", when_full.name())?;
        found.set_item("sync", sync)?;
        Ok(found)
    }

    fn close(&self, py: Python<'_>) {
        let store = self.store.open(py).take();
        drop(store);
    }
}

impl StateStore {
    fn store(&self, py: Python<'_>) -> PyResult<Arc<Store>> {
        self.store.open(py).clone().ok_or_else(closed)
    }

    /// Run a call at once if it is short, and detached from the interpreter otherwise.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl Fn(&Store, Blocking) -> Result<T, Error> + Sync + Send,
    ) -> PyResult<T> {
        let store = self.store(py)?;
        match call(&store, Blocking::Short) {
            Err(Error::Busy) if self.blocking == Blocking::Wait => {}
            result => return result.map_err(to_python),
        }
        match py.detach(|| call(&store, Blocking::Wait)) {
            Err(Error::Busy) => {
                let text = "another process has held the writers' lock for 10 s: it is stopped, or the disk is";
                Err(StateUnavailable::new_err(text))
            }
            result => result.map_err(to_python),
        }
    }
}

/// A copy as bytes of Python. A large one is made without the GIL, so that an event loop goes on meanwhile.
fn bytes_of<'py>(py: Python<'py>, value: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    if value.len() < LARGE_BYTES {
        return Ok(PyBytes::new(py, value));
    }
    let len = value.len().cast_signed();
    // SAFETY: a new reference to uninitialised bytes, or null with an exception.
    let object =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(null(), len))? };
    // SAFETY: an object of bytes, which nobody else has until this function returns.
    let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.expose_provenance();
    py.detach(|| {
        let start = with_exposed_provenance_mut::<u8>(start);
        // SAFETY: it has room for as many bytes as `value`, which is elsewhere.
        unsafe { start.copy_from_nonoverlapping(value.as_ptr(), value.len()) };
    });
    Ok(object.cast_into::<PyBytes>()?)
}

/// `None` is "for ever", a negative time "as before" (`KEEP_TTL`).
fn lifetime(ttl: Option<f64>) -> Lifetime {
    match ttl {
        None => Lifetime::Forever,
        Some(seconds) if seconds < 0.0 => Lifetime::Keep,
        Some(seconds) => Lifetime::Milliseconds(milliseconds(seconds)),
    }
}
