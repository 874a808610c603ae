//! The native base class of `Response`. Properties are computed when they are first read.
use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};
use towline_io::client::request::Timings;
use towline_proto::{Version, standard_reason};

use super::head::Head;
use super::reply::Reply;
use super::response_config::ResponseConfig;
use super::sent_request::SentRequest;
use crate::bodies::json;
use towline_py_common::cell::StateCell;

#[pyclass(frozen, subclass, weakref, module = "towline._native")]
pub struct ResponseCore {
    state: StateCell<State>,
}

/// The state of a response. It has no head before `_init_head` or `_set_reply`.
#[derive(Default)]
pub struct State {
    pub head: Option<Arc<Head>>,
    pub content: Option<Py<PyBytes>>,
    pub config: Option<Arc<ResponseConfig>>,
    pub timings: Timings,
    pub reused: bool,
    pub reply: Option<Py<PyAny>>,
    pub client: Option<Py<PyAny>>,
    pub sent: Option<SentRequest>,
    /// Set by the user.
    pub encoding: Option<Py<PyAny>>,
    pub default_encoding: Option<Py<PyAny>>,
    pub loads: Option<Py<PyAny>>,
    pub elapsed: Option<f64>,
}

impl ResponseCore {
    /// Creates an instance of `config.response`, without calling its `__init__`.
    pub fn make(py: Python<'_>, config: &ResponseConfig, state: State) -> PyResult<Py<PyAny>> {
        let class = config.response.bind(py).as_type_ptr();
        let no_args = PyTuple::empty(py);
        // SAFETY: `tp_new` of a ready type, called as `type.__call__` does.
        let made = unsafe {
            let Some(new) = (*class).tp_new else {
                return Err(PyRuntimeError::new_err("the response class has no __new__"));
            };
            Bound::from_owned_ptr_or_err(py, new(class, no_args.as_ptr(), std::ptr::null_mut()))?
        };
        *made.cast::<Self>()?.get().state.open(py) = state;
        Ok(made.unbind())
    }

    fn head(&self, py: Python<'_>) -> PyResult<Arc<Head>> {
        let state = self.state.open(py);
        state
            .head
            .clone()
            .ok_or_else(|| PyRuntimeError::new_err("this response was not initialised"))
    }

    fn status(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(self.head(py)?.status)
    }

    fn is_class(&self, py: Python<'_>, hundreds: u16) -> PyResult<bool> {
        Ok(self.status(py)? / 100 == hundreds)
    }

    /// Whether the content is known to be UTF-8 without running Python code.
    fn is_utf8(&self, py: Python<'_>) -> PyResult<bool> {
        let head = self.head(py)?;
        let state = self.state.open(py);
        if state.encoding.is_some() || state.default_encoding.is_some() {
            return Ok(false);
        }
        if let Some(content_type) = head.joined(b"content-type")
            && let Some(charset) = charset(&content_type)
        {
            return Ok(is_utf8_name(charset));
        }
        let default = state.config.as_ref().map(|config| &config.default_encoding);
        Ok(default.is_none_or(|name| is_utf8_name(name.as_bytes())))
    }
}

#[pymethods]
impl ResponseCore {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        // The arguments are for the subclass's `__init__`.
        let _ = (args, kwargs);
        Self {
            state: StateCell::default(),
        }
    }

    #[pyo3(signature = (status, headers=None, *, content=None, version="HTTP/1.1", reason=None))]
    fn _init_head(
        &self,
        py: Python<'_>,
        status: u16,
        headers: Option<&Bound<'_, PyAny>>,
        content: Option<Bound<'_, PyBytes>>,
        version: &str,
        reason: Option<&[u8]>,
    ) -> PyResult<()> {
        let version = match version {
            "HTTP/1.0" => Version::Http10,
            "HTTP/1.1" => Version::Http11,
            "HTTP/2" => Version::Http2,
            "HTTP/3" => Version::Http3,
            _ => {
                return Err(PyValueError::new_err(
                    "version: expected HTTP/1.0, HTTP/1.1, HTTP/2 or HTTP/3",
                ));
            }
        };
        let mut fields = Vec::new();
        if let Some(headers) = headers {
            for pair in headers.try_iter()? {
                let (name, value): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = pair?.extract()?;
                fields.push((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
            }
        }
        let head = Head::from_parts(status, version, reason.unwrap_or_default().to_vec(), fields);
        let mut state = self.state.open(py);
        state.head = Some(Arc::new(head));
        state.content = content.map(Bound::unbind);
        Ok(())
    }

    fn _set_reply(&self, reply: &Bound<'_, Reply>) {
        let py = reply.py();
        let info = reply.get().info(py);
        let mut state = self.state.open(py);
        state.head = Some(Arc::clone(&reply.get().head));
        state.timings = info.timings;
        state.reused = info.reused;
        state.reply = Some(reply.clone().into_any().unbind());
    }

    /// The status, 100 to 999.
    #[getter]
    fn status_code(&self, py: Python<'_>) -> PyResult<u16> {
        self.status(py)
    }

    /// `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`.
    #[getter]
    fn http_version(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.head(py)?.version_name())
    }

    /// The reason phrase of the status line; of HTTP/2 that of the status (RFC 9110 15).
    #[getter]
    fn reason_phrase<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let head = self.head(py)?;
        if head.reason().is_empty() {
            let standard = standard_reason(head.status);
            return Ok(latin1(py, standard));
        }
        Ok(latin1(py, head.reason()))
    }

    #[getter]
    fn _raw_headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.head(py)?.to_list(py)
    }

    #[pyo3(signature = (name, /))]
    fn _header<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyString>>> {
        let joined = self.head(py)?.joined(name.as_bytes());
        Ok(joined.map(|value| latin1(py, &value)))
    }

    /// The body, with its content coding removed. Raises `UsageError` if it is not read yet.
    #[getter]
    fn content(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let content = slf
            .get()
            .state
            .open(py)
            .content
            .as_ref()
            .map(|content| content.clone_ref(py));
        match content {
            Some(content) => Ok(content.into_any()),
            None => Ok(slf.call_method0(intern!(py, "_not_read"))?.unbind()),
        }
    }

    /// The body as text: by `encoding`, the charset of Content-Type, or `default_encoding`. Malformed bytes become U+FFFD.
    #[getter]
    fn text<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        if !slf.get().is_utf8(py)? {
            return slf.call_method0(intern!(py, "_decode_text"));
        }
        let content = Self::content(slf)?.into_bound(py);
        decode_utf8(content.cast::<PyBytes>()?)
    }

    /// The body parsed as JSON. With arguments, or with `json_loads` of the client, as `json.loads` does it. Raises `ValueError`.
    #[pyo3(signature = (**kwargs))]
    fn json<'py>(
        slf: &Bound<'py, Self>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static JSON_LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let content = Self::content(slf)?.into_bound(py);
        let loads = {
            let state = slf.get().state.open(py);
            let config = state.config.as_ref();
            let loads = state.loads.as_ref();
            loads
                .or_else(|| config.and_then(|config| config.json_loads.as_ref()))
                .map(|loads| loads.clone_ref(py))
        };
        let loads = match loads {
            Some(loads) => loads.into_bound(py),
            None if kwargs.is_none() => return json::load(&content),
            None => JSON_LOADS.import(py, "towline._json", "loads")?.clone(),
        };
        loads.call((content,), kwargs)
    }

    /// Whether the status is 1xx.
    #[getter]
    fn is_informational(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_class(py, 1)
    }

    /// Whether the status is 2xx.
    #[getter]
    fn is_success(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_class(py, 2)
    }

    /// Whether the status is 3xx.
    #[getter]
    fn is_redirect(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_class(py, 3)
    }

    /// Whether the status is 4xx.
    #[getter]
    fn is_client_error(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_class(py, 4)
    }

    /// Whether the status is 5xx.
    #[getter]
    fn is_server_error(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_class(py, 5)
    }

    /// Whether the status is 4xx or 5xx.
    #[getter]
    fn is_error(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.status(py)? >= 400)
    }

    /// The time from the call to the end of the body. Raises `RuntimeError` before the end.
    #[getter]
    fn elapsed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static TIMEDELTA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(seconds) = self.elapsed_seconds(py) else {
            return Err(PyRuntimeError::new_err(
                "elapsed is available once the body has been read or the response closed",
            ));
        };
        TIMEDELTA
            .import(py, "datetime", "timedelta")?
            .call1((0, seconds))
    }

    #[getter(_elapsed)]
    fn elapsed_seconds(&self, py: Python<'_>) -> Option<f64> {
        let state = self.state.open(py);
        if let Some(reply) = &state.reply
            && state.elapsed.is_none()
            && let Ok(reply) = reply.bind(py).cast::<Reply>()
        {
            let total = reply.get().info(py).timings.total;
            return total.map(|total| total.as_secs_f64());
        }
        let total = state.timings.total.map(|total| total.as_secs_f64());
        state.elapsed.or(total)
    }

    #[setter(_elapsed)]
    fn set_elapsed(&self, py: Python<'_>, seconds: Option<f64>) {
        self.state.open(py).elapsed = seconds;
    }

    /// Seconds of the phases of the call, by name: those that took place.
    #[getter]
    fn timings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (timings, reply) = {
            let state = self.state.open(py);
            (
                state.timings,
                state.reply.as_ref().map(|reply| reply.clone_ref(py)),
            )
        };
        let timings = match reply {
            Some(reply) => reply.bind(py).cast::<Reply>()?.get().info(py).timings,
            None => timings,
        };
        super::reply::timings_dict(py, &timings)
    }

    /// Whether the connection had carried a request before.
    #[getter]
    fn reused(&self, py: Python<'_>) -> bool {
        self.state.open(py).reused
    }

    /// Whether the request was sent in early data (0-RTT) that the server has accepted.
    #[getter]
    fn early_data(&self, py: Python<'_>) -> bool {
        self.state.open(py).timings.early_data
    }

    #[getter]
    fn buffered(&self, py: Python<'_>) -> PyResult<usize> {
        let reply = self.reply(py);
        reply.map_or(Ok(0), |reply| {
            reply.bind(py).getattr(intern!(py, "buffered"))?.extract()
        })
    }

    #[getter(_reply)]
    fn reply(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        cloned(py, self.state.open(py).reply.as_ref())
    }

    #[setter(_reply)]
    fn set_reply(&self, py: Python<'_>, reply: Option<Py<PyAny>>) {
        set_object(py, self, reply, |state| &mut state.reply);
    }

    #[getter]
    fn _content(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        let state = self.state.open(py);
        state.content.as_ref().map(|content| content.clone_ref(py))
    }

    #[setter(_content)]
    fn set_content(&self, py: Python<'_>, content: Option<Py<PyBytes>>) {
        self.state.open(py).content = content;
    }

    #[getter]
    fn _encoding(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        cloned(py, self.state.open(py).encoding.as_ref())
    }

    #[setter(_encoding)]
    fn set_encoding(&self, py: Python<'_>, encoding: Option<Py<PyAny>>) {
        set_object(py, self, encoding, |state| &mut state.encoding);
    }

    #[getter]
    fn _default_encoding(&self, py: Python<'_>) -> Py<PyAny> {
        let state = self.state.open(py);
        if let Some(chosen) = cloned(py, state.default_encoding.as_ref()) {
            return chosen;
        }
        let name = state
            .config
            .as_ref()
            .map_or("utf-8", |config| &config.default_encoding);
        PyString::new(py, name).into_any().unbind()
    }

    #[setter(_default_encoding)]
    fn set_default_encoding(&self, py: Python<'_>, encoding: Option<Py<PyAny>>) {
        set_object(py, self, encoding, |state| &mut state.default_encoding);
    }

    #[getter]
    fn _loads(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let state = self.state.open(py);
        let config = state.config.as_ref();
        let of_client = config.and_then(|config| cloned(py, config.json_loads.as_ref()));
        cloned(py, state.loads.as_ref()).or(of_client)
    }

    #[setter(_loads)]
    fn set_loads(&self, py: Python<'_>, loads: Option<Py<PyAny>>) {
        set_object(py, self, loads, |state| &mut state.loads);
    }

    #[getter]
    fn _client(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        cloned(py, self.state.open(py).client.as_ref())
    }

    #[setter(_client)]
    fn set_client(&self, py: Python<'_>, client: Option<Py<PyAny>>) {
        set_object(py, self, client, |state| &mut state.client);
    }

    #[getter]
    fn _sent<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let state = self.state.open(py);
        state.sent.as_ref().map(|sent| sent.parts(py)).transpose()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.peek() else {
            return Ok(());
        };
        for object in [
            &state.reply,
            &state.client,
            &state.encoding,
            &state.default_encoding,
            &state.loads,
        ] {
            visit.call(object)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        let state = self
            .state
            .try_open(py)
            .map(|mut state| (state.reply.take(), state.client.take(), state.sent.take()));
        drop(state);
    }
}

fn cloned(py: Python<'_>, object: Option<&Py<PyAny>>) -> Option<Py<PyAny>> {
    object.map(|object| object.clone_ref(py))
}

/// Sets a field. The value before is dropped after the cell has been closed.
fn set_object(
    py: Python<'_>,
    response: &ResponseCore,
    value: Option<Py<PyAny>>,
    field: impl FnOnce(&mut State) -> &mut Option<Py<PyAny>>,
) {
    let before = std::mem::replace(field(&mut response.state.open(py)), value);
    drop(before);
}

/// Decodes ISO-8859-1: each byte is the code point of the same number.
pub fn latin1<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.is_ascii()
    {
        return PyString::new(py, text);
    }
    let text: String = bytes.iter().copied().map(char::from).collect();
    PyString::new(py, &text)
}

/// As `bytes.decode("utf-8", "replace")`.
fn decode_utf8<'py>(content: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>> {
    let bytes = content.as_bytes();
    // SAFETY: pointer and length belong to live bytes; the error handler is a constant.
    unsafe {
        let text = ffi::PyUnicode_DecodeUTF8(
            bytes.as_ptr().cast(),
            bytes.len().cast_signed(),
            c"replace".as_ptr(),
        );
        Bound::from_owned_ptr_or_err(content.py(), text)
    }
}

/// The charset parameter of a Content-Type (RFC 9110 8.3.1), unquoted.
fn charset(content_type: &[u8]) -> Option<&[u8]> {
    let mut parameters = content_type.split(|&byte| byte == b';').skip(1);
    parameters.find_map(|parameter| {
        let at = parameter.iter().position(|&byte| byte == b'=')?;
        let (name, value) = parameter.split_at(at);
        let value = value[1..].trim_ascii();
        let value = value
            .strip_prefix(b"\"")
            .and_then(|value| value.strip_suffix(b"\""))
            .unwrap_or(value);
        name.trim_ascii()
            .eq_ignore_ascii_case(b"charset")
            .then_some(value)
    })
}

fn is_utf8_name(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"utf-8") || name.eq_ignore_ascii_case(b"utf8")
}

/// Checks the class that a client creates its responses of.
pub fn response_class<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyType>> {
    if class.is_subclass_of::<ResponseCore>()? {
        return Ok(class.clone());
    }
    Err(PyValueError::new_err(
        "response: expected a subclass of ResponseCore",
    ))
}
