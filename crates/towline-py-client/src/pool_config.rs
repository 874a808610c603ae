//! The configuration of a pool, read by attribute from `towline.client.options`.
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString};
use towline_io::client::{
    Backoff, CallOptions, ClientDriverConfig, Credentials, DialConfig, FlushPolicy, HostOverrides,
    Http3, Http3Policy, Keepalive, PoolLimits, Proxy, ProxyScheme, Route, StaleRetry, Timeouts,
};
use towline_io::{
    ClientTls, ClientTlsSettings, EngineConfig, Identity, MinVersion, Password, Trust,
};
use towline_proto::{Limits, ProtocolPolicy};

use towline_py_common::errors::ConfigError;

/// The configuration of a pool.
#[derive(Debug)]
pub struct PoolConfig {
    /// For the driver of each event loop; the synchronous pool uses its parts.
    pub driver: ClientDriverConfig,
    pub defaults: CallOptions,
    pub tls: Arc<ClientTls>,
    /// Sent as SNI and verified instead of the URL's host.
    pub server_name: Option<String>,
    pub proxy: Option<Arc<Proxy>>,
    pub uds: Option<PathBuf>,
    pub local_address: Option<IpAddr>,
    pub max_response_size: Option<u64>,
    pub max_decompressed_size: Option<u64>,
}

impl PoolConfig {
    /// The options of one call: `None` is the pool's default.
    pub fn call_options(
        &self,
        timeout: Option<&Bound<'_, PyAny>>,
        stale: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<CallOptions> {
        let mut options = self.defaults;
        if let Some(timeout) = timeout {
            options.timeouts = timeouts_of_tuple(timeout)?;
        }
        if let Some(stale) = stale {
            options.stale = self::stale(stale)?;
        }
        Ok(options)
    }

    /// From a `PoolOptions`.
    pub fn read(options: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = options.py();
        let local_address: Option<String> =
            options.getattr(intern!(py, "local_address"))?.extract()?;
        let retries = options.getattr(intern!(py, "retries"))?;
        let proxy = options.getattr(intern!(py, "proxy"))?;
        let tls = options.getattr(intern!(py, "tls"))?;
        Ok(Self {
            driver: ClientDriverConfig {
                engine: engine(),
                pool: pool_limits(&options.getattr(intern!(py, "limits"))?)?,
                dial: Arc::new(dial(options)?),
                limits: Arc::new(wire_limits(options)?),
                flush: FlushPolicy::Manual,
            },
            defaults: CallOptions {
                timeouts: timeouts(&options.getattr(intern!(py, "timeout"))?)?,
                stale: stale(&retries.getattr(intern!(py, "stale"))?)?,
                connect_retries: retries.getattr(intern!(py, "connect"))?.extract()?,
                backoff: backoff(&retries)?,
            },
            tls: client_tls(&tls, options.getattr(intern!(py, "check_tls"))?.extract()?)?,
            server_name: match tls.getattr_opt(intern!(py, "server_name"))? {
                Some(name) => name.extract()?,
                None => None,
            },
            proxy: if proxy.is_none() {
                None
            } else {
                Some(Arc::new(read_proxy(&proxy)?))
            },
            uds: options.getattr(intern!(py, "uds"))?.extract()?,
            local_address: local_address.map(|text| address(&text)).transpose()?,
            max_response_size: options
                .getattr(intern!(py, "max_response_size"))?
                .extract()?,
            max_decompressed_size: options
                .getattr(intern!(py, "max_decompressed_size"))?
                .extract()?,
        })
    }

    /// Returns the route to an origin. `host` is in the form of [`Route::host`].
    pub fn route(&self, secure: bool, host: &str, port: u16, sni: Option<&str>) -> Route {
        Route {
            secure,
            host: host.into(),
            port,
            uds: self.uds.clone(),
            proxy: self.proxy.clone(),
            tls: Some(Arc::clone(&self.tls)),
            local_address: self.local_address,
            sni: sni.or(self.server_name.as_deref()).map(Into::into),
            http1_only: false,
            websocket: false,
            alternative: None,
        }
    }
}

/// With many connections a turn of 16 spends most of its time in the loop around it; 64 are read and stepped within
/// half a millisecond.
fn engine() -> EngineConfig {
    EngineConfig {
        turn_time: Duration::from_micros(300),
        ..EngineConfig::default()
    }
}

fn address(text: &str) -> PyResult<IpAddr> {
    text.parse()
        .map_err(|_| ConfigError::new_err(format!("local_address: not an IP address: {text:?}")))
}

/// From the attributes of a `Timeout`, named as in [`Timeouts`].
pub fn timeouts(timeout: &Bound<'_, PyAny>) -> PyResult<Timeouts> {
    let py = timeout.py();
    Ok(Timeouts {
        connect: seconds(&timeout.getattr(intern!(py, "connect"))?)?,
        read: seconds(&timeout.getattr(intern!(py, "read"))?)?,
        write: seconds(&timeout.getattr(intern!(py, "write"))?)?,
        pool: seconds(&timeout.getattr(intern!(py, "pool"))?)?,
        total: seconds(&timeout.getattr(intern!(py, "total"))?)?,
    })
}

/// From a tuple `(connect, read, write, pool, total)`.
pub fn timeouts_of_tuple(tuple: &Bound<'_, PyAny>) -> PyResult<Timeouts> {
    let item = |index: usize| seconds(&tuple.get_item(index)?);
    Ok(Timeouts {
        connect: item(0)?,
        read: item(1)?,
        write: item(2)?,
        pool: item(3)?,
        total: item(4)?,
    })
}

/// From a number of seconds, or None.
pub fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    if value.is_none() {
        return Ok(None);
    }
    let seconds: f64 = value.extract()?;
    // A value that a `Duration` cannot hold means no limit.
    Duration::try_from_secs_f64(seconds)
        .map(Some)
        .or_else(|_| match seconds {
            seconds if seconds > 0.0 => Ok(None),
            _ => Err(PyValueError::new_err(
                "timeout: seconds must not be negative",
            )),
        })
}

/// From `False`, `True` or `"any"`, or the name of a variant.
fn stale(value: &Bound<'_, PyAny>) -> PyResult<StaleRetry> {
    if let Ok(choice) = value.extract::<bool>() {
        return Ok(if choice {
            StaleRetry::Idempotent
        } else {
            StaleRetry::Never
        });
    }
    match value.extract::<&str>()? {
        "any" => Ok(StaleRetry::Any),
        "idempotent" => Ok(StaleRetry::Idempotent),
        "never" => Ok(StaleRetry::Never),
        other => Err(PyValueError::new_err(format!("stale: {other:?}"))),
    }
}

fn backoff(retries: &Bound<'_, PyAny>) -> PyResult<Backoff> {
    let py = retries.py();
    let time = |name: &Bound<'_, pyo3::types::PyString>| seconds(&retries.getattr(name)?);
    Ok(Backoff {
        first: time(intern!(py, "backoff"))?.unwrap_or_default(),
        longest: time(intern!(py, "max_delay"))?.unwrap_or(Duration::MAX),
        jitter: retries.getattr(intern!(py, "jitter"))?.extract()?,
    })
}

fn pool_limits(limits: &Bound<'_, PyAny>) -> PyResult<PoolLimits> {
    let py = limits.py();
    let count = |name: &Bound<'_, pyo3::types::PyString>| -> PyResult<usize> {
        Ok(limits
            .getattr(name)?
            .extract::<Option<usize>>()?
            .unwrap_or(usize::MAX))
    };
    Ok(PoolLimits {
        max_connections: count(intern!(py, "max_connections"))?,
        max_connections_per_host: count(intern!(py, "max_connections_per_host"))?,
        max_keepalive: count(intern!(py, "max_keepalive_connections"))?,
        keepalive_expiry: seconds(&limits.getattr(intern!(py, "keepalive_expiry"))?)?,
        max_connection_age: seconds(&limits.getattr(intern!(py, "max_connection_age"))?)?,
        max_queue: limits.getattr(intern!(py, "max_queue"))?.extract()?,
    })
}

/// The largest window there is (RFC 9113 6.9.1).
const MAX_WINDOW: u32 = 0x7fff_ffff;

/// Half of the default read timeout.
const PING_INTERVAL: Duration = Duration::from_secs(30);

fn wire_limits(options: &Bound<'_, PyAny>) -> PyResult<Limits> {
    let py = options.py();
    let mut limits = Limits::client();
    let head: u32 = options.getattr(intern!(py, "max_header_size"))?.extract()?;
    limits.max_head_bytes = head;
    limits.max_field_line_bytes = head;
    let count = |name: &Bound<'_, PyString>| -> PyResult<u32> {
        let count: Option<u32> = options.getattr(name)?.extract()?;
        Ok(count.unwrap_or(u32::MAX))
    };
    limits.max_fields = count(intern!(py, "max_header_count"))?;
    limits.max_interim_responses = count(intern!(py, "max_interim_responses"))?;
    limits.http2.max_fields = limits.max_fields;
    limits.http3.max_fields = limits.max_fields;
    limits.http3.max_field_section_bytes = head;
    let encoded = limits.http3.max_encoded_section_bytes;
    limits.http3.max_encoded_section_bytes = encoded.max(head.saturating_mul(2));
    limits.window_bytes = options.getattr(intern!(py, "stream_window"))?.extract()?;
    let http2 = &mut limits.http2;
    http2.max_header_list_bytes = head;
    // A larger block fails all calls of the connection; a head that is only too long fails its own call.
    http2.max_header_block_bytes = http2.max_header_block_bytes.max(head.saturating_mul(2));
    http2.stream_window_bytes = u32::try_from(limits.window_bytes)
        .unwrap_or(MAX_WINDOW)
        .min(MAX_WINDOW);
    let most: usize = options
        .getattr(intern!(py, "max_stream_window"))?
        .extract()?;
    http2.max_stream_window_bytes = u32::try_from(most).unwrap_or(MAX_WINDOW).min(MAX_WINDOW);
    // Many calls may share a connection: check with PING that the peer still responds.
    http2.ping_interval = Some(PING_INTERVAL);
    Ok(limits)
}

fn dial(options: &Bound<'_, PyAny>) -> PyResult<DialConfig> {
    let py = options.py();
    let keepalive: Option<(u64, u64, u32)> =
        options.getattr(intern!(py, "tcp_keepalive"))?.extract()?;
    let delay = seconds(&options.getattr(intern!(py, "happy_eyeballs_delay"))?)?;
    let mut overrides = HostOverrides::default();
    let resolve = options.getattr(intern!(py, "resolve"))?;
    for pair in resolve.call_method0(intern!(py, "items"))?.try_iter()? {
        let (host, addresses): (String, Vec<String>) = pair?.extract()?;
        overrides
            .add(&host, addresses.iter().map(String::as_str))
            .map_err(|message| ConfigError::new_err(format!("resolve: {message}")))?;
    }
    let mut dial = DialConfig {
        overrides,
        tcp_keepalive: keepalive.map(|(idle, interval, count)| Keepalive {
            idle: Duration::from_secs(idle),
            interval: Duration::from_secs(interval),
            count,
        }),
        ..DialConfig::default()
    };
    if let Some(delay) = delay {
        dial.happy_eyeballs_delay = delay;
    }
    let http1: bool = options.getattr(intern!(py, "http1"))?.extract()?;
    let http2: bool = options.getattr(intern!(py, "http2"))?.extract()?;
    let protocols = match (http1, http2) {
        (false, true) => ProtocolPolicy::Http2,
        (true, true) => ProtocolPolicy::Either,
        (true, false) => ProtocolPolicy::Http1,
        (false, false) => ProtocolPolicy::Http3,
    };
    dial.http3 = http3(options, protocols)?.map(Arc::new);
    dial.quic.early_data = options.getattr(intern!(py, "early_data"))?.extract()?;
    let most: usize = options
        .getattr(intern!(py, "max_stream_window"))?
        .extract()?;
    let least: usize = options.getattr(intern!(py, "stream_window"))?.extract()?;
    let window = most.min(MAX_HTTP3_WINDOW).max(least);
    dial.quic.stream_window_bytes = u32::try_from(window).unwrap_or(MAX_WINDOW);
    Ok(dial.with_protocols(protocols))
}

/// The window of a response over HTTP/3, which cannot grow: 80 Mbit/s at 100 ms.
const MAX_HTTP3_WINDOW: usize = 1024 * 1024;

/// HTTP/3 of the pool. `None`: it is off, or the pool is for a proxy.
fn http3(options: &Bound<'_, PyAny>, protocols: ProtocolPolicy) -> PyResult<Option<Http3>> {
    let py = options.py();
    let http3 = options.getattr(intern!(py, "http3"))?;
    if !http3.is_truthy()? || !options.getattr(intern!(py, "proxy"))?.is_none() {
        return Ok(None);
    }
    let policy = match protocols {
        ProtocolPolicy::Http3 => Http3Policy::Only,
        _ if http3.is_instance_of::<PyString>() => Http3Policy::Prior,
        _ => Http3Policy::Advertised,
    };
    let alt_svc = options.getattr(intern!(py, "alt_svc"))?;
    let http3 = if alt_svc.is_none() {
        Ok(Http3::new(policy))
    } else if alt_svc.is_instance_of::<PyString>() {
        Http3::with_file(policy, alt_svc.extract()?)
    } else {
        Http3::with_known(policy, &alt_svc.extract::<Vec<_>>()?)
    };
    http3
        .map(Some)
        .map_err(|message| ConfigError::new_err(format!("alt_svc: {message}")))
}

/// A `TLS` or an `ssl.SSLContext`. `check`: reads its files now, and raises `ConfigError`.
pub fn client_tls(tls: &Bound<'_, PyAny>, check: bool) -> PyResult<Arc<ClientTls>> {
    static SSL_CONTEXT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = tls.py();
    // A program that has an SSLContext has imported `ssl`; importing it here would take long.
    let modules = py.import("sys")?.getattr("modules")?;
    if modules.contains("ssl")? {
        let class = SSL_CONTEXT.import(py, "ssl", "SSLContext")?;
        if tls.is_instance(class)? {
            return Ok(Arc::new(ClientTls::external(super::ssl_context::context(
                tls,
            ))));
        }
    }
    let settings = tls_settings(tls)?;
    let made = match tls.getattr_opt(intern!(py, "legacy_context"))? {
        Some(make) => ClientTls::with_legacy(settings, super::ssl_context::context_of(make)),
        None => ClientTls::new(settings),
    };
    if check {
        made.check()
            .map_err(|message| ConfigError::new_err(format!("tls: {message}")))?;
    }
    Ok(Arc::new(made))
}

fn tls_settings(tls: &Bound<'_, PyAny>) -> PyResult<ClientTlsSettings> {
    let py = tls.py();
    let verify: bool = tls.getattr(intern!(py, "verify"))?.extract()?;
    let trust: String = tls.getattr(intern!(py, "trust"))?.extract()?;
    let trust = match (verify, trust.as_str()) {
        (false, _) => Trust::Insecure,
        (_, "system") => Trust::System,
        (_, "platform") => Trust::Platform,
        (_, "environment") => Trust::Environment,
        (_, "certifi") => Trust::Path(certifi(py)?),
        (_, path) => Trust::Path(path.into()),
    };
    let fallback = match &trust {
        Trust::System | Trust::Platform => certifi(py).ok(),
        _ => None,
    };
    let cert: Option<PathBuf> = tls.getattr(intern!(py, "cert"))?.extract()?;
    let password: Option<String> = tls.getattr(intern!(py, "password"))?.extract()?;
    let key_file: Option<PathBuf> = tls.getattr(intern!(py, "key"))?.extract()?;
    let min_version: String = tls.getattr(intern!(py, "min_version"))?.extract()?;
    Ok(ClientTlsSettings {
        trust,
        fallback,
        identity: cert.map(|cert_file| Identity {
            cert_file,
            key_file,
            key_password: password.map(Password::new),
        }),
        min_version: if min_version == "1.3" {
            MinVersion::Tls13
        } else {
            MinVersion::Tls12
        },
        never_resume: false,
    })
}

fn certifi(py: Python<'_>) -> PyResult<PathBuf> {
    py.import("certifi")?.call_method0("where")?.extract()
}

fn read_proxy(proxy: &Bound<'_, PyAny>) -> PyResult<Proxy> {
    let py = proxy.py();
    let scheme: String = proxy.getattr(intern!(py, "scheme"))?.extract()?;
    let scheme = match scheme.as_str() {
        "http" => ProxyScheme::Http,
        "https" => ProxyScheme::Https,
        "socks5" => ProxyScheme::Socks5,
        "socks5h" => ProxyScheme::Socks5h,
        other => return Err(ConfigError::new_err(format!("proxy: scheme {other:?}"))),
    };
    let host: String = proxy.getattr(intern!(py, "host"))?.extract()?;
    let mut read = Proxy::new(
        scheme,
        &host,
        proxy.getattr(intern!(py, "port"))?.extract()?,
    );
    let auth: Option<(Bound<'_, PyBytes>, Bound<'_, PyBytes>)> =
        proxy.getattr(intern!(py, "raw_auth"))?.extract()?;
    read.credentials = auth.map(|(user, password)| {
        Credentials::new(user.as_bytes().to_vec(), password.as_bytes().to_vec())
    });
    for pair in proxy.getattr(intern!(py, "headers"))?.try_iter()? {
        let (name, value): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = pair?.extract()?;
        read.headers
            .push((name.as_bytes().into(), value.as_bytes().into()));
    }
    let variable: Option<String> = proxy.getattr(intern!(py, "variable"))?.extract()?;
    read.variable = variable.map(Into::into);
    let tls = proxy.getattr(intern!(py, "tls"))?;
    if !tls.is_none() {
        let check = tls.getattr_opt(intern!(py, "names_files"))?;
        let check = check.is_some_and(|names_files| names_files.is_truthy().unwrap_or(false));
        read.tls = Some(client_tls(&tls, check)?);
    }
    Ok(read)
}
