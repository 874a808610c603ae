//! `send()`: a message of the application, passed on by its type.
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::messages::Message;
use super::state::Exchange;
use super::{response, websocket};

pub fn send<'py>(
    exchange: &Bound<'py, Exchange>,
    message: &Bound<'py, PyAny>,
) -> PyResult<Py<PyAny>> {
    exchange.get().server.get().thread.check()?;
    let message = message.cast::<PyDict>().map_err(|_| {
        PyTypeError::new_err(format!(
            "ASGI: a message must be a dict, not {}",
            message.get_type()
        ))
    })?;
    let mut parsed = Message::read(message)?;
    let kind = parsed
        .kind
        .take()
        .ok_or_else(|| PyValueError::new_err("ASGI: a message needs a `type`"))?;
    let kind = kind
        .cast::<PyString>()
        .map_err(|_| PyTypeError::new_err("ASGI: `type` must be a string"))?;
    match kind.to_str()? {
        "http.response.start" => response::start(exchange, &parsed),
        "http.response.body" => response::body(exchange, &parsed),
        "http.response.trailers" => response::trailers(exchange, message),
        "http.response.early_hint" => response::early_hint(exchange, message),
        "http.response.pathsend" => response::pathsend(exchange, message),
        other => websocket::send(exchange, other, message, &parsed),
    }
}
