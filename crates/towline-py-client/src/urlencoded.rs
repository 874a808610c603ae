//! Encodes pairs as application/x-www-form-urlencoded (WHATWG URL 5.2), for forms and queries on the fast path.
use std::io::Write;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString};
use towline_py_common::cell::stable;

/// Returns `None` for an empty dict, and for values other than `str` and integers of 64 bits.
pub fn encode(pairs: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    let pairs = pairs.cast_exact::<PyDict>().ok()?;
    let mut text = Vec::new();
    for (name, value) in &stable(pairs).ok()? {
        if !text.is_empty() {
            text.push(b'&');
        }
        push(&mut text, name.cast_exact::<PyString>().ok()?)?;
        text.push(b'=');
        if let Ok(value) = value.cast_exact::<PyString>() {
            push(&mut text, value)?;
        } else {
            let number: i64 = value.cast_exact::<PyInt>().ok()?.extract().ok()?;
            write!(text, "{number}").ok()?;
        }
    }
    (!text.is_empty()).then_some(text)
}

/// As `urllib.parse.quote_plus`.
fn push(text: &mut Vec<u8>, part: &Bound<'_, PyString>) -> Option<()> {
    for &byte in part.to_str().ok()?.as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => text.push(byte),
            b' ' => text.push(b'+'),
            _ => {
                let hex = b"0123456789ABCDEF";
                let (high, low) = (hex[usize::from(byte >> 4)], hex[usize::from(byte & 15)]);
                text.extend_from_slice(&[b'%', high, low]);
            }
        }
    }
    Some(())
}
