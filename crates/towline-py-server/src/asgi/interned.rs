//! Header names, headers and methods that many requests share, as Python objects created once.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use towline_py_common::cell::StateCell;

/// In lower case: headers that browsers, proxies, load balancers and API clients send.
const COMMON: &[&[u8]] = &[
    b"accept",
    b"accept-charset",
    b"accept-encoding",
    b"accept-language",
    b"access-control-request-headers",
    b"access-control-request-method",
    b"authorization",
    b"cache-control",
    b"cdn-loop",
    b"cf-connecting-ip",
    b"cf-ipcountry",
    b"cf-ray",
    b"cf-visitor",
    b"connection",
    b"content-disposition",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"cookie",
    b"date",
    b"dnt",
    b"expect",
    b"forwarded",
    b"from",
    b"host",
    b"http2-settings",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"keep-alive",
    b"last-event-id",
    b"origin",
    b"pragma",
    b"priority",
    b"proxy-authorization",
    b"proxy-connection",
    b"range",
    b"referer",
    b"sec-ch-ua",
    b"sec-ch-ua-mobile",
    b"sec-ch-ua-platform",
    b"sec-fetch-dest",
    b"sec-fetch-mode",
    b"sec-fetch-site",
    b"sec-fetch-user",
    b"sec-gpc",
    b"sec-websocket-extensions",
    b"sec-websocket-key",
    b"sec-websocket-protocol",
    b"sec-websocket-version",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"traceparent",
    b"tracestate",
    b"upgrade",
    b"upgrade-insecure-requests",
    b"user-agent",
    b"via",
    b"x-amzn-trace-id",
    b"x-api-key",
    b"x-csrf-token",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-proto",
    b"x-real-ip",
    b"x-request-id",
    b"x-requested-with",
];

const SLOTS: usize = 256;

/// Longer values are not cached.
const MAX_CACHED_BYTES: usize = 256;

/// A cache of the scope's pairs of name and value.
pub struct HeaderCache {
    /// Open addressing: the slot of `hash`, or one after it.
    slots: Vec<Option<CachedName>>,
}

struct CachedName {
    name: &'static [u8],
    object: Py<PyBytes>,
    /// The last pair, used again while the value is the same: clients and proxies of one kind repeat most headers
    /// in every request. `None` for secrets: the duration of a request must not reveal whether another one has
    /// just sent the same secret.
    last: Option<StateCell<Option<Py<PyTuple>>>>,
}

impl CachedName {
    fn new(py: Python<'_>, name: &'static [u8]) -> Self {
        const PRIVATE: &[&[u8]] = &[
            b"authorization",
            b"cookie",
            b"proxy-authorization",
            b"x-api-key",
            b"x-csrf-token",
        ];
        Self {
            name,
            object: PyBytes::new(py, name).unbind(),
            last: (!PRIVATE.contains(&name)).then(StateCell::default),
        }
    }

    fn pair<'py>(&self, py: Python<'py>, value: &[u8]) -> PyResult<Bound<'py, PyTuple>> {
        let Some(last) = &self.last else {
            return pair(py, self.object.bind(py), value);
        };
        if let Some(last) = &*last.open(py)
            && is_value(last.bind(py), value)
        {
            return Ok(last.bind(py).clone());
        }
        let pair = pair(py, self.object.bind(py), value)?;
        if value.len() <= MAX_CACHED_BYTES {
            let before = last.open(py).replace(pair.clone().unbind());
            drop(before);
        }
        Ok(pair)
    }
}

impl HeaderCache {
    pub fn new(py: Python<'_>) -> Self {
        let mut slots: Vec<_> = (0..SLOTS).map(|_| None).collect();
        for &name in COMMON {
            let mut at = hash(name);
            while slots[at].is_some() {
                at = (at + 1) % SLOTS;
            }
            slots[at] = Some(CachedName::new(py, name));
        }
        Self { slots }
    }

    /// One header: the name in lower case, and the value.
    pub fn pair<'py>(
        &self,
        py: Python<'py>,
        name: &[u8],
        value: &[u8],
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut at = hash(name);
        while let Some(cached) = &self.slots[at] {
            if cached.name.eq_ignore_ascii_case(name) {
                return cached.pair(py, value);
            }
            at = (at + 1) % SLOTS;
        }
        pair(py, &PyBytes::new(py, &name.to_ascii_lowercase()), value)
    }
}

fn pair<'py>(
    py: Python<'py>,
    name: &Bound<'py, PyBytes>,
    value: &[u8],
) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, [name, &PyBytes::new(py, value)])
}

/// Whether `value` is the value of a cached pair.
fn is_value(pair: &Bound<'_, PyTuple>, value: &[u8]) -> bool {
    match pair.as_slice() {
        [_, cached] => cached
            .cast::<PyBytes>()
            .is_ok_and(|cached| cached.as_bytes() == value),
        _ => false,
    }
}

fn hash(name: &[u8]) -> usize {
    let (Some(first), Some(last)) = (name.first(), name.last()) else {
        return 0;
    };
    let middle = name[name.len() / 2];
    let fold = |byte: u8, factor: usize| usize::from(byte | 0x20) * factor;
    (name.len() * 37 + fold(*first, 3) + fold(middle, 11) + fold(*last, 29)) % SLOTS
}

/// The request method as text; common ones are interned.
pub fn method<'py>(py: Python<'py>, method: &[u8]) -> Bound<'py, PyString> {
    match method {
        b"GET" => pyo3::intern!(py, "GET").clone(),
        b"POST" => pyo3::intern!(py, "POST").clone(),
        b"HEAD" => pyo3::intern!(py, "HEAD").clone(),
        b"PUT" => pyo3::intern!(py, "PUT").clone(),
        b"DELETE" => pyo3::intern!(py, "DELETE").clone(),
        b"PATCH" => pyo3::intern!(py, "PATCH").clone(),
        b"OPTIONS" => pyo3::intern!(py, "OPTIONS").clone(),
        // A method is a token, hence ASCII (RFC 9110 9.1).
        other => PyString::new(py, &String::from_utf8_lossy(other)),
    }
}
