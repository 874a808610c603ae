//! The Python methods of a client, written once for `ClientCore` and `AsyncClientCore`.
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Fails if there are arguments after the URL, which other clients take as params or data.
pub fn named_only(args: &Bound<'_, PyTuple>) -> PyResult<()> {
    if args.is_empty() {
        return Ok(());
    }
    Err(PyTypeError::new_err(
        "expected only the URL; name the other arguments: params={...}, json={...}, data={...} or content=b'...'",
    ))
}

/// `$class` has a `core: Core<$pool>` and a function `call(slf, method, url, arguments) -> $result`.
///
/// `$returns`: the end of the first sentence of each docstring.
macro_rules! client_methods {
    ($class:ident, $pool:ty, $result:ty, $returns:literal) => {
        client_methods!(
            @verbs $class, $pool, $result, $returns,
            get = "GET": "a GET request (RFC 9110 9.3.1)",
            head = "HEAD": "a HEAD request (RFC 9110 9.3.2)",
            options = "OPTIONS": "an OPTIONS request (RFC 9110 9.3.7)",
            delete = "DELETE": "a DELETE request (RFC 9110 9.3.5)",
            post = "POST": "a POST request (RFC 9110 9.3.3)",
            put = "PUT": "a PUT request (RFC 9110 9.3.4)",
            patch = "PATCH": "a PATCH request (RFC 5789)",
        );
    };
    (
        @verbs $class:ident, $pool:ty, $result:ty, $returns:literal,
        $($verb:ident = $method:literal: $what:literal,)*
    ) => {
        #[pymethods]
        impl $class {
            #[new]
            #[pyo3(signature = (*args, **kwargs))]
            fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
                // The arguments are for the subclass's `__init__`.
                let _ = (args, kwargs);
                Self {
                    core: Core::default(),
                }
            }

            #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
            #[pyo3(signature = (
                pool, response, *, base_url="", headers=None, timeout=None, follow_redirects=false,
                retry_statuses=Vec::new(), max_response_size=None, max_decompressed_size=None,
                default_encoding="utf-8", json_loads=None, json_dumps=None
            ))]
            fn _configure(
                slf: &Bound<'_, Self>,
                pool: Py<$pool>,
                response: &Bound<'_, PyType>,
                base_url: &str,
                headers: Option<&Bound<'_, PyAny>>,
                timeout: Option<&Bound<'_, PyAny>>,
                follow_redirects: bool,
                retry_statuses: Vec<u16>,
                max_response_size: Option<u64>,
                max_decompressed_size: Option<u64>,
                default_encoding: &str,
                json_loads: Option<Py<PyAny>>,
                json_dumps: Option<Py<PyAny>>,
            ) -> PyResult<()> {
                let config = ClientConfig {
                    pool,
                    response,
                    base_url,
                    headers,
                    timeout,
                    follow_redirects,
                    retry_statuses,
                    max_response_size,
                    max_decompressed_size,
                    default_encoding,
                    json_loads,
                    json_dumps,
                };
                slf.get().core.configure(slf.as_any(), config)
            }

            #[pyo3(signature = (headers))]
            fn _set_headers(&self, headers: &Bound<'_, PyAny>) -> PyResult<()> {
                self.core.set_headers(headers)
            }

            #[getter]
            fn _pool(&self, py: Python<'_>) -> PyResult<Py<$pool>> {
                self.core.pool(py)
            }

            #[getter]
            fn _fast_path(&self, py: Python<'_>) -> bool {
                self.core.is_fast_path(py)
            }

            #[setter(_fast_path)]
            fn set_fast_path(&self, py: Python<'_>, enabled: bool) -> PyResult<()> {
                self.core.set_fast_path(py, enabled)
            }

            #[getter]
            fn _cookies(&self, py: Python<'_>) -> Option<Py<PyAny>> {
                self.core.cookies(py)
            }

            #[setter(_cookies)]
            fn set_cookies(&self, py: Python<'_>, cookies: Option<Py<PyAny>>) -> PyResult<()> {
                self.core.set_cookies(py, cookies)
            }

            #[doc = concat!("Sends a request and ", $returns, ".")]
            ///
            /// - method: a token (RFC 9110 9.1), in any case
            /// - url: absolute, or relative to `base_url`
            /// - params: query parameters, appended to those of the URL and of the client
            /// - headers, cookies: added to those of the client; a header replaces the client's of the same name
            /// - content: the body as bytes, text (sent as UTF-8), a binary file or an iterable of bytes
            /// - data: the fields of a form (`application/x-www-form-urlencoded`)
            /// - files: content by field name, sent as `multipart/form-data` (RFC 7578), together with `data`
            /// - json: any value that JSON can express, sent as `application/json`
            /// - auth: `(user, password)`, an `Auth`, or a function; None: not even the client's
            /// - `follow_redirects`: default: the client's, which is False
            /// - timeout: seconds of each phase, `(connect, read, write, pool, total)` or a `Timeout`; None: no limit
            /// - retries: a `Retry` or the number of retries; None: no retries
            /// - progress: called with a `Progress` while the body is sent and received
            /// - transport: a name (`"httpx"`) or an object, for this call instead of the client's
            /// - extensions: `target`, `sni_hostname` and others, as in httpx
            ///
            /// `...` in the signature is the setting of the client. A response with any status is returned.
            /// Raises `InvalidURL`, `InvalidHeader` and `UsageError` before anything is sent; a subclass of
            /// `TransportError` (`ConnectError`, `ReadTimeout`, ...) if no response arrives; `TooManyRedirects`;
            /// `DecodingError` for a body that its Content-Encoding does not decode.
            #[pyo3(signature = (method, url, *args, **kwargs), text_signature =
                "($self, method, url, *, params=None, headers=None, cookies=None, content=None, \
                data=None, files=None, json=None, auth=..., follow_redirects=..., timeout=..., \
                retries=..., progress=None, transport=None, extensions=None)")]
            fn request(
                slf: &Bound<'_, Self>,
                method: &Bound<'_, PyString>,
                url: &Bound<'_, PyAny>,
                args: &Bound<'_, PyTuple>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                named_only(args)?;
                Self::call(slf, &upper_case(method)?, url, kwargs)
            }

            $(
            #[doc = concat!("Sends ", $what, " and ", $returns, ".")]
            ///
            /// Arguments and errors as for `request`.
            #[pyo3(signature = (url, *args, **kwargs), text_signature =
                "($self, url, *, params=None, headers=None, cookies=None, content=None, \
                data=None, files=None, json=None, auth=..., follow_redirects=..., timeout=..., \
                retries=..., progress=None, transport=None, extensions=None)")]
            fn $verb(
                slf: &Bound<'_, Self>,
                url: &Bound<'_, PyAny>,
                args: &Bound<'_, PyTuple>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                named_only(args)?;
                Self::call(slf, intern!(slf.py(), $method), url, kwargs)
            }
            )*
        }
    };
}

pub(crate) use client_methods;
