//! The two messages of nearly every response and `websocket.send`, parsed in one pass over the dict.
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyDict;

/// Values of `http.response.start`, `http.response.body` and `websocket.send`, `None` where the key is missing.
#[derive(Default)]
pub struct Message<'py> {
    pub kind: Option<Bound<'py, PyAny>>,
    pub status: Option<Bound<'py, PyAny>>,
    pub headers: Option<Bound<'py, PyAny>>,
    pub trailers: Option<Bound<'py, PyAny>>,
    pub body: Option<Bound<'py, PyAny>>,
    pub more_body: Option<Bound<'py, PyAny>>,
    pub text: Option<Bound<'py, PyAny>>,
    pub bytes: Option<Bound<'py, PyAny>>,
}

impl<'py> Message<'py> {
    /// Keys that are literals of a program are interned, so they are found by comparing addresses, with 30
    /// instructions per key instead of the 110 of a look-up. If any other key occurs, each key is looked up.
    pub fn read(dict: &Bound<'py, PyDict>) -> PyResult<Self> {
        match with_critical_section(dict, || Self::scan(dict)) {
            Some(message) => Ok(message),
            None => Self::look_up(dict),
        }
    }

    /// `None`: the dict has another key.
    fn scan(dict: &Bound<'py, PyDict>) -> Option<Self> {
        let py = dict.py();
        let mut message = Self::default();
        let mut position = 0;
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the dict is alive and locked, and no code that could change it runs in between. Key and value are borrowed
        // from it; a new reference to the value is taken at once.
        while unsafe {
            ffi::PyDict_Next(
                dict.as_ptr(),
                &raw mut position,
                &raw mut key,
                &raw mut value,
            )
        } != 0
        {
            let field = if key == intern!(py, "type").as_ptr() {
                &mut message.kind
            } else if key == intern!(py, "body").as_ptr() {
                &mut message.body
            } else if key == intern!(py, "headers").as_ptr() {
                &mut message.headers
            } else if key == intern!(py, "status").as_ptr() {
                &mut message.status
            } else if key == intern!(py, "more_body").as_ptr() {
                &mut message.more_body
            } else if key == intern!(py, "trailers").as_ptr() {
                &mut message.trailers
            } else if key == intern!(py, "text").as_ptr() {
                &mut message.text
            } else if key == intern!(py, "bytes").as_ptr() {
                &mut message.bytes
            } else {
                return None;
            };
            // SAFETY: as above.
            *field = Some(unsafe { Bound::from_borrowed_ptr(py, value) });
        }
        Some(message)
    }

    fn look_up(dict: &Bound<'py, PyDict>) -> PyResult<Self> {
        let py = dict.py();
        Ok(Self {
            kind: dict.get_item(intern!(py, "type"))?,
            status: dict.get_item(intern!(py, "status"))?,
            headers: dict.get_item(intern!(py, "headers"))?,
            trailers: dict.get_item(intern!(py, "trailers"))?,
            body: dict.get_item(intern!(py, "body"))?,
            more_body: dict.get_item(intern!(py, "more_body"))?,
            text: dict.get_item(intern!(py, "text"))?,
            bytes: dict.get_item(intern!(py, "bytes"))?,
        })
    }
}
