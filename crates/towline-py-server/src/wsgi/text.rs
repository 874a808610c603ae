//! Native strings (PEP 3333): `str` whose code points are the bytes on the wire (latin-1).
use std::ffi::c_char;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The bytes as a native string. Every byte is a code point of latin-1, so this cannot fail.
pub fn native<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    let pointer = bytes.as_ptr().cast::<c_char>();
    // SAFETY: the pointer and the length come from one slice, which is only read; the result is a new
    // reference to a str, or null with an exception set (no memory), which from_owned_ptr panics on.
    unsafe {
        let text =
            ffi::PyUnicode_DecodeLatin1(pointer, bytes.len().cast_signed(), std::ptr::null());
        Bound::from_owned_ptr(py, text).cast_into_unchecked()
    }
}

/// Appends the bytes of a native string. `what` names it in the error.
pub fn append_bytes(out: &mut Vec<u8>, text: &Bound<'_, PyString>, what: &str) -> PyResult<()> {
    let utf8 = text.to_str()?;
    if utf8.is_ascii() {
        out.extend_from_slice(utf8.as_bytes());
        return Ok(());
    }
    for character in utf8.chars() {
        let Ok(byte) = u8::try_from(u32::from(character)) else {
            return Err(PyValueError::new_err(format!(
                "{what} {utf8:?} has a character outside latin-1 (PEP 3333: native strings carry bytes)"
            )));
        };
        out.push(byte);
    }
    Ok(())
}
