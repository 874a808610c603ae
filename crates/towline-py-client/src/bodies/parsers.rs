//! `LineParser` and `SseParser`: split text bodies into lines and events.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use towline_io::text::lines::{LineParser as Lines, TooLong};
use towline_io::text::sse::{Event, SseParser as Events};

use super::event::ServerSentEvent;
use super::utf8::decode;
use towline_py_common::errors::DecodingError;

/// Raises if `item` was longer than the limit, but only after the items before it have been returned.
fn check_length(failed: bool, returned: usize, item: &str, max_bytes: usize) -> PyResult<()> {
    if failed && returned == 0 {
        return Err(DecodingError::new_err(format!(
            "{item} is longer than {max_bytes} bytes"
        )));
    }
    Ok(())
}

#[pyclass(module = "towline._native")]
pub struct LineParser {
    lines: Lines,
    max_bytes: usize,
    failed: bool,
}

#[pymethods]
impl LineParser {
    #[new]
    fn new(max_bytes: usize) -> Self {
        Self {
            lines: Lines::new(max_bytes),
            max_bytes,
            failed: false,
        }
    }

    /// Returns the lines that `data` (UTF-8) completes. A line longer than the limit raises `DecodingError`: lines
    /// before it are returned first, and every later call raises.
    fn feed<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let mut kept = Ok(());
        if !self.failed {
            let line = |line: &[u8]| {
                if kept.is_ok() {
                    kept = list.append(decode(py, line));
                }
            };
            self.failed = self.lines.feed(data, line) == Err(TooLong);
        }
        kept?;
        check_length(self.failed, list.len(), "a line", self.max_bytes)?;
        Ok(list)
    }

    /// Returns the last line, if the stream did not end with a line terminator.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        check_length(self.failed, 0, "a line", self.max_bytes)?;
        PyList::new(py, self.lines.finish().map(|line| decode(py, &line)))
    }
}

#[pyclass(module = "towline._native")]
pub struct SseParser {
    events: Events,
    max_bytes: usize,
    failed: bool,
    /// The last id and its text: most streams have no id or repeat it.
    id: Option<(Vec<u8>, Py<PyString>)>,
}

#[pymethods]
impl SseParser {
    #[new]
    fn new(max_bytes: usize) -> Self {
        Self {
            events: Events::new(max_bytes),
            max_bytes,
            failed: false,
            id: None,
        }
    }

    /// Returns the events that `data` completes. The limit works as for lines.
    fn feed<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let mut kept = Ok(());
        if !self.failed {
            let id = &mut self.id;
            let dispatch = |event: Event<'_>| {
                if kept.is_ok() {
                    let event = ServerSentEvent::from_event(py, event, id);
                    kept = Bound::new(py, event).and_then(|event| list.append(event));
                }
            };
            self.failed = self.events.feed(data, dispatch) == Err(TooLong);
        }
        kept?;
        check_length(
            self.failed,
            list.len(),
            "a server-sent event",
            self.max_bytes,
        )?;
        Ok(list)
    }

    /// Drops an incomplete event (HTML Living Standard 9.2.6).
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        check_length(self.failed, 0, "a server-sent event", self.max_bytes)?;
        Ok(PyList::empty(py))
    }

    /// The value that a client sends as Last-Event-ID when it reconnects.
    #[getter]
    fn last_event_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        decode(py, self.events.last_event_id())
    }
}
