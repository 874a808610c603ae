//! A response head, and a body that is pulled.
use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use towline_io::call::{ConnectionFacts, Timings};
use towline_io::{PeerAddr, TlsInfo};

use super::aio::operation::Operation;
use super::aio::source::AsyncSource;
use super::call::Call;
use super::collect::Bounds;
use super::head::Head;

/// What is known of an exchange beside its messages.
#[derive(Debug, Default, Clone, Copy)]
pub struct Facts {
    pub timings: Timings,
    pub reused: bool,
}

/// Where the body of a reply comes from.
pub trait Source: Send + Sync {
    fn facts(&self, py: Python<'_>) -> Facts;
    fn buffered(&self, py: Python<'_>) -> usize;
    fn trailers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>>;
    /// Of the connection.
    fn connection(&self) -> Option<&ConnectionFacts>;
}

/// What both faces have in common.
#[pyclass(frozen, subclass, module = "towline._native")]
pub struct Reply {
    pub head: Arc<Head>,
    source: Arc<dyn Source>,
}

impl Reply {
    pub fn new(head: Arc<Head>, source: Arc<dyn Source>) -> Self {
        Self { head, source }
    }

    pub fn facts(&self, py: Python<'_>) -> Facts {
        self.source.facts(py)
    }
}

#[pymethods]
impl Reply {
    #[getter]
    fn status(&self) -> u16 {
        self.head.status
    }

    #[getter]
    fn reason(&self) -> &[u8] {
        self.head.reason()
    }

    #[getter]
    fn version(&self) -> &'static str {
        self.head.version_name()
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.head.to_list(py)
    }

    #[getter]
    fn trailers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.source.trailers(py)
    }

    #[getter]
    fn reused(&self, py: Python<'_>) -> bool {
        self.facts(py).reused
    }

    #[getter]
    fn buffered(&self, py: Python<'_>) -> usize {
        self.source.buffered(py)
    }

    #[getter]
    fn timings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        timings_dict(py, &self.facts(py).timings)
    }

    #[getter]
    fn local_address<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        address(py, self.source.connection().map(|facts| &facts.local))
    }

    #[getter]
    fn remote_address<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        address(py, self.source.connection().map(|facts| &facts.remote))
    }

    #[getter]
    fn tls<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let tls = self
            .source
            .connection()
            .and_then(|facts| facts.tls.as_ref());
        tls.map(|tls| tls_dict(py, tls)).transpose()
    }
}

/// As the `socket` module has it: host and port, a path, or nothing.
fn address<'py>(py: Python<'py>, address: Option<&PeerAddr>) -> PyResult<Bound<'py, PyAny>> {
    match address {
        Some(PeerAddr::Inet(inet)) => (inet.ip().to_string(), inet.port()).into_bound_py_any(py),
        Some(PeerAddr::Unix(path)) => path.to_string_lossy().into_bound_py_any(py),
        Some(PeerAddr::None) | None => Ok(py.None().into_bound(py)),
    }
}

fn tls_dict<'py>(py: Python<'py>, tls: &TlsInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let version = match tls.version {
        0x0303 => Some("TLSv1.2"),
        0x0304 => Some("TLSv1.3"),
        _ => None,
    };
    dict.set_item("version", version)?;
    dict.set_item("cipher", tls.cipher_name())?;
    let alpn = tls.alpn.as_deref().map(String::from_utf8_lossy);
    dict.set_item("alpn", alpn)?;
    let certificate = tls.peer_certs.first();
    dict.set_item(
        "peer_certificate",
        certificate.map(|der| PyBytes::new(py, der)),
    )?;
    Ok(dict)
}

/// Seconds by phase; a phase that did not happen is absent.
pub fn timings_dict<'py>(py: Python<'py>, timings: &Timings) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let always = [("queue", timings.queued)];
    let opening = [
        ("dns", timings.dns),
        ("connect", timings.connect),
        ("tls", timings.tls),
    ];
    let opening = opening.into_iter().filter(|(_, spent)| !spent.is_zero());
    for (name, spent) in always.into_iter().chain(opening) {
        dict.set_item(name, spent.as_secs_f64())?;
    }
    for (name, spent) in [("first_byte", timings.first_byte), ("total", timings.total)] {
        if let Some(spent) = spent {
            dict.set_item(name, spent.as_secs_f64())?;
        }
    }
    Ok(dict)
}

/// A reply of an event loop.
#[pyclass(frozen, extends = Reply, module = "towline._native")]
pub struct AsyncReply {
    source: Arc<AsyncSource>,
}

impl AsyncReply {
    pub fn make(py: Python<'_>, head: Arc<Head>, source: AsyncSource) -> PyResult<Py<Self>> {
        let source = Arc::new(source);
        let base = Reply::new(head, Arc::<AsyncSource>::clone(&source));
        let class = PyClassInitializer::from(base).add_subclass(Self { source });
        Py::new(py, class)
    }
}

#[pymethods]
impl AsyncReply {
    #[pyo3(signature = (n=-1, /))]
    fn read(&self, py: Python<'_>, n: isize) -> PyResult<Py<Call>> {
        let max = usize::try_from(n).unwrap_or(usize::MAX);
        let operation = Operation::read(Arc::clone(&self.source), max);
        Call::of(py, operation)
    }

    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, buffer: &Bound<'_, PyAny>) -> PyResult<Py<Call>> {
        let operation = Operation::read_into(Arc::clone(&self.source), buffer)?;
        Call::of(buffer.py(), operation)
    }

    #[pyo3(signature = (*, decode=true, max_size=None, max_decoded=None))]
    fn read_all(
        slf: &Bound<'_, Self>,
        decode: bool,
        max_size: Option<u64>,
        max_decoded: Option<u64>,
    ) -> PyResult<Py<Call>> {
        let bounds = Bounds {
            max_response_size: max_size,
            max_decompressed_size: max_decoded,
            raw: !decode,
        };
        let head = Arc::clone(&slf.as_super().get().head);
        let operation = Operation::read_all(Arc::clone(&slf.get().source), &head, bounds);
        Call::of(slf.py(), operation)
    }

    fn close(&self, py: Python<'_>) {
        self.source.close(py);
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.source.is_closed(py)
    }
}
