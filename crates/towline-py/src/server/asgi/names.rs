//! Field names and methods that nearly every request uses, as Python objects made once.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

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

/// Finds the bytes object of a field name, whatever its case.
pub struct FieldNames {
    /// Open addressing: the slot of `hash`, or one of those after it.
    slots: Vec<Option<(&'static [u8], Py<PyBytes>)>>,
}

impl FieldNames {
    pub fn new(py: Python<'_>) -> Self {
        let mut slots: Vec<_> = (0..SLOTS).map(|_| None).collect();
        for &name in COMMON {
            let mut at = hash(name);
            while slots[at].is_some() {
                at = (at + 1) % SLOTS;
            }
            slots[at] = Some((name, PyBytes::new(py, name).unbind()));
        }
        Self { slots }
    }

    /// The name in lower case.
    pub fn lower<'py>(&self, py: Python<'py>, name: &[u8]) -> Bound<'py, PyBytes> {
        let mut at = hash(name);
        while let Some((known, object)) = &self.slots[at] {
            if known.eq_ignore_ascii_case(name) {
                return object.bind(py).clone();
            }
            at = (at + 1) % SLOTS;
        }
        PyBytes::new(py, &name.to_ascii_lowercase())
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
