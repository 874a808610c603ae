//! Converts failures of calls into exceptions of `towline.errors`.
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use towline_io::client::{CallError, CallErrorKind, CallPhase};
use towline_proto::UserError;

use towline_py_common::errors::ClientClosed;

/// The class of each kind. A test covers all of them.
pub fn class_name(kind: CallErrorKind) -> &'static str {
    match kind {
        CallErrorKind::ConnectTimeout => "ConnectTimeout",
        CallErrorKind::ReadTimeout => "ReadTimeout",
        CallErrorKind::WriteTimeout => "WriteTimeout",
        CallErrorKind::PoolTimeout | CallErrorKind::QueueFull => "PoolTimeout",
        CallErrorKind::TotalTimeout => "TotalTimeout",
        CallErrorKind::Connect => "ConnectError",
        CallErrorKind::Dns => "DNSError",
        CallErrorKind::Tls => "TLSError",
        CallErrorKind::Read => "ReadError",
        CallErrorKind::Write => "WriteError",
        CallErrorKind::Proxy => "ProxyError",
        CallErrorKind::RemoteProtocol => "RemoteProtocolError",
        CallErrorKind::ServerDisconnected => "ServerDisconnected",
        CallErrorKind::LocalProtocol => "LocalProtocolError",
        CallErrorKind::Closed => "ClientClosed",
    }
}

/// The value of `phase` in Python.
fn phase_name(phase: CallPhase) -> &'static str {
    match phase {
        CallPhase::Send => "write",
        other => other.name(),
    }
}

pub fn call_error(py: Python<'_>, error: &CallError) -> PyErr {
    try_call_error(py, error).unwrap_or_else(|failure| failure)
}

fn try_call_error(py: Python<'_>, error: &CallError) -> PyResult<PyErr> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    if error.kind == CallErrorKind::Closed {
        return Ok(client_closed());
    }
    let module =
        ERRORS.get_or_try_init(py, || PyResult::Ok(py.import("towline.errors")?.unbind()))?;
    let details = PyDict::new(py);
    details.set_item(intern!(py, "phase"), phase_name(error.phase))?;
    details.set_item(intern!(py, "retryable"), error.retryable)?;
    details.set_item(intern!(py, "bytes_sent"), error.bytes_sent)?;
    details.set_item(intern!(py, "bytes_received"), error.bytes_received)?;
    details.set_item(intern!(py, "reused"), error.reused)?;
    if let Some(errno) = error.os_error
        && is_network(error.kind)
    {
        details.set_item(intern!(py, "errno"), errno)?;
    }
    if is_protocol(error.kind) {
        details.set_item(intern!(py, "rule"), &*error.message)?;
    }
    let of_field = |rule: UserError| rule.to_string() == *error.message;
    let name = match error.kind {
        CallErrorKind::LocalProtocol
            if of_field(UserError::InvalidFieldName) || of_field(UserError::InvalidFieldValue) =>
        {
            "InvalidHeader"
        }
        kind => class_name(kind),
    };
    let class = module.bind(py).getattr(name)?;
    Ok(PyErr::from_value(
        class.call((error.to_string(),), Some(&details))?,
    ))
}

fn is_network(kind: CallErrorKind) -> bool {
    matches!(
        kind,
        CallErrorKind::Connect
            | CallErrorKind::Dns
            | CallErrorKind::Tls
            | CallErrorKind::Read
            | CallErrorKind::Write
    )
}

fn is_protocol(kind: CallErrorKind) -> bool {
    matches!(
        kind,
        CallErrorKind::RemoteProtocol
            | CallErrorKind::ServerDisconnected
            | CallErrorKind::LocalProtocol
    )
}

pub fn client_closed() -> PyErr {
    ClientClosed::new_err("the client has been closed")
}

/// The error of a body larger than `max_response_size`.
pub fn too_large(max_bytes: u64) -> PyErr {
    towline_py_common::errors::ResponseError::new_err(format!(
        "the body is larger than max_response_size ({max_bytes} bytes)"
    ))
}
