//! `LineParser` and `SseParser`: text bodies cut into lines and events.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use towline_io::text::lines::{LineParser as Lines, TooLong};
use towline_io::text::sse::{Event, SseParser as Events};

use super::event::ServerSentEvent;
use crate::errors::DecodingError;

/// UTF-8 as the Encoding standard decodes it: what is malformed becomes U+FFFD.
pub fn text<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PyString::new(py, text),
        Err(_) => PyString::new(py, &String::from_utf8_lossy(bytes)),
    }
}

/// A bound that was passed stays passed; what came before it has been given.
fn judge(failed: bool, given: usize, what: &str, max_bytes: usize) -> PyResult<()> {
    if failed && given == 0 {
        return Err(DecodingError::new_err(format!(
            "{what} is longer than {max_bytes} bytes"
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

    /// The lines that `data` (UTF-8) completes. After a line that is too long, lines before it are given
    /// first and every later call raises.
    fn feed<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let given = PyList::empty(py);
        let mut kept = Ok(());
        if !self.failed {
            let line = |line: &[u8]| {
                if kept.is_ok() {
                    kept = given.append(text(py, line));
                }
            };
            self.failed = self.lines.feed(data, line) == Err(TooLong);
        }
        kept?;
        judge(self.failed, given.len(), "a line", self.max_bytes)?;
        Ok(given)
    }

    /// The last line, if the stream did not end with a line's end.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        judge(self.failed, 0, "a line", self.max_bytes)?;
        PyList::new(py, self.lines.finish().map(|line| text(py, &line)))
    }
}

#[pyclass(module = "towline._native")]
pub struct SseParser {
    events: Events,
    max_bytes: usize,
    failed: bool,
    /// The text of the id last given: most streams have none or repeat it.
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

    /// The events that `data` completes; bounds as for lines.
    fn feed<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let given = PyList::empty(py);
        let mut kept = Ok(());
        if !self.failed {
            let id = &mut self.id;
            let dispatch = |event: Event<'_>| {
                if kept.is_ok() {
                    let event = ServerSentEvent::received(py, event, id);
                    kept = Bound::new(py, event).and_then(|event| given.append(event));
                }
            };
            self.failed = self.events.feed(data, dispatch) == Err(TooLong);
        }
        kept?;
        judge(
            self.failed,
            given.len(),
            "a server-sent event",
            self.max_bytes,
        )?;
        Ok(given)
    }

    /// An event that the end cuts off is dropped, as the standard has it.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        judge(self.failed, 0, "a server-sent event", self.max_bytes)?;
        Ok(PyList::empty(py))
    }

    /// What a client sends as Last-Event-ID when it connects again.
    #[getter]
    fn last_event_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        text(py, self.events.last_event_id())
    }
}
