//! `ServerSentEvent`: native, since a stream of tokens creates thousands of them.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use towline_io::text::sse::Event;

use super::json;
use super::utf8::decode;

/// A server-sent event. `retry` is in milliseconds.
#[pyclass(frozen, get_all, module = "towline")]
pub struct ServerSentEvent {
    /// The type, `message` by default.
    event: Py<PyString>,
    /// The lines of `data`, joined with line feeds.
    data: Py<PyString>,
    /// The last event id; empty if there was none.
    id: Py<PyString>,
    /// Milliseconds until a reconnection, if there was a `retry` field since the previous event.
    retry: Option<u64>,
}

impl ServerSentEvent {
    pub fn from_event(
        py: Python<'_>,
        event: Event<'_>,
        last_id: &mut Option<(Vec<u8>, Py<PyString>)>,
    ) -> Self {
        let name = match event.event {
            b"" => intern!(py, "message").clone(),
            name => decode(py, name),
        };
        let id = match (event.id, &*last_id) {
            (b"", _) => intern!(py, "").clone().unbind(),
            (id, Some((bytes, kept))) if bytes == id => kept.clone_ref(py),
            (id, _) => {
                let made = decode(py, id).unbind();
                *last_id = Some((id.to_vec(), made.clone_ref(py)));
                made
            }
        };
        Self {
            event: name.unbind(),
            data: decode(py, event.data).unbind(),
            id,
            retry: event.retry,
        }
    }

    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let text = |text: &Py<PyString>| text.bind(py).clone();
        (
            text(&self.event),
            text(&self.data),
            text(&self.id),
            self.retry,
        )
            .into_pyobject(py)
    }
}

#[pymethods]
impl ServerSentEvent {
    #[new]
    #[pyo3(signature = (event=None, data=None, id=None, retry=None))]
    fn new(
        py: Python<'_>,
        event: Option<Py<PyString>>,
        data: Option<Py<PyString>>,
        id: Option<Py<PyString>>,
        retry: Option<u64>,
    ) -> Self {
        let empty = || intern!(py, "").clone().unbind();
        Self {
            event: event.unwrap_or_else(|| intern!(py, "message").clone().unbind()),
            data: data.unwrap_or_else(empty),
            id: id.unwrap_or_else(empty),
            retry,
        }
    }

    /// Parses the data as JSON.
    fn json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::load(self.data.bind(py).as_any())
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Self>() else {
            return Ok(false);
        };
        self.fields(py)?.eq(other.get().fields(py)?)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.fields(py)?.hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shown =
            |text: &Py<PyString>| -> PyResult<String> { Ok(text.bind(py).repr()?.to_string()) };
        let retry = self
            .retry
            .map_or("None".to_owned(), |retry| retry.to_string());
        Ok(format!(
            "ServerSentEvent(event={}, data={}, id={}, retry={retry})",
            shown(&self.event)?,
            shown(&self.data)?,
            shown(&self.id)?,
        ))
    }
}
