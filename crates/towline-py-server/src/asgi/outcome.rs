//! The end of an application in the server log: a client that leaves is one DEBUG line, an error is one ERROR line
//! that names the request, with the application's traceback.

use std::fmt::Write;

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use towline_py_common::errors::{CancelledError, ClientDisconnected};

/// Exceptions in exception groups and causes that are looked at; a chain can be a cycle.
const MAX_DEPTH: usize = 16;

/// Bytes of a path in a log line.
const MAX_PATH_BYTES: usize = 1024;

/// Whether an exception only says that the client has left. `has_left`: it has, so that an `OSError` of a framework
/// counts as well.
///
/// Frameworks turn our `ClientDisconnected`, which is an `OSError`, into exceptions of their own: Starlette's
/// `ClientDisconnect` and `WebSocketDisconnect`, Django's `RequestAborted`, Litestar's `WebSocketDisconnect`; anyio
/// collects them in exception groups.
pub fn is_disconnect(error: &PyErr, py: Python<'_>, has_left: bool) -> bool {
    is_disconnect_value(error.value(py).as_any(), has_left, MAX_DEPTH)
}

fn is_disconnect_value(error: &Bound<'_, PyAny>, has_left: bool, depth: usize) -> bool {
    let py = error.py();
    if error.is_instance_of::<ClientDisconnected>() {
        return true;
    }
    if !has_left || depth == 0 {
        return false;
    }
    if error.is_instance_of::<PyOSError>() || is_named_disconnect(error) {
        return true;
    }
    if let Ok(members) = error.getattr(intern!(py, "exceptions"))
        && let Ok(members) = members.cast::<PyTuple>()
    {
        // A task group cancels its other tasks.
        return !members.is_empty()
            && members.iter().all(|member| {
                member.is_instance_of::<CancelledError>()
                    || is_disconnect_value(&member, has_left, depth - 1)
            });
    }
    let cause = error.getattr(intern!(py, "__cause__"));
    cause.is_ok_and(|cause| !cause.is_none() && is_disconnect_value(&cause, has_left, depth - 1))
}

/// Whether a class of the exception has the name of a disconnection: frameworks have no common class.
fn is_named_disconnect(error: &Bound<'_, PyAny>) -> bool {
    let mro = error.get_type().mro();
    mro.iter().any(|class| {
        let name = class.getattr(intern!(class.py(), "__name__"));
        let name = name.as_ref().map(|name| name.cast::<PyString>());
        let Ok(Ok(name)) = name else { return false };
        name.to_str().is_ok_and(|name| {
            name.ends_with("Disconnect")
                || name.ends_with("Disconnected")
                || name == "RequestAborted"
        })
    })
}

/// `GET /path from 192.0.2.1:50000, request id 0193...`, of a scope. `id_header`: the
/// header of the request id.
pub fn describe(scope: &Bound<'_, PyDict>, id_header: Option<&[u8]>) -> String {
    let py = scope.py();
    let item = |key| scope.get_item(key).ok().flatten();
    let mut text = match item(intern!(py, "method")) {
        Some(method) => method.to_string(),
        None => "WebSocket".to_owned(),
    };
    let path = item(intern!(py, "raw_path"));
    if let Some(Ok(path)) = path.as_ref().map(|path| path.cast::<PyBytes>()) {
        let path = path.as_bytes();
        let path = &path[..path.len().min(MAX_PATH_BYTES)];
        // Writing to a String cannot fail.
        let _ = write!(text, " {}", path.escape_ascii());
    }
    let client = item(intern!(py, "client")).and_then(|client| client.extract().ok());
    if let Some((host, port)) = client {
        let (host, port): (String, u16) = (host, port);
        let _ = if host.contains(':') {
            write!(text, " from [{host}]:{port}")
        } else {
            write!(text, " from {host}:{port}")
        };
    }
    if let Some(id) = id_header.and_then(|name| request_id(scope, name)) {
        let _ = write!(text, ", request id {id}");
    }
    text
}

/// The request id that the server has put into the headers.
fn request_id(scope: &Bound<'_, PyDict>, name: &[u8]) -> Option<String> {
    let headers = scope.get_item(intern!(scope.py(), "headers")).ok()??;
    for pair in headers.try_iter().ok()? {
        let (field, value): (Vec<u8>, Vec<u8>) = pair.ok()?.extract().ok()?;
        if field == name {
            return Some(value.escape_ascii().to_string());
        }
    }
    None
}
