//! Builds a request for the wire from the arguments of `exchange()`.
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyString};
use towline_io::client::{Body, OutgoingRequest, RequestText, Route};

use super::pool_config::PoolConfig;
use towline_py_common::errors::InvalidURL;

/// Bound of the cache of routes; when it is reached the cache is cleared. Equal routes share connections in any case.
const MAX_CACHED_ROUTES: usize = 1024;

/// Routes by the arguments they are made from.
#[derive(Debug, Default)]
pub struct RouteCache(HashMap<RouteKey, Arc<Route>>);

type RouteKey = (bool, u16, Box<[u8]>, Option<Box<str>>);

impl RouteCache {
    pub fn find(
        &mut self,
        config: &PoolConfig,
        origin: &Origin<'_>,
        sni: Option<&str>,
    ) -> PyResult<Arc<Route>> {
        let key = (
            origin.secure,
            origin.port,
            origin.host.into(),
            sni.map(Into::into),
        );
        if let Some(route) = self.0.get(&key) {
            return Ok(Arc::clone(route));
        }
        let route =
            Arc::new(config.route(origin.secure, &route_host(origin.host)?, origin.port, sni));
        if self.0.len() >= MAX_CACHED_ROUTES {
            self.0.clear();
        }
        self.0.insert(key, Arc::clone(&route));
        Ok(route)
    }
}

/// Scheme, host and port of a URL.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    pub secure: bool,
    /// An A-label or an address; IPv6 with brackets or without.
    pub host: &'a [u8],
    pub port: u16,
}

impl<'a> Origin<'a> {
    pub fn new(scheme: &[u8], host: &'a [u8], port: Option<u16>) -> PyResult<Self> {
        let secure = match scheme {
            b"http" => false,
            b"https" => true,
            _ => {
                let scheme = String::from_utf8_lossy(scheme);
                return Err(InvalidURL::new_err(format!(
                    "scheme {scheme:?}: only http and https can be requested"
                )));
            }
        };
        let port = port.unwrap_or(if secure { 443 } else { 80 });
        Ok(Self { secure, host, port })
    }
}

/// Returns the host in the form of [`Route::host`].
fn route_host(host: &[u8]) -> PyResult<String> {
    let bare = host
        .strip_prefix(b"[")
        .and_then(|host| host.strip_suffix(b"]"))
        .unwrap_or(host);
    let text = std::str::from_utf8(bare).ok();
    match text.filter(|text| !text.is_empty() && text.is_ascii()) {
        Some(text) => Ok(text.to_ascii_lowercase()),
        None => Err(InvalidURL::new_err(
            "the URL has no host, or one that is not encoded",
        )),
    }
}

/// The parts of a request.
pub struct RequestParts<'a, 'py> {
    pub method: &'a [u8],
    pub route: Arc<Route>,
    pub target: &'a [u8],
    /// Pairs of bytes.
    pub headers: &'a Bound<'py, PyAny>,
    pub body: Body,
}

impl RequestParts<'_, '_> {
    /// Keeps the order of the fields; missing framing fields are added.
    pub fn prepare(self) -> PyResult<OutgoingRequest> {
        let mut text = start_head(self.method, &self.route, self.target);
        for pair in self.headers.try_iter()? {
            let (name, value): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = pair?
                .extract()
                .map_err(|_| PyTypeError::new_err("headers: expected pairs of bytes"))?;
            text.push(name.as_bytes(), value.as_bytes());
        }
        Ok(OutgoingRequest {
            idempotent: is_idempotent(self.method),
            route: self.route,
            head: text.into(),
            body: self.body,
        })
    }
}

/// Returns a request line, with the fields that a forwarding proxy needs.
pub fn start_head(method: &[u8], route: &Route, target: &[u8]) -> RequestText {
    if !route.absolute_form() || !target.starts_with(b"/") {
        return RequestText::new(method, target);
    }
    let mut absolute = b"http://".to_vec();
    let authority = if route.port == 80 {
        let authority = route.authority();
        authority.trim_end_matches(":80").to_owned()
    } else {
        route.authority()
    };
    absolute.extend_from_slice(authority.as_bytes());
    absolute.extend_from_slice(target);
    let mut text = RequestText::new(method, &absolute);
    if let Some(proxy) = route.proxy() {
        if let Some(authorization) = proxy.authorization() {
            text.push(b"Proxy-Authorization", &authorization);
        }
        for (name, value) in &proxy.headers {
            text.push(name, value);
        }
    }
    text
}

/// Idempotent methods (RFC 9110 9.2.2).
pub const IDEMPOTENT_METHODS: [&str; 6] = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];

pub fn is_idempotent(method: &[u8]) -> bool {
    IDEMPOTENT_METHODS
        .iter()
        .any(|known| known.as_bytes() == method)
}

/// Interprets `body`. Returns it whole, or its framing and the object that yields its pieces: an iterator, an asynchronous one,
/// or a file that is not on a disk. The length of such a body is in the Content-Length of `headers`, if present.
pub fn body_source<'py>(
    body: Option<&Bound<'py, PyAny>>,
    headers: &Bound<'py, PyAny>,
) -> PyResult<(Body, Option<Bound<'py, PyAny>>)> {
    let Some(body) = body.filter(|body| !body.is_none()) else {
        return Ok((Body::Empty, None));
    };
    if let Some(bytes) = bytes_body(body)? {
        return Ok((bytes, None));
    }
    if body.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("body: expected bytes, not str"));
    }
    let length = content_length(headers)?;
    if let Some(file) = disk_file(body, length)? {
        return Ok((file, None));
    }
    let framing = length.map_or(Body::Unknown, Body::Known);
    Ok((framing, Some(body.clone())))
}

/// Returns a body that is bytes. `bytes` are sent without a copy.
fn bytes_body(body: &Bound<'_, PyAny>) -> PyResult<Option<Body>> {
    if let Ok(bytes) = body.cast::<PyBytes>() {
        return Ok(Some(shared_body(bytes)));
    }
    if body.is_instance_of::<PyByteArray>() || body.is_instance_of::<PyMemoryView>() {
        let copy = PyBytes::new(body.py(), &[]).call_method1("__add__", (body,))?;
        return Ok(Some(shared_body(copy.cast::<PyBytes>()?)));
    }
    Ok(None)
}

fn shared_body(bytes: &Bound<'_, PyBytes>) -> Body {
    if bytes.as_bytes().is_empty() {
        return Body::Empty;
    }
    Body::Bytes(shared_bytes(bytes))
}

/// Returns the bytes of a Python object without a copy; the object is kept alive.
pub fn shared_bytes(bytes: &Bound<'_, PyBytes>) -> Bytes {
    Bytes::from_owner(PyBackedBytes::from(bytes.clone()))
}

/// The value of Content-Length, if present.
fn content_length(headers: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    for pair in headers.try_iter()? {
        let (name, value): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = pair?.extract()?;
        if name.as_bytes().eq_ignore_ascii_case(b"content-length") {
            let digits = value.as_bytes();
            let strict = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(digits).ok().filter(|_| strict);
            return length
                .and_then(|digits| digits.parse().ok())
                .map(Some)
                .ok_or_else(|| PyValueError::new_err("content-length is not a number"));
        }
    }
    Ok(None)
}

/// A regular file, from its position: `length` bytes, or up to its end.
fn disk_file(body: &Bound<'_, PyAny>, length: Option<u64>) -> PyResult<Option<Body>> {
    let py = body.py();
    let Some(fileno) = body.getattr_opt(intern!(py, "fileno"))? else {
        return Ok(None);
    };
    // A file in text mode: its raw bytes are not what its `read()` returns.
    if body.hasattr(intern!(py, "encoding"))? {
        return Ok(None);
    }
    let Ok(fd) = fileno.call0().and_then(|fd| fd.extract::<i32>()) else {
        return Ok(None);
    };
    let Ok(position) = body
        .call_method0(intern!(py, "tell"))
        .and_then(|at| at.extract::<u64>())
    else {
        return Ok(None);
    };
    // SAFETY: the descriptor belongs to the file object, which is held here; it is duplicated at once.
    let owned = unsafe { BorrowedFd::borrow_raw(fd) }
        .as_fd()
        .try_clone_to_owned()?;
    let file = File::from(owned);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let left = metadata.len().saturating_sub(position);
    Ok(Some(Body::File {
        file,
        offset: position,
        len: length.unwrap_or(left),
    }))
}
