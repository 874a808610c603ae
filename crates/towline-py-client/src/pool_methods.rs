//! The Python methods of a pool, written once for `SyncPool` and `AsyncPool`.
use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::client::{CallOptions, OutgoingRequest, PoolStatus};

/// A request, ready to be sent.
pub struct Exchange<'py> {
    pub request: OutgoingRequest,
    pub options: CallOptions,
    /// Yields the pieces of a streamed body.
    pub pieces: Option<Bound<'py, PyAny>>,
    pub on_informational: Option<Py<PyAny>>,
}

pub fn status_dict(py: Python<'_>, status: PoolStatus) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("active", status.active)?;
    dict.set_item("idle", status.idle)?;
    dict.set_item("connecting", status.dialling)?;
    dict.set_item("waiting", status.waiting)?;
    Ok(dict)
}

/// `$class` has `config`, `route()`, and `send()`, `shake_hands()`, `open_idle()`, `status()` and `is_closed()`, which the
/// methods call. `$own`: the methods that only this class has.
macro_rules! pool_methods {
    ($class:ident, $reply:ty, $handshake:ty, $count:ty, { $($own:tt)* }) => {
        #[pymethods]
        impl $class {
            #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
            #[pyo3(signature = (
                method, scheme, host, port, target, headers, body=None, *,
                timeout=None, sni=None, stale=None, on_informational=None
            ))]
            fn exchange(
                &self,
                py: Python<'_>,
                method: &[u8],
                scheme: &[u8],
                host: &[u8],
                port: Option<u16>,
                target: &[u8],
                headers: &Bound<'_, PyAny>,
                body: Option<&Bound<'_, PyAny>>,
                timeout: Option<&Bound<'_, PyAny>>,
                sni: Option<&str>,
                stale: Option<&Bound<'_, PyAny>>,
                on_informational: Option<Py<PyAny>>,
            ) -> PyResult<$reply> {
                let options = self.config.call_options(timeout, stale)?;
                let route = self.route(py, &Origin::new(scheme, host, port)?, sni)?;
                let (body, pieces) = request::body_source(body, headers)?;
                let parts = RequestParts { method, route, target, headers, body };
                let request = parts.prepare()?;
                self.send(py, Exchange { request, options, pieces, on_informational })
            }

            #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
            #[pyo3(signature = (
                method, scheme, host, port, target, headers, websocket, *, timeout=None, sni=None, stale=None
            ))]
            fn open_websocket(
                &self,
                py: Python<'_>,
                method: &[u8],
                scheme: &[u8],
                host: &[u8],
                port: Option<u16>,
                target: &[u8],
                headers: &Bound<'_, PyAny>,
                websocket: &Bound<'_, PyAny>,
                timeout: Option<&Bound<'_, PyAny>>,
                sni: Option<&str>,
                stale: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<$handshake> {
                let options = self.config.call_options(timeout, stale)?;
                let route = self.route(py, &Origin::new(scheme, host, port)?, sni)?;
                let parts = RequestParts { method, route, target, headers, body: Body::Empty };
                self.shake_hands(py, parts.prepare()?, options, websocket::config(websocket)?)
            }

            /// Opens connections until `n` are idle. Returns how many are.
            fn prewarm(
                &self,
                py: Python<'_>,
                scheme: &[u8],
                host: &[u8],
                port: Option<u16>,
                n: usize,
            ) -> PyResult<$count> {
                let route = self.route(py, &Origin::new(scheme, host, port)?, None)?;
                self.open_idle(py, &route, n)
            }

            fn pool_status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                status_dict(py, self.status(py))
            }

            #[getter]
            fn closed(&self, py: Python<'_>) -> bool {
                self.is_closed(py)
            }

            $($own)*
        }
    };
}

pub(crate) use pool_methods;
