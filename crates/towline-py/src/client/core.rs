//! The native half of `AsyncClient`: plain calls in one go, the others through `_request`.
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use towline_io::call::{CallOptions, Prepared, Route, Timeouts};

use super::aio::desk::Want;
use super::aio::hub::Hub;
use super::aio::operation::{Operation, Plan};
use super::call::Call;
use super::collect::Bounds;
use super::errors;
use super::options;
use super::plain::{PlainArguments, PlainUrl, Template, is_plain_target};
use super::pool::AsyncPool;
use super::prepare::{self, Origin};
use super::response;
use super::terms::Terms;
use crate::gil::GilCell;

/// Origins remembered; beyond these all are forgotten and learnt again.
const KEPT_ORIGINS: usize = 1024;

#[pyclass(frozen, subclass, dict, weakref, module = "towline._native")]
pub struct AsyncClientCore {
    state: GilCell<Option<State>>,
}

struct State {
    pool: Py<AsyncPool>,
    terms: Arc<Terms>,
    template: Arc<Template>,
    timeouts: Timeouts,
    plain: bool,
    cookies: Option<Py<PyAny>>,
    base: Option<Base>,
    /// By `scheme://authority`. `None`: Python decides.
    origins: HashMap<Box<str>, Option<Lane>>,
}

/// How an origin is reached.
struct Lane {
    pool: Py<AsyncPool>,
    route: Arc<Route>,
    /// The value of Host.
    host: Box<[u8]>,
}

/// A base URL, for relative ones.
struct Base {
    origin: Box<str>,
    /// Ends with a slash.
    path: Box<str>,
}

/// A plain call, understood.
struct Found<'py> {
    pool: Bound<'py, AsyncPool>,
    request: Prepared,
    options: CallOptions,
    terms: Arc<Terms>,
    follow_redirects: bool,
}

impl AsyncClientCore {
    /// Runs a method of the client.
    fn call(
        slf: &Bound<'_, Self>,
        method: &Bound<'_, PyString>,
        url: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        let py = slf.py();
        let Some(found) = Self::find(slf, method, url, arguments)? else {
            let coroutine = slf
                .getattr(intern!(py, "_request"))?
                .call((method, url), arguments)?;
            return Call::coroutine(py, coroutine.unbind());
        };
        let hub = found.pool.get().hub(py)?;
        let want = Want::Whole(Bounds {
            max_response_size: found.terms.max_response_size,
            max_decompressed_size: found.terms.max_decompressed_size,
            raw: false,
        });
        let begun = Hub::begin(hub.bind(py), found.request, found.options, want, None)?;
        let id = match begun {
            Ok(id) => id,
            Err(error) => return Call::failed(py, errors::call_error(py, &error)),
        };
        let plan = Plan {
            terms: found.terms,
            client: slf.clone().into_any().unbind(),
            method: method.clone().unbind(),
            url: url.clone().unbind(),
            arguments: arguments.map(|arguments| arguments.clone().unbind()),
            follow_redirects: found.follow_redirects,
        };
        Call::of(py, Operation::respond(hub, id, plan))
    }

    /// `None`: not plain.
    fn find<'py>(
        slf: &Bound<'py, Self>,
        method: &Bound<'py, PyString>,
        url: &Bound<'py, PyAny>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Found<'py>>> {
        let py = slf.py();
        let Ok(url) = url.cast_exact::<PyString>() else {
            return Ok(None);
        };
        let (terms, template, cookies) = {
            let state = slf.get().state.open(py);
            let state = state.as_ref().ok_or_else(not_set_up)?;
            if !state.plain || state.template.is_special {
                return Ok(None);
            }
            let cookies = state.cookies.as_ref().map(|cookies| cookies.clone_ref(py));
            (
                Arc::clone(&state.terms),
                Arc::clone(&state.template),
                cookies,
            )
        };
        if cookies.is_some_and(|cookies| cookies.is_truthy(py).unwrap_or(true)) {
            return Ok(None);
        }
        let url = url.to_str()?;
        let Some(target) = Self::locate(slf, url)? else {
            return Ok(None);
        };
        let Some(arguments) = PlainArguments::read(arguments, &terms)? else {
            return Ok(None);
        };
        let method = method.to_str()?.as_bytes();
        let state = slf.get().state.open(py);
        let state = state.as_ref().ok_or_else(not_set_up)?;
        let Some(Some(lane)) = state.origins.get(target.origin(state)) else {
            return Ok(None);
        };
        let mut text = prepare::start(method, &lane.route, &target.text(state));
        if template
            .fill(&mut text, method, &lane.host, &arguments)?
            .is_none()
        {
            return Ok(None);
        }
        let pool = lane.pool.bind(py).clone();
        let mut options = pool.get().terms.defaults;
        options.timeouts = arguments.timeouts.unwrap_or(state.timeouts);
        Ok(Some(Found {
            request: Prepared {
                route: Arc::clone(&lane.route),
                idempotent: prepare::is_idempotent(method),
                head: text,
                body: arguments.body,
            },
            pool,
            options,
            follow_redirects: arguments.follow_redirects.unwrap_or(terms.follow_redirects),
            terms,
        }))
    }

    /// Where a URL leads; its origin is then known.
    fn locate<'a>(slf: &Bound<'_, Self>, url: &'a str) -> PyResult<Option<Target<'a>>> {
        let py = slf.py();
        let Some(plain) = PlainUrl::parse(url) else {
            let state = slf.get().state.open(py);
            let based = state.as_ref().is_some_and(|state| state.base.is_some());
            return Ok((based && is_relative(url)).then_some(Target::Relative(url)));
        };
        {
            let state = slf.get().state.open(py);
            let known = state
                .as_ref()
                .and_then(|state| state.origins.get(plain.origin));
            if let Some(lane) = known {
                return Ok(lane.is_some().then_some(Target::Absolute(plain)));
            }
        }
        let known = Self::learn(slf, &plain)?;
        Ok(known.then_some(Target::Absolute(plain)))
    }

    /// Asks Python how an origin is reached. False: not by us.
    fn learn(slf: &Bound<'_, Self>, url: &PlainUrl<'_>) -> PyResult<bool> {
        let py = slf.py();
        let (scheme, default) = if url.secure {
            ("https", 443)
        } else {
            ("http", 80)
        };
        let port = url.port.unwrap_or(default);
        let pool = slf.call_method1(intern!(py, "_route"), (scheme, url.host, port))?;
        let lane = if pool.is_none() {
            None
        } else {
            let pool = pool.cast_into::<AsyncPool>()?;
            let origin = Origin {
                secure: url.secure,
                host: url.host.as_bytes(),
                port,
            };
            let route = pool.get().route(py, &origin, None)?;
            let host = match url.port {
                Some(port) => format!("{}:{port}", url.host),
                None => url.host.to_owned(),
            };
            Some(Lane {
                pool: pool.unbind(),
                route,
                host: host.into_bytes().into(),
            })
        };
        let known = lane.is_some();
        let mut state = slf.get().state.open(py);
        let state = state.as_mut().ok_or_else(not_set_up)?;
        let forgotten = if state.origins.len() >= KEPT_ORIGINS {
            std::mem::take(&mut state.origins)
        } else {
            HashMap::new()
        };
        state.origins.insert(url.origin.into(), lane);
        drop(forgotten);
        Ok(known)
    }
}

enum Target<'a> {
    Absolute(PlainUrl<'a>),
    Relative(&'a str),
}

impl<'a> Target<'a> {
    fn origin<'s>(&'s self, state: &'s State) -> &'s str {
        match self {
            Self::Absolute(url) => url.origin,
            Self::Relative(_) => state.base.as_ref().map_or("", |base| &base.origin),
        }
    }

    fn text(&self, state: &State) -> std::borrow::Cow<'a, [u8]> {
        match self {
            Self::Absolute(url) if url.target.is_empty() => b"/"[..].into(),
            Self::Absolute(url) => url.target.as_bytes().into(),
            Self::Relative(url) => {
                let base = state.base.as_ref().map_or("/", |base| &base.path);
                format!("{base}{}", url.trim_start_matches('/'))
                    .into_bytes()
                    .into()
            }
        }
    }
}

/// A path that a base URL is put in front of, without any doubt.
fn is_relative(url: &str) -> bool {
    url.starts_with('/') && !url.starts_with("//") && is_plain_target(url)
}

fn not_set_up() -> PyErr {
    PyRuntimeError::new_err("__init__ of the client has not been called")
}

#[pymethods]
impl AsyncClientCore {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        // For the subclass's `__init__`.
        let _ = (args, kwargs);
        Self {
            state: GilCell::default(),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    #[pyo3(signature = (
        pool, response, *, base_url="", headers=None, timeout=None, follow_redirects=false, retry_statuses=Vec::new(),
        max_response_size=None, max_decompressed_size=None, default_encoding="utf-8", json_loads=None, json_dumps=None
    ))]
    fn _setup(
        slf: &Bound<'_, Self>,
        pool: Py<AsyncPool>,
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
        let py = slf.py();
        let terms = Terms {
            response: response::response_class(response)?.unbind(),
            default_encoding: default_encoding.to_owned(),
            json_loads,
            json_dumps,
            follow_redirects,
            retry_statuses,
            max_response_size,
            max_decompressed_size,
        };
        let defaults = pool.get().terms.defaults.timeouts;
        let state = State {
            terms: Arc::new(terms),
            template: Arc::new(headers.map(Template::read).transpose()?.unwrap_or_default()),
            timeouts: timeout
                .map(options::timeouts_of_tuple)
                .transpose()?
                .unwrap_or(defaults),
            plain: false,
            cookies: None,
            base: None,
            origins: HashMap::new(),
            pool,
        };
        let before = slf.get().state.open(py).replace(state);
        drop(before);
        Self::set_base(slf, base_url)
    }

    #[pyo3(signature = (headers))]
    fn _set_headers(&self, py: Python<'_>, headers: &Bound<'_, PyAny>) -> PyResult<()> {
        let template = Arc::new(Template::read(headers)?);
        self.state
            .open(py)
            .as_mut()
            .ok_or_else(not_set_up)?
            .template = template;
        Ok(())
    }

    #[getter]
    fn _pool(&self, py: Python<'_>) -> PyResult<Py<AsyncPool>> {
        let state = self.state.open(py);
        Ok(state.as_ref().ok_or_else(not_set_up)?.pool.clone_ref(py))
    }

    #[getter]
    fn _plain(&self, py: Python<'_>) -> bool {
        self.state
            .open(py)
            .as_ref()
            .is_some_and(|state| state.plain)
    }

    #[setter(_plain)]
    fn set_plain(&self, py: Python<'_>, plain: bool) -> PyResult<()> {
        self.state.open(py).as_mut().ok_or_else(not_set_up)?.plain = plain;
        Ok(())
    }

    #[getter]
    fn _cookies(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let state = self.state.open(py);
        let cookies = state.as_ref()?.cookies.as_ref()?;
        Some(cookies.clone_ref(py))
    }

    #[setter(_cookies)]
    fn set_cookies(&self, py: Python<'_>, cookies: Option<Py<PyAny>>) -> PyResult<()> {
        let before = {
            let mut state = self.state.open(py);
            let state = state.as_mut().ok_or_else(not_set_up)?;
            std::mem::replace(&mut state.cookies, cookies)
        };
        drop(before);
        Ok(())
    }

    #[pyo3(signature = (method, url, **kwargs))]
    fn request(
        slf: &Bound<'_, Self>,
        method: &Bound<'_, PyString>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        if is_upper_case(method.to_str()?) {
            return Self::call(slf, method, url, kwargs);
        }
        let upper = PyString::new(slf.py(), &method.to_str()?.to_uppercase());
        Self::call(slf, &upper, url, kwargs)
    }

    #[pyo3(signature = (url, **kwargs))]
    fn get(
        slf: &Bound<'_, Self>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        Self::call(slf, intern!(slf.py(), "GET"), url, kwargs)
    }

    #[pyo3(signature = (url, **kwargs))]
    fn head(
        slf: &Bound<'_, Self>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        Self::call(slf, intern!(slf.py(), "HEAD"), url, kwargs)
    }

    #[pyo3(signature = (url, **kwargs))]
    fn options(
        slf: &Bound<'_, Self>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        Self::call(slf, intern!(slf.py(), "OPTIONS"), url, kwargs)
    }

    #[pyo3(signature = (url, **kwargs))]
    fn delete(
        slf: &Bound<'_, Self>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        Self::call(slf, intern!(slf.py(), "DELETE"), url, kwargs)
    }

    #[pyo3(signature = (url, **kwargs))]
    fn post(
        slf: &Bound<'_, Self>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        Self::call(slf, intern!(slf.py(), "POST"), url, kwargs)
    }

    #[pyo3(signature = (url, **kwargs))]
    fn put(
        slf: &Bound<'_, Self>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        Self::call(slf, intern!(slf.py(), "PUT"), url, kwargs)
    }

    #[pyo3(signature = (url, **kwargs))]
    fn patch(
        slf: &Bound<'_, Self>,
        url: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<Call>> {
        Self::call(slf, intern!(slf.py(), "PATCH"), url, kwargs)
    }
}

impl AsyncClientCore {
    /// Takes a base URL where joining is certain; Python joins the others.
    fn set_base(slf: &Bound<'_, Self>, base_url: &str) -> PyResult<()> {
        let Some(plain) = PlainUrl::parse(base_url) else {
            return Ok(());
        };
        if plain.target.contains('?') || !Self::learn(slf, &plain)? {
            return Ok(());
        }
        let mut path = plain.target.to_owned();
        if !path.ends_with('/') {
            path.push('/');
        }
        let base = Base {
            origin: plain.origin.into(),
            path: path.into(),
        };
        if let Some(state) = slf.get().state.open(slf.py()).as_mut() {
            state.base = Some(base);
        }
        Ok(())
    }
}

fn is_upper_case(method: &str) -> bool {
    !method.bytes().any(|byte| byte.is_ascii_lowercase())
}
