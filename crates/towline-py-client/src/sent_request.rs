//! The request of a call on the fast path as it was sent, from which `Response.request` and `error.request` are made.
use std::sync::Arc;

use bytes::Bytes;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use towline_io::client::{Body, CallOptions, OutgoingRequest, RequestText, Route, Timeouts};

/// Shares the buffers of the call, so that it costs three reference counts.
pub struct SentRequest {
    head: Arc<RequestText>,
    content: Bytes,
    route: Arc<Route>,
    timeouts: Timeouts,
    follow_redirects: bool,
}

impl SentRequest {
    pub fn new(request: &OutgoingRequest, options: &CallOptions, follow_redirects: bool) -> Self {
        Self {
            head: Arc::clone(&request.head),
            content: match &request.body {
                Body::Bytes(bytes) => bytes.clone(),
                _ => Bytes::new(),
            },
            route: Arc::clone(&request.route),
            timeouts: options.timeouts,
            follow_redirects,
        }
    }

    pub fn method(&self) -> &[u8] {
        self.head.method()
    }

    /// Method, URL, header fields, content, timeouts and whether redirects are followed: the arguments of
    /// `_rebuild_request`.
    pub fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let fields = self.fields().map(|(name, value)| {
            let pair = (PyBytes::new(py, name), PyBytes::new(py, value));
            pair.into_pyobject(py)
        });
        let fields = fields.collect::<PyResult<Vec<_>>>()?;
        let Timeouts {
            connect,
            read,
            write,
            pool,
            total,
        } = self.timeouts;
        let seconds =
            [connect, read, write, pool, total].map(|limit| limit.map(|limit| limit.as_secs_f64()));
        let parts = (
            String::from_utf8_lossy(self.head.method()),
            self.url(),
            PyList::new(py, fields)?,
            PyBytes::new(py, &self.content),
            seconds,
            self.follow_redirects,
        );
        Ok(parts.into_pyobject(py)?.into_any())
    }

    /// Sets `request` of an error of the call.
    pub fn attach(&self, client: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
        let py = client.py();
        let attached = || {
            let value = error.value(py);
            let current = value.getattr_opt(intern!(py, "request"))?;
            if current.is_some_and(|request| request.is_none()) {
                let rebuild = client.getattr(intern!(py, "_rebuild_request"))?;
                let request = rebuild.call1((self.parts(py)?,))?;
                value.setattr(intern!(py, "request"), request)?;
            }
            PyResult::Ok(())
        };
        match attached() {
            Ok(()) => error,
            Err(failure) => failure,
        }
    }

    /// The fields of the request, without those for a proxy, which precede Host.
    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let is_forwarded = self.route.absolute_form();
        self.head
            .fields()
            .skip_while(move |field| is_forwarded && !field.name.eq_ignore_ascii_case(b"host"))
            .map(|field| (field.name, field.value))
    }

    fn url(&self) -> String {
        let target = String::from_utf8_lossy(self.head.target());
        if !target.starts_with('/') {
            // The absolute form, for a proxy.
            return target.into_owned();
        }
        let (scheme, default) = if self.route.secure {
            ("https", ":443")
        } else {
            ("http", ":80")
        };
        let authority = self.route.authority();
        let authority = authority.strip_suffix(default).unwrap_or(&authority);
        format!("{scheme}://{authority}{target}")
    }
}
