//! Field names and methods that nearly every request uses, as Python objects made once.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::gil::GilCell;

/// Lower case; what browsers, proxies, load balancers and API clients send.
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

/// Values up to this size are remembered.
const REMEMBERED_BYTES: usize = 256;

/// The scope's pairs of name and value.
pub struct FieldNames {
    /// Open addressing: the slot of `hash`, or one of those after it.
    slots: Vec<Option<Known>>,
}

struct Known {
    name: &'static [u8],
    object: Py<PyBytes>,
    /// The pair made last, given out again while the value stays the same: clients and proxies of one
    /// kind repeat most fields in every request. `None` for what is private to a client: how long a
    /// request takes must not tell whether another has just sent the same secret.
    last: Option<GilCell<Option<Py<PyTuple>>>>,
}

impl Known {
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
            last: (!PRIVATE.contains(&name)).then(GilCell::default),
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
        if value.len() <= REMEMBERED_BYTES {
            let before = last.open(py).replace(pair.clone().unbind());
            drop(before);
        }
        Ok(pair)
    }
}

impl FieldNames {
    pub fn new(py: Python<'_>) -> Self {
        let mut slots: Vec<_> = (0..SLOTS).map(|_| None).collect();
        for &name in COMMON {
            let mut at = hash(name);
            while slots[at].is_some() {
                at = (at + 1) % SLOTS;
            }
            slots[at] = Some(Known::new(py, name));
        }
        Self { slots }
    }

    /// One field: the name in lower case, and the value.
    pub fn pair<'py>(
        &self,
        py: Python<'py>,
        name: &[u8],
        value: &[u8],
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut at = hash(name);
        while let Some(known) = &self.slots[at] {
            if known.name.eq_ignore_ascii_case(name) {
                return known.pair(py, value);
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

/// Whether it is the second of a remembered pair.
fn is_value(pair: &Bound<'_, PyTuple>, value: &[u8]) -> bool {
    match pair.as_slice() {
        [_, known] => known
            .cast::<PyBytes>()
            .is_ok_and(|known| known.as_bytes() == value),
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

/// The request method as text; the registered ones are made once.
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
