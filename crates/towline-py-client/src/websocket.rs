//! The common part of the `WebSockets` of both clients: configuration, messages and errors.
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyMemoryView, PyString};
use towline_io::client::{Outgoing, WebSocketConfig, WsClosed, WsSendError};
use towline_proto::ws::{self, Kind, SendError, deflate};

use super::errors;
use super::head::Head;
use super::pool_config::seconds;
use towline_py_common::errors::{ReadTimeout, UsageError, WebSocketClosed};

/// From a `WebSocketOptions`.
pub fn config(options: &Bound<'_, PyAny>) -> PyResult<WebSocketConfig> {
    let py = options.py();
    let time = |name: &Bound<'_, PyString>| seconds(&options.getattr(name)?);
    let protocols: Vec<String> = options.getattr(intern!(py, "subprotocols"))?.extract()?;
    let compression: bool = options.getattr(intern!(py, "compression"))?.extract()?;
    let most: usize = options
        .getattr(intern!(py, "max_message_bytes"))?
        .extract::<Option<usize>>()?
        .unwrap_or(usize::MAX);
    let limits = ws::Limits {
        max_message_bytes: most,
        max_fragments_bytes: most,
        ping_interval: time(intern!(py, "ping_interval"))?,
        ping_timeout: time(intern!(py, "ping_timeout"))?,
        close_timeout: time(intern!(py, "close_timeout"))?
            .unwrap_or(ws::Limits::default().close_timeout),
    };
    Ok(WebSocketConfig {
        protocols: protocols.into_iter().map(String::into_bytes).collect(),
        deflate: compression.then(deflate::Config::client),
        limits: Arc::new(limits),
    })
}

/// Returns the kind and the payload of a message, without a copy if it is immutable.
pub fn outgoing(data: &Bound<'_, PyAny>) -> PyResult<(Kind, Bytes)> {
    if let Ok(text) = data.cast::<PyString>() {
        let text = Utf8(PyBackedStr::try_from(text.clone())?);
        return Ok((Kind::Text, Bytes::from_owner(text)));
    }
    Ok((Kind::Binary, payload(data)?))
}

/// Returns a payload; mutable buffers are copied.
pub fn payload(data: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(Bytes::from_owner(PyBackedBytes::from(bytes.clone())));
    }
    if data.is_instance_of::<PyByteArray>() || data.is_instance_of::<PyMemoryView>() {
        let copy = data.py().get_type::<PyBytes>().call1((data,))?;
        return Ok(Bytes::from_owner(PyBackedBytes::from(
            copy.cast_into::<PyBytes>()?,
        )));
    }
    Err(PyTypeError::new_err(format!(
        "a message is a str or bytes, not {}",
        data.get_type()
    )))
}

struct Utf8(PyBackedStr);

impl AsRef<[u8]> for Utf8 {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Creates the Python object of a received message. This runs no Python code: str and bytes are not containers.
pub fn message(py: Python<'_>, kind: Kind, data: &[u8]) -> Py<PyAny> {
    match (kind, std::str::from_utf8(data)) {
        (Kind::Text, Ok(text)) => PyString::new(py, text).into_any().unbind(),
        // The wire core has checked that text is UTF-8.
        _ => PyBytes::new(py, data).into_any().unbind(),
    }
}

pub fn closed_error(py: Python<'_>, closed: &WsClosed) -> PyErr {
    let details = PyDict::new(py);
    let set = details.set_item(intern!(py, "rule"), closed.rule);
    let class = py.get_type::<WebSocketClosed>();
    let error = set.and_then(|()| class.call((closed.code, &closed.reason), Some(&details)));
    error.map_or_else(|failure| failure, PyErr::from_value)
}

pub fn send_error(error: SendError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The error of a message that was not accepted. `None`: there is no room for it yet.
pub fn send_refusal(py: Python<'_>, refusal: &WsSendError) -> Option<PyErr> {
    Some(match refusal {
        WsSendError::NoRoom => return None,
        WsSendError::Closed(closed) => closed_error(py, closed),
        WsSendError::Failed(error) => errors::call_error(py, error),
        WsSendError::Misuse(error) => send_error(*error),
    })
}

pub fn second_receiver() -> PyErr {
    UsageError::new_err(
        "another thread or task is in recv() of this WebSocket: receive in one and pass messages on",
    )
}

pub fn receive_timeout() -> PyErr {
    ReadTimeout::new_err("no message arrived within the timeout of recv()")
}

/// The end of a wait of `timeout` seconds. `None`: no limit.
pub fn deadline(timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Instant>> {
    let Some(timeout) = timeout else {
        return Ok(None);
    };
    Ok(seconds(timeout)?.and_then(|wait: Duration| Instant::now().checked_add(wait)))
}

#[derive(Debug, Clone)]
pub enum OutgoingMessage {
    Data(Kind, Bytes),
    Ping(Bytes),
}

impl OutgoingMessage {
    pub fn as_outgoing(&self) -> Outgoing<'_> {
        match self {
            Self::Data(kind, data) => Outgoing::Message(*kind, data.clone()),
            Self::Ping(data) => Outgoing::Ping(data),
        }
    }
}

/// The response to an opening handshake (RFC 6455 4.1).
#[pyclass(frozen, module = "towline._native")]
pub struct Handshake {
    pub head: Arc<Head>,
    /// The beginning of the content, if the server has rejected the handshake.
    pub content: Option<Vec<u8>>,
    pub socket: Option<Py<PyAny>>,
}

#[pymethods]
impl Handshake {
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
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.content.as_deref().unwrap_or_default())
    }

    #[getter]
    fn socket(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.socket.as_ref().map(|socket| socket.clone_ref(py))
    }
}
