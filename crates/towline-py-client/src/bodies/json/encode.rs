//! A compact JSON encoder for the exact types dict, list, tuple, str, int, float, bool and None.
//!
//! It runs no Python code while it walks the document, so its own thread changes nothing during the walk.
use std::io::Write;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::bodies::malloc_hint;
use towline_py_common::cell::stable;

/// Bound of the nesting depth. The standard library handles deeper documents, and circular ones.
const MAX_DEPTH: usize = 200;
/// Space reserved after a string for the end of the document, so that a large document is allocated once.
const TAIL_BYTES: usize = 64;

/// Returns `None` if the standard library has to encode the document.
pub fn document(value: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(4 * TAIL_BYTES);
    push_value(&mut text, value, MAX_DEPTH)?;
    Some(text)
}

fn push_value(text: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: usize) -> Option<()> {
    if let Ok(string) = value.cast_exact::<PyString>() {
        return push_string(text, string);
    }
    if let Ok(dict) = value.cast_exact::<PyDict>() {
        return push_object(text, dict, depth.checked_sub(1)?);
    }
    if let Ok(list) = value.cast_exact::<PyList>() {
        return push_array(text, list.iter(), depth.checked_sub(1)?);
    }
    if let Ok(int) = value.cast_exact::<PyInt>() {
        return push_int(text, int);
    }
    if let Ok(float) = value.cast_exact::<PyFloat>() {
        return push_float(text, float.value());
    }
    if let Ok(flag) = value.cast_exact::<PyBool>() {
        text.extend_from_slice(if flag.is_true() { b"true" } else { b"false" });
        return Some(());
    }
    if value.is_none() {
        text.extend_from_slice(b"null");
        return Some(());
    }
    let tuple = value.cast_exact::<PyTuple>().ok()?;
    push_array(text, tuple.iter(), depth.checked_sub(1)?)
}

fn push_object(text: &mut Vec<u8>, dict: &Bound<'_, PyDict>, depth: usize) -> Option<()> {
    text.push(b'{');
    for (at, (name, value)) in stable(dict).ok()?.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        push_string(text, name.cast_exact::<PyString>().ok()?)?;
        text.push(b':');
        push_value(text, &value, depth)?;
    }
    text.push(b'}');
    Some(())
}

fn push_array<'py>(
    text: &mut Vec<u8>,
    values: impl Iterator<Item = Bound<'py, PyAny>>,
    depth: usize,
) -> Option<()> {
    text.push(b'[');
    for (at, value) in values.enumerate() {
        if at > 0 {
            text.push(b',');
        }
        push_value(text, &value, depth)?;
    }
    text.push(b']');
    Some(())
}

fn push_int(text: &mut Vec<u8>, int: &Bound<'_, PyInt>) -> Option<()> {
    if let Ok(number) = int.extract::<i64>() {
        return write!(text, "{number}").ok();
    }
    // Fails beyond the digits that `sys.set_int_max_str_digits` allows.
    text.extend_from_slice(int.repr().ok()?.to_str().ok()?.as_bytes());
    Some(())
}

/// From here on two shortest forms can be equally near to a number: Python takes the even one, Rust the upper one.
const TIES_FROM: f64 = 562_949_953_421_312.0;

/// As `float.__repr__`: the shortest digits that round-trip.
fn push_float(text: &mut Vec<u8>, number: f64) -> Option<()> {
    if !number.is_finite() {
        return None;
    }
    if number.abs() >= TIES_FROM {
        return push_repr(text, number);
    }
    // `-d.ddde-7`
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or(("", digits), |digits| ("-", digits));
    let (first, rest) = digits.split_once('.').unwrap_or((digits, ""));
    text.extend_from_slice(sign.as_bytes());
    match exponent {
        0..16 => {
            let places = exponent.unsigned_abs() as usize;
            let whole = places.min(rest.len());
            let zeros = places - whole;
            let (whole, fraction) = rest.split_at(whole);
            let fraction = if fraction.is_empty() { "0" } else { fraction };
            write!(text, "{first}{whole}{:0<zeros$}.{fraction}", "").ok()
        }
        -4..0 => {
            let zeros = exponent.unsigned_abs() as usize - 1;
            write!(text, "0.{:0<zeros$}{first}{rest}", "").ok()
        }
        _ => {
            let dot = if rest.is_empty() { "" } else { "." };
            write!(text, "{first}{dot}{rest}e{exponent:+03}").ok()
        }
    }
}

/// The digits of `float.__repr__` itself.
fn push_repr(text: &mut Vec<u8>, number: f64) -> Option<()> {
    // Signed on x86-64, unsigned on AArch64.
    let repr = std::ffi::c_char::from_ne_bytes([b'r']);
    let no_kind = std::ptr::null_mut();
    // SAFETY: the GIL is held; the result is null or a string with a final NUL, to be freed here.
    unsafe {
        let digits = ffi::PyOS_double_to_string(number, repr, 0, ffi::Py_DTSF_ADD_DOT_0, no_kind);
        if digits.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        text.extend_from_slice(std::ffi::CStr::from_ptr(digits).to_bytes());
        ffi::PyMem_Free(digits.cast());
    }
    Some(())
}

fn push_string(text: &mut Vec<u8>, string: &Bound<'_, PyString>) -> Option<()> {
    if let Some(ascii) = compact_ascii(string) {
        push_utf8(text, ascii);
    } else {
        // Not `to_str`, which would cache the encoded form in the string object.
        push_utf8(text, string.encode_utf8().ok()?.as_bytes());
    }
    Some(())
}

/// The characters of a compact ASCII string, in place.
///
/// They directly follow its `PyASCIIObject`; those of any other string are elsewhere (PEP 393). The flag for this is a
/// bit field, which `pyo3-ffi` does not read from Python 3.14 on.
fn compact_ascii<'a>(string: &'a Bound<'_, PyString>) -> Option<&'a [u8]> {
    let object = string.as_ptr();
    // SAFETY: a live string; one past its `PyASCIIObject` is inside its allocation or at its end. If the characters
    // are there, their number is the length of the string, one byte each, and they do not change.
    unsafe {
        let behind = object.cast::<ffi::PyASCIIObject>().add(1).cast::<u8>();
        if ffi::PyUnicode_DATA(object).cast::<u8>() != behind {
            return None;
        }
        let length = ffi::PyUnicode_GET_LENGTH(object).cast_unsigned();
        Some(std::slice::from_raw_parts(behind, length))
    }
}

fn push_utf8(text: &mut Vec<u8>, mut string: &[u8]) {
    malloc_hint::before_allocation(string.len());
    text.reserve(string.len() + TAIL_BYTES);
    text.push(b'"');
    loop {
        let (plain, rest) = string.split_at(plain_length(string));
        text.extend_from_slice(plain);
        let Some((&special, after)) = rest.split_first() else {
            break;
        };
        push_escaped(text, special);
        string = after;
    }
    text.push(b'"');
}

/// The number of leading bytes that need no escape (RFC 8259 7).
fn plain_length(string: &[u8]) -> usize {
    // No branches inside, so that the compiler vectorises a chunk.
    let (chunks, _) = string.as_chunks::<32>();
    let plain = chunks.iter().position(|chunk| {
        let special = |any, &byte: &u8| any | special(byte);
        chunk.iter().fold(0, special) != 0
    });
    let at = 32 * plain.unwrap_or(chunks.len());
    let special = string[at..].iter().position(|&byte| special(byte) != 0);
    special.map_or(string.len(), |special| at + special)
}

/// Returns 1 for a byte that must be escaped, otherwise 0.
fn special(byte: u8) -> u8 {
    u8::from(byte < b' ') | u8::from(byte == b'"') | u8::from(byte == b'\\')
}

fn push_escaped(text: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            let hex = b"0123456789abcdef";
            text.extend_from_slice(b"\\u00");
            text.push(hex[usize::from(byte >> 4)]);
            text.push(hex[usize::from(byte & 15)]);
            return;
        }
    };
    text.extend_from_slice(&[b'\\', short]);
}
