//! `ServerConfig` of `towline/config`, which defines names and defaults, as read by the native side. A missing
//! attribute is an internal error, not one of the user.
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use towline_io::serve::forwarded::{ForwardedHeaders, Kind};
use towline_io::{AcmeSettings, Password};
use towline_proto::{DateSource, Http2Limits, Http3Limits, Limits};

use super::tickets::SharedTickets;

/// A duration in seconds, a Python `float` or `int`.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let seconds: f64 = value.extract()?;
        Duration::try_from_secs_f64(seconds)
            .map(Self)
            .map_err(|e| PyValueError::new_err(format!("{seconds} seconds: {e}")))
    }
}

/// `Bind` of `towline/config`: a listening socket that is already open, or an address to check, without a descriptor.
#[derive(FromPyObject, Clone, Debug)]
pub struct Bind {
    /// Negative: there is none.
    pub fd: i32,
    pub address: String,
    /// Serves only the metrics page.
    pub metrics: bool,
    /// A UDP socket for HTTP/3.
    pub udp: bool,
    /// The secret of all workers that share the port of a UDP socket.
    pub secret: Vec<u8>,
    /// Tickets that they share, with early data.
    pub tickets: SharedTickets,
    /// `None`: those of an address that has none of its own.
    pub settings: Option<AddressSettings>,
}

/// `Address` of `towline/config` with all its settings.
#[derive(FromPyObject, Clone, Debug, PartialEq, Eq)]
pub struct AddressSettings {
    /// Whether it has TLS, with the certificates of these files or by ACME.
    pub tls: bool,
    pub certfile: Vec<PathBuf>,
    pub keyfile: Vec<PathBuf>,
    /// The versions of HTTP: some of 1, 2 and 3.
    pub http: Vec<u8>,
    /// Clients are told about HTTP/3 on other addresses, if there is none on this one.
    pub announces_http3: bool,
    pub proxy_protocol: bool,
    pub forwarded_allow_ips: Vec<String>,
}

/// A secret that can be taken once; no copy stays in the options.
#[derive(Clone, Debug, Default)]
pub struct Secret(Option<Password>);

impl Secret {
    pub fn take(&mut self) -> Option<Password> {
        self.0.take()
    }
}

impl<'py> FromPyObject<'_, 'py> for Secret {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let text: Option<&str> = value.extract()?;
        Ok(Self(text.map(Password::new)))
    }
}

/// An enum whose values are words of an option.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $option:literal: $($(#[$variant_doc:meta])* $variant:ident = $words:pat,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl<'py> FromPyObject<'_, 'py> for $name {
            type Error = PyErr;

            fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
                match value.extract::<&str>()? {
                    $($words => Ok(Self::$variant),)*
                    other => Err(PyValueError::new_err(format!(
                        concat!($option, ": {:?} is not one of its values"), other
                    ))),
                }
            }
        }
    };
}

words! {
    /// Whether clients must present a certificate (`--ssl-cert-reqs`).
    ClientCertificate, "ssl_cert_reqs":
    None = "none",
    Optional = "optional",
    Required = "required",
}

words! {
    /// The oldest TLS version (`--ssl-min-version`).
    TlsVersion, "ssl_min_version":
    Tls12 = "1.2",
    Tls13 = "1.3",
}

words! {
    /// The requests that are offered `http.response.pathsend` (`--pathsend`).
    Pathsend, "pathsend":
    /// Requests that accept no content coding: no middleware would compress the file.
    Auto = "auto",
    Always = "on",
    Never = "off",
}

words! {
    /// The form of the logs (`--log-format`).
    LogFormat, "log_format":
    Text = "text",
    Json = "json",
}

/// Fields of an HTTP/2 or HTTP/3 request beyond `--limit-request-fields`: pseudo-headers and the parts of a split cookie.
const MORE_FIELDS: u32 = 28;

/// Every attribute that the native side needs; units as in `ServerConfig` (bytes, seconds).
#[derive(FromPyObject, Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // the user's switches, named as on the command line
pub struct Options {
    pub limit_request_line: usize,
    pub limit_request_fields: usize,
    pub limit_request_field_size: usize,
    pub limit_request_head: usize,
    pub limit_request_body: Option<u64>,
    pub limit_concurrency: Option<usize>,
    /// Requests of a client, in seconds, and at once (`--limit-rate`).
    pub rate: Option<(u32, u32, u32)>,
    pub limit_rate_key: String,
    pub limit_rate_exempt: Vec<String>,
    pub limit_connections: Option<u64>,
    pub limit_connections_per_client: Option<u64>,
    pub timeout_keep_alive: Seconds,
    pub timeout_drain_idle: Seconds,
    pub timeout_graceful_shutdown: Seconds,
    pub timeout_request_header: Seconds,
    pub timeout_request_body: Seconds,
    pub min_bytes_per_second: u64,
    pub backlog: u32,
    pub threads: usize,
    pub wsgi_request_buffer: u64,
    pub wsgi_response_buffer: u64,
    pub timeout_wsgi_client: Seconds,
    pub wsgi_websockets: usize,
    pub root_path: String,
    pub http2_max_concurrent_streams: usize,
    pub http2_initial_stream_window_size: usize,
    pub http2_initial_connection_window_size: usize,
    pub http2_max_headers_size: usize,
    pub http3_max_concurrent_streams: u32,
    pub http3_initial_stream_window_size: u32,
    pub http3_retry_handshakes: usize,
    pub http3_early_data: bool,
    pub http3_congestion: String,
    pub http3_alt_svc_max_age: u64,
    pub http3_alt_svc_port: Option<u16>,
    pub ws_max_size: usize,
    pub ws_ping_interval: Option<Seconds>,
    pub ws_ping_timeout: Option<Seconds>,
    pub ws_per_message_deflate: bool,
    pub ws: bool,
    pub pathsend: Pathsend,
    /// The names of `--acme`, and the folder of the store with their certificates.
    pub acme_names: Vec<String>,
    pub acme_folder: Option<PathBuf>,
    pub certificate_files: Vec<PathBuf>,
    pub ssl_keyfile_password: Secret,
    pub ssl_ca_certs: Option<PathBuf>,
    pub ssl_cert_reqs: ClientCertificate,
    pub ssl_crl: Vec<PathBuf>,
    pub ssl_min_version: TlsVersion,
    pub ssl_ciphers: Vec<String>,
    pub proxy_headers: bool,
    pub forwarded_headers: Vec<String>,
    pub queue_time: bool,
    pub access_log: Option<String>,
    pub access_log_format: String,
    pub log_format: LogFormat,
    pub access_log_logger: Option<String>,
    pub access_log_headers: Vec<String>,
    pub access_log_redact: Vec<String>,
    pub access_log_exclude: Vec<String>,
    pub access_log_sample: f64,
    pub access_log_slow: Option<Seconds>,
    pub request_id_header: Option<String>,
    #[pyo3(attribute("static"))]
    pub static_routes: Vec<(String, PathBuf)>,
    pub static_expires: u64,
    pub static_index: Option<String>,
    pub compress: Vec<String>,
    pub decompress_requests: Vec<String>,
    pub limit_decompressed_body: u64,
    pub metrics: bool,
    pub metrics_address: Option<String>,
    pub health_path: Option<String>,
    pub server_header: bool,
    pub date_header: bool,
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// 0: the port of an address with TLS.
    pub redirect_https: Option<u16>,
    pub strict_transport_security: Option<String>,
    /// Settings of an address that has none of its own.
    pub plain_settings: AddressSettings,
}

impl Options {
    /// Whether there are limits on clients, which have their state beside the counters of the workers.
    pub fn limits_clients(&self) -> bool {
        self.rate.is_some() || self.limits_connections()
    }

    pub fn limits_connections(&self) -> bool {
        self.limit_connections.is_some() || self.limit_connections_per_client.is_some()
    }

    /// Where the certificates of `--acme` are.
    pub fn acme(&self) -> Option<AcmeSettings> {
        Some(AcmeSettings {
            folder: self.acme_folder.clone()?,
            names: self.acme_names.clone(),
        })
    }

    /// The headers of proxies that are read; `None`: no headers.
    pub fn forwarded(&self) -> Option<ForwardedHeaders> {
        let reads = |name: &str| self.forwarded_headers.iter().any(|word| word == name);
        (self.proxy_headers && !reads("none")).then(|| ForwardedHeaders {
            kind: if reads("forwarded") {
                Kind::Rfc7239
            } else {
                Kind::XForwarded
            },
            host: reads("host"),
            port: reads("port"),
            prefix: reads("prefix"),
        })
    }

    /// The limits of the protocol core, from the options.
    pub fn limits(&self) -> Limits {
        let bytes = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Limits {
            max_start_line_bytes: bytes(self.limit_request_line),
            max_field_line_bytes: bytes(self.limit_request_field_size),
            max_head_bytes: bytes(self.limit_request_head),
            max_fields: bytes(self.limit_request_fields),
            max_body_bytes: self.limit_request_body,
            header_timeout: Some(self.timeout_request_header.0),
            body_timeout: Some(self.timeout_request_body.0),
            min_bytes_per_s: u32::try_from(self.min_bytes_per_second).unwrap_or(u32::MAX),
            keep_alive_timeout: Some(self.timeout_keep_alive.0),
            // Idle connections are closed well before the rest is cancelled.
            drain_idle_timeout: self
                .timeout_drain_idle
                .0
                .min(self.timeout_graceful_shutdown.0 / 2),
            date: self.date_header.then_some(DateSource(http_date)),
            http2: Http2Limits {
                max_concurrent_streams: bytes(self.http2_max_concurrent_streams),
                stream_window_bytes: bytes(self.http2_initial_stream_window_size),
                connection_window_bytes: bytes(self.http2_initial_connection_window_size),
                max_header_list_bytes: bytes(self.http2_max_headers_size),
                max_fields: bytes(self.limit_request_fields).saturating_add(MORE_FIELDS),
                ..Http2Limits::server()
            },
            http3: Http3Limits {
                max_concurrent_streams: self.http3_max_concurrent_streams,
                max_field_section_bytes: bytes(self.http2_max_headers_size),
                max_fields: bytes(self.limit_request_fields).saturating_add(MORE_FIELDS),
                ..Http3Limits::server()
            },
            ..Limits::server()
        }
    }
}

/// The `date` of a response that the protocol core makes itself.
fn http_date() -> [u8; 29] {
    let now = UNIX_EPOCH + Duration::from_secs(towline_io::unix_seconds());
    let mut date = [b' '; 29];
    let text = httpdate::fmt_http_date(now);
    date.copy_from_slice(text.as_bytes());
    date
}
