//! Decodes UTF-8 text of bodies.

use pyo3::prelude::*;
use pyo3::types::PyString;

/// Decodes as the Encoding standard does: malformed sequences become U+FFFD.
pub fn decode<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PyString::new(py, text),
        Err(_) => PyString::new(py, &String::from_utf8_lossy(bytes)),
    }
}
