//! The exceptions of `towline.errors`, which are defined in Python.
use pyo3::import_exception;
use pyo3::prelude::*;

import_exception!(asyncio, CancelledError);
import_exception!(towline.errors, ClientClosed);
import_exception!(towline.errors, ClientDisconnected);
import_exception!(towline.errors, ConfigError);
import_exception!(towline.errors, DecodingError);
import_exception!(towline.errors, DecompressionLimit);
import_exception!(towline.errors, InvalidHeader);
import_exception!(towline.errors, InvalidURL);
import_exception!(towline.errors, ReadTimeout);
import_exception!(towline.errors, ResponseError);
import_exception!(towline.errors, ResponseStateError);
import_exception!(towline.errors, StartupError);
import_exception!(towline.errors, StateClosed);
import_exception!(towline.errors, StateError);
import_exception!(towline.errors, StateFull);
import_exception!(towline.errors, StateUnavailable);
import_exception!(towline.errors, StreamConsumed);
import_exception!(towline.errors, UsageError);
import_exception!(towline.errors, WebSocketClosed);

/// Raised by `send()` after the client has disconnected (ASGI 2.4: a subclass of `OSError`).
pub fn client_disconnected() -> PyErr {
    ClientDisconnected::new_err("the client has disconnected")
}

/// A failure at start-up: an address, a certificate, a descriptor. `what` names it.
pub fn setup(error: &std::io::Error, what: &str) -> PyErr {
    StartupError::new_err(format!("{what}: {error}"))
}
