//! `Reply`: a response head, and a body that is read on demand.
use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use towline_io::client::{ConnectionInfo, Timings};
use towline_io::{PeerAddr, TlsInfo};

use super::head::Head;

/// Data about a call other than its messages.
#[derive(Debug, Default, Clone, Copy)]
pub struct CallInfo {
    pub timings: Timings,
    pub reused: bool,
}

/// The body of a reply: `AsyncBody` or `SyncBody`.
pub trait ReplyBody: Send + Sync {
    fn info(&self, py: Python<'_>) -> CallInfo;
    /// Bytes received and not yet read.
    fn buffered(&self, py: Python<'_>) -> usize;
    fn trailers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>>;
    fn connection(&self) -> Option<&ConnectionInfo>;
}

/// The base class of `AsyncReply` and `SyncReply`.
#[pyclass(frozen, subclass, module = "towline._native")]
pub struct Reply {
    pub head: Arc<Head>,
    body: Arc<dyn ReplyBody>,
}

impl Reply {
    pub fn new(head: Arc<Head>, body: Arc<dyn ReplyBody>) -> Self {
        Self { head, body }
    }

    pub fn info(&self, py: Python<'_>) -> CallInfo {
        self.body.info(py)
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
        self.body.trailers(py)
    }

    #[getter]
    fn reused(&self, py: Python<'_>) -> bool {
        self.info(py).reused
    }

    #[getter]
    fn early_data(&self, py: Python<'_>) -> bool {
        self.info(py).timings.early_data
    }

    #[getter]
    fn buffered(&self, py: Python<'_>) -> usize {
        self.body.buffered(py)
    }

    #[getter]
    fn timings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        timings_dict(py, &self.info(py).timings)
    }

    #[getter]
    fn local_address<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        address(
            py,
            self.body.connection().map(|connection| &connection.local),
        )
    }

    #[getter]
    fn remote_address<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        address(
            py,
            self.body.connection().map(|connection| &connection.remote),
        )
    }

    #[getter]
    fn tls<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let tls = self
            .body
            .connection()
            .and_then(|connection| connection.tls.as_ref());
        tls.map(|tls| tls_dict(py, tls)).transpose()
    }
}

/// Returns the buffer that `readinto` fills.
pub fn writable(buffer: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    let buffer = PyBuffer::get(buffer)?;
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err(
            "readinto: a writable, contiguous buffer of bytes is needed",
        ));
    }
    Ok(buffer)
}

/// Copies `data` to the beginning of a [`writable`] buffer. Returns its length.
pub fn copy_into(_py: Python<'_>, buffer: &PyBuffer<u8>, data: &[u8]) -> PyResult<usize> {
    if data.len() > buffer.item_count() {
        return Err(PyRuntimeError::new_err("the buffer has changed"));
    }
    // SAFETY: the buffer is writable, contiguous and at least as long, and stays exported while it is held
    // here; nothing else writes while the GIL is held.
    unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.buf_ptr().cast::<u8>(), data.len());
    }
    Ok(data.len())
}

/// An address in the form of the `socket` module: `(host, port)`, a path, or None.
pub fn address<'py>(py: Python<'py>, address: Option<&PeerAddr>) -> PyResult<Bound<'py, PyAny>> {
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

/// Seconds of each phase. A phase that did not take place is absent.
pub fn timings_dict<'py>(py: Python<'py>, timings: &Timings) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let always = [("queue", timings.queued)];
    let opening = [
        ("dns", timings.dns),
        ("connect", timings.connect),
        ("tls", timings.tls),
        ("quic", timings.quic),
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
