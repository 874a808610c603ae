//! The fast path: calls whose request can be built without running Python code.
//!
//! Every parser here returns `None` unless its result is certain to equal that of the slow path (`_slow_request`,
//! with the URL, headers and flow of Python). A property test compares the two.
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyString, PyTuple, PyType};
use towline_io::client::{Body, RequestText, Timeouts};

use super::pool_config;
use super::request;
use super::response_config::ResponseConfig;
use super::urlencoded;
use crate::bodies::json;
use towline_py_common::cell::stable;

/// A URL that is in its wire form already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastUrl<'a> {
    /// `http://host` or `https://host:port`.
    pub origin: &'a str,
    pub secure: bool,
    /// An IPv6 address in brackets, or a name in any case.
    pub host: &'a str,
    /// `None`: the default port of the scheme, even if the URL contains it.
    pub port: Option<u16>,
    /// Path and query; empty means `/`.
    pub target: &'a str,
}

/// The origin of a URL of HTTP, as it is written, and the rest.
pub fn split_origin(url: &str) -> Option<(&str, &str)> {
    let start = if url.starts_with("http://") {
        7
    } else if url.starts_with("https://") {
        8
    } else {
        return None;
    };
    let rest = url.as_bytes()[start..].iter();
    let end = rest.take_while(|&&byte| byte != b'/').count();
    Some(url.split_at(start + end))
}

impl<'a> FastUrl<'a> {
    pub fn parse(url: &'a str) -> Option<Self> {
        let (origin, target) = split_origin(url)?;
        let (scheme, authority) = origin.split_once("://")?;
        let secure = scheme == "https";
        let after = authority.rfind(']').map_or(0, |bracket| bracket + 1);
        let (host, port) = match authority[after..].find(':') {
            None => (authority, None),
            Some(colon) => {
                let (host, port) = authority.split_at(after + colon);
                (host, Some(parse_port(&port[1..])?))
            }
        };
        (is_canonical_host(host) && is_canonical_target(target)).then_some(Self {
            origin,
            secure,
            host,
            port: port.filter(|&port| port != if secure { 443 } else { 80 }),
            target,
        })
    }
}

fn parse_port(port: &str) -> Option<u16> {
    let digits = !port.starts_with('0') && port.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| port.parse().ok()).flatten()
}

/// Whether `host` is an ASCII name, or an address in its canonical form.
fn is_canonical_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']');
        let parsed = address.and_then(|address| address.parse::<Ipv6Addr>().ok());
        return !host.contains('.')
            && parsed.is_some_and(|parsed| address == Some(parsed.to_string().as_str()));
    }
    let is_name = !host.is_empty()
        && host.len() <= 253
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        // Python checks A-labels when it decodes them.
        && !host.as_bytes().windows(4).any(|label| label.eq_ignore_ascii_case(b"xn--"));
    // A host that ends in a number is an address, which can be written in many ways.
    let last = host.rsplit('.').find(|label| !label.is_empty());
    let numeric = last.is_some_and(|label| label.as_bytes()[0].is_ascii_digit());
    is_name && (!numeric || host.parse::<Ipv4Addr>().is_ok())
}

/// Bound of the target on the fast path, in bytes.
pub const MAX_TARGET_BYTES: usize = 8192;

/// Whether neither percent-encoding nor the removal of dot segments would change path and query.
pub fn is_canonical_target(target: &str) -> bool {
    const CANONICAL: [bool; 256] = canonical_bytes();
    let bytes = target.as_bytes();
    if bytes.len() > MAX_TARGET_BYTES || !bytes.iter().all(|&byte| CANONICAL[byte as usize]) {
        return false;
    }
    let path = target.split('?').next().unwrap_or(target);
    // An empty query may or may not keep its question mark.
    !path.contains("/.") && !target.ends_with('?')
}

const fn canonical_bytes() -> [bool; 256] {
    let mut canonical = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        canonical[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b"-._~!$&()*+,;=:@/?";
    let mut at = 0;
    while at < others.len() {
        canonical[others[at] as usize] = true;
        at += 1;
    }
    canonical
}

/// The arguments of a call on the fast path, without method and URL.
#[derive(Default)]
pub struct FastArguments<'py> {
    pub headers: Option<Bound<'py, PyDict>>,
    pub body: Body,
    /// Length and Content-Type of a body.
    pub content: Option<(usize, Option<&'static [u8]>)>,
    pub timeouts: Option<Timeouts>,
    pub follow_redirects: Option<bool>,
    /// Encoded, without the question mark.
    pub query: Option<Vec<u8>>,
}

impl<'py> FastArguments<'py> {
    /// Returns `None` if an argument needs Python.
    pub fn read(
        arguments: Option<&Bound<'py, PyDict>>,
        config: &ResponseConfig,
    ) -> PyResult<Option<Self>> {
        let mut read = Self::default();
        let Some(arguments) = arguments else {
            return Ok(Some(read));
        };
        let (mut json, mut form) = (None, None);
        for (name, value) in arguments.iter() {
            let Ok(name) = name.cast_into::<PyString>() else {
                return Ok(None);
            };
            let is_native = match name.to_str()? {
                "headers" => read.take_headers(&value),
                "content" => read.take_content(&value)?,
                "json" => {
                    json = Some(value).filter(|value| !value.is_none());
                    true
                }
                "data" => {
                    form = urlencoded::encode(&value);
                    form.is_some() || value.is_none()
                }
                "params" => {
                    read.query = urlencoded::encode(&value);
                    read.query.is_some() || value.is_none()
                }
                "timeout" => read.take_timeout(&value)?,
                "follow_redirects" => read.take_redirects(&value),
                "auth" | "cookies" | "extensions" | "files" | "progress" | "transport" => {
                    value.is_none()
                }
                // An unknown name is an error of Python's; `retries=None` has a meaning: never retry.
                _ => false,
            };
            if !is_native {
                return Ok(None);
            }
        }
        // Python decides what several bodies mean.
        let bodies = [json.is_some(), form.is_some(), read.content.is_some()];
        if bodies.iter().filter(|&&given| given).count() > 1 {
            return Ok(None);
        }
        if let Some(form) = form {
            read.set_body(form.into(), Some(b"application/x-www-form-urlencoded"));
        }
        if let Some(json) = json {
            read.set_body(dump(&json, config)?, Some(b"application/json"));
        }
        Ok(Some(read))
    }

    fn take_headers(&mut self, value: &Bound<'py, PyAny>) -> bool {
        if let Ok(headers) = value.cast_exact::<PyDict>() {
            self.headers = Some(headers.clone());
            return true;
        }
        value.is_none()
    }

    fn take_content(&mut self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            self.set_body(request::shared_bytes(bytes), None);
            return Ok(true);
        }
        if let Ok(text) = value.cast_exact::<PyString>() {
            self.set_body(Bytes::copy_from_slice(text.to_str()?.as_bytes()), None);
            return Ok(true);
        }
        Ok(value.is_none())
    }

    fn take_timeout(&mut self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        self.timeouts = parse_timeouts(value)?;
        Ok(self.timeouts.is_some())
    }

    fn take_redirects(&mut self, value: &Bound<'py, PyAny>) -> bool {
        self.follow_redirects = value.extract().ok();
        self.follow_redirects.is_some()
    }

    fn set_body(&mut self, bytes: Bytes, content_type: Option<&'static [u8]>) {
        self.content = Some((bytes.len(), content_type));
        self.body = if bytes.is_empty() {
            Body::Empty
        } else {
            Body::Bytes(bytes)
        };
    }
}

/// As `Timeout.of`. `None`: the value needs Python, or is a mistake.
fn parse_timeouts(value: &Bound<'_, PyAny>) -> PyResult<Option<Timeouts>> {
    static TIMEOUT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if let Ok(phases) = value.cast_exact::<PyTuple>() {
        // (connect, read[, write[, pool[, total]]])
        let mut given = [None; 5];
        if !(2..=given.len()).contains(&phases.len()) {
            return Ok(None);
        }
        for (given, phase) in given.iter_mut().zip(phases.iter()) {
            let Some(seconds) = parse_seconds(&phase)? else {
                return Ok(None);
            };
            *given = seconds;
        }
        let [connect, read, write, pool, total] = given;
        return Ok(Some(Timeouts {
            connect,
            read,
            write,
            pool,
            total,
        }));
    }
    if let Some(each) = parse_seconds(value)? {
        return Ok(Some(Timeouts {
            connect: each,
            read: each,
            write: each,
            pool: each,
            total: None,
        }));
    }
    let class = TIMEOUT.import(value.py(), "towline.client.options", "Timeout")?;
    if value.get_type().is(class) {
        return pool_config::timeouts(value).map(Some);
    }
    Ok(None)
}

/// A number of seconds, or None for no limit. The outer `None`: neither.
#[expect(clippy::option_option, reason = "no limit differs from no number")]
fn parse_seconds(value: &Bound<'_, PyAny>) -> PyResult<Option<Option<Duration>>> {
    if value.is_none() {
        return Ok(Some(None));
    }
    if !value.is_exact_instance_of::<PyFloat>() && !value.is_exact_instance_of::<PyInt>() {
        return Ok(None);
    }
    let seconds = Duration::try_from_secs_f64(value.extract()?);
    Ok(seconds.ok().map(Some))
}

/// Encodes JSON in compact form, or with the client's `json_dumps`.
fn dump(value: &Bound<'_, PyAny>, config: &ResponseConfig) -> PyResult<Bytes> {
    let Some(dumps) = &config.json_dumps else {
        return Ok(json::dump(value)?.into());
    };
    let text = dumps.bind(value.py()).call1((value,))?;
    match text.cast_into::<PyBytes>() {
        Ok(bytes) => Ok(request::shared_bytes(&bytes)),
        Err(error) => {
            let text = error.into_inner();
            let text = text.cast::<PyString>()?;
            Ok(Bytes::copy_from_slice(text.to_str()?.as_bytes()))
        }
    }
}

/// The header fields that the client adds to every request.
#[derive(Debug, Default)]
pub struct HeaderTemplate {
    fields: Vec<HeaderField>,
    /// Contains a field whose rules are in Python.
    pub needs_python: bool,
}

type HeaderField = (Box<[u8]>, Box<[u8]>);

/// Whether a field is about routing or framing: their rules are implemented once, in Python.
fn field_needs_python(name: &[u8]) -> bool {
    const NAMES: &[&[u8]] = &[
        b"host",
        b"content-length",
        b"content-type",
        b"transfer-encoding",
        b"connection",
        b"expect",
        b"upgrade",
        b"te",
    ];
    NAMES
        .iter()
        .any(|special| special.eq_ignore_ascii_case(name))
}

impl HeaderTemplate {
    pub fn read(headers: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut template = Self::default();
        for pair in headers.try_iter()? {
            let (name, value): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = pair?.extract()?;
            let (name, value) = (name.as_bytes(), value.as_bytes());
            let keep_alive = name.eq_ignore_ascii_case(b"connection")
                && value.eq_ignore_ascii_case(b"keep-alive");
            template.needs_python |= field_needs_python(name) && !keep_alive;
            template.fields.push((name.into(), value.into()));
        }
        Ok(template)
    }

    /// Writes Host, the fields of the client, of the call and of the body. `None`: a field needs Python.
    pub fn fill(
        &self,
        text: &mut RequestText,
        method: &[u8],
        host: &[u8],
        arguments: &FastArguments<'_>,
    ) -> PyResult<Option<()>> {
        text.push(b"Host", host);
        let Some(own) = call_headers(arguments.headers.as_ref())? else {
            return Ok(None);
        };
        for (name, value) in &self.fields {
            let replaced = own
                .iter()
                .any(|(own, _)| own.as_bytes().eq_ignore_ascii_case(name));
            if !replaced {
                text.push(name, value);
            }
        }
        for (name, value) in &own {
            text.push(name.as_bytes(), value.as_bytes());
        }
        if let Some((length, content_type)) = arguments.content
            && length > 0
        {
            let mut digits = [0; 20];
            text.push(b"Content-Length", decimal(length, &mut digits));
            if let Some(content_type) = content_type {
                text.push(b"Content-Type", content_type);
            }
        } else if matches!(method, b"POST" | b"PUT" | b"PATCH") {
            text.push(b"Content-Length", b"0");
        }
        Ok(Some(()))
    }
}

/// The header fields of a call; `None` if one of them is not ASCII text or has rules in Python.
fn call_headers(headers: Option<&Bound<'_, PyDict>>) -> PyResult<Option<Vec<(String, String)>>> {
    let Some(headers) = headers else {
        return Ok(Some(Vec::new()));
    };
    let mut own = Vec::with_capacity(headers.len());
    for (name, value) in &stable(headers)? {
        let (Ok(name), Ok(value)) = (
            name.cast_exact::<PyString>(),
            value.cast_exact::<PyString>(),
        ) else {
            return Ok(None);
        };
        let (name, value) = (name.to_str()?, value.to_str()?);
        // This includes a Content-Type for a JSON body: it keeps its place among the headers of the call.
        if field_needs_python(name.as_bytes()) || !name.is_ascii() || !value.is_ascii() {
            return Ok(None);
        }
        own.push((name.to_owned(), value.to_owned()));
    }
    Ok(Some(own))
}

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}
