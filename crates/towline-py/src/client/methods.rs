//! The Python methods of a client, written once for `ClientCore` and `AsyncClientCore`.

/// `$class` has a `core: Core<$pool>` and a function `call(slf, method, url, arguments) -> $result`.
macro_rules! client_methods {
    ($class:ident, $pool:ty, $result:ty) => {
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

            #[pyo3(signature = (method, url, **kwargs))]
            fn request(
                slf: &Bound<'_, Self>,
                method: &Bound<'_, PyString>,
                url: &Bound<'_, PyAny>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                Self::call(slf, &upper_case(method)?, url, kwargs)
            }

            #[pyo3(signature = (url, **kwargs))]
            fn get(
                slf: &Bound<'_, Self>,
                url: &Bound<'_, PyAny>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                Self::call(slf, intern!(slf.py(), "GET"), url, kwargs)
            }

            #[pyo3(signature = (url, **kwargs))]
            fn head(
                slf: &Bound<'_, Self>,
                url: &Bound<'_, PyAny>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                Self::call(slf, intern!(slf.py(), "HEAD"), url, kwargs)
            }

            #[pyo3(signature = (url, **kwargs))]
            fn options(
                slf: &Bound<'_, Self>,
                url: &Bound<'_, PyAny>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                Self::call(slf, intern!(slf.py(), "OPTIONS"), url, kwargs)
            }

            #[pyo3(signature = (url, **kwargs))]
            fn delete(
                slf: &Bound<'_, Self>,
                url: &Bound<'_, PyAny>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                Self::call(slf, intern!(slf.py(), "DELETE"), url, kwargs)
            }

            #[pyo3(signature = (url, **kwargs))]
            fn post(
                slf: &Bound<'_, Self>,
                url: &Bound<'_, PyAny>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                Self::call(slf, intern!(slf.py(), "POST"), url, kwargs)
            }

            #[pyo3(signature = (url, **kwargs))]
            fn put(
                slf: &Bound<'_, Self>,
                url: &Bound<'_, PyAny>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                Self::call(slf, intern!(slf.py(), "PUT"), url, kwargs)
            }

            #[pyo3(signature = (url, **kwargs))]
            fn patch(
                slf: &Bound<'_, Self>,
                url: &Bound<'_, PyAny>,
                kwargs: Option<&Bound<'_, PyDict>>,
            ) -> PyResult<$result> {
                Self::call(slf, intern!(slf.py(), "PATCH"), url, kwargs)
            }
        }
    };
}

pub(crate) use client_methods;
