//! JSON with the results of `json.dumps` (compact, UTF-8) and `json.loads` of the standard library, but faster.
//!
//! The native functions handle common documents. Everything else, including every error, is left to the standard
//! library as a whole, so that results are always those of the standard library, and so are exceptions: that of a
//! malformed document is a subclass (`towline._json`).
use jiter::{PythonParse, StringCacheMode};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString};

mod encode;

/// Encodes a document as UTF-8, without spaces. NaN and infinities raise `ValueError` (RFC 8259 6).
pub fn dump(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Some(text) = encode::document(value) {
        return Ok(text);
    }
    let py = value.py();
    let encode = ENCODE.get_or_try_init(py, || compact_encoder(py))?;
    let text = encode.bind(py).call1((value,))?;
    // Raises `UnicodeEncodeError` for lone surrogates, as `str.encode` does.
    Ok(text.cast::<PyString>()?.to_str()?.as_bytes().to_vec())
}

/// Parses a document of bytes or text.
pub fn load<'py>(document: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = document.py();
    let bytes = if let Ok(bytes) = document.cast_exact::<PyBytes>() {
        Some(bytes.as_bytes())
    } else {
        let text = document.cast_exact::<PyString>().ok();
        text.and_then(|text| text.to_str().ok()).map(str::as_bytes)
    };
    match bytes.and_then(|bytes| parse(py, bytes)) {
        Some(value) => Ok(value),
        None => LOADS
            .import(py, "towline._json", "loads")?
            .call1((document,)),
    }
}

/// Returns `None` for malformed JSON, other encodings than UTF-8, integers beyond 64 bits, and deep nesting.
fn parse<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    let parser = PythonParse {
        // `json.loads` accepts NaN and Infinity.
        allow_inf_nan: true,
        // Names recur; values may be secrets and are not cached.
        cache_mode: StringCacheMode::Keys,
        ..PythonParse::default()
    };
    parser.python_parse(py, bytes).ok()
}

/// Returns `json.JSONEncoder(...).encode`: `json.dumps` with options would create an encoder per call.
fn compact_encoder(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let options = PyDict::new(py);
    options.set_item("ensure_ascii", false)?;
    options.set_item("separators", (",", ":"))?;
    options.set_item("allow_nan", false)?;
    let encoder = py
        .import("json")?
        .getattr("JSONEncoder")?
        .call((), Some(&options))?;
    Ok(encoder.getattr("encode")?.unbind())
}

#[pyfunction]
#[pyo3(signature = (value, /))]
pub fn dump_json<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(value.py(), &dump(value)?))
}

#[pyfunction]
#[pyo3(signature = (document, /))]
pub fn load_json<'py>(document: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    load(document)
}
