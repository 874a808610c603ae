//! From options to the features of `towline_io::serve::features`, the same for both interfaces: static files, metrics,
//! access log, compression and trusted proxies.
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use towline_io::certificate_expiry;
use towline_io::coding::Coding;
use towline_io::serve::access_log::{
    DEFAULT_BUFFER_BYTES, Filter, Format, FormatOptions, LineSink, Rule, Sink, Writer,
};
use towline_io::serve::compress::{MIN_BYTES, Policy};
use towline_io::serve::features::FeatureConfig;
use towline_io::serve::features::request_body::RequestDecoding;
use towline_io::serve::files::{self, Mount};
use towline_io::serve::limits::{RateKey, RateLimit};
use towline_io::serve::metrics::{SlotHandle, Slots, monotonic_ns};
use towline_io::serve::refusals::Refusals;

use super::options::{LogFormat, Options};
use towline_py_common::errors;

/// The features that the options configure. `slot`: counters and heartbeat for the supervisor.
pub fn from_options(options: &Options, slot: Option<SlotHandle>) -> PyResult<FeatureConfig> {
    let settings = files::Options {
        expires: options.static_expires,
        index: options.static_index.clone(),
        ..files::Options::default()
    };
    let mount = |(route, directory): &(String, PathBuf)| {
        Mount::open(route, directory, settings.clone())
            .map_err(|error| errors::setup(&error, &format!("static: {}", directory.display())))
    };
    let codings = |names: &[String]| -> Vec<Coding> {
        let names = names.iter();
        names
            .filter_map(|name| Coding::named(name.as_bytes()))
            .collect()
    };
    let (encoded, decoded) = (
        codings(&options.compress),
        codings(&options.decompress_requests),
    );
    let max_bytes = options.limit_decompressed_body;
    // Without a supervisor the counters are those of this process.
    let slot = match slot {
        None if options.metrics || options.limits_clients() => {
            let slots =
                Slots::mapped(1, None).map_err(|error| errors::setup(&error, "counters"))?;
            let slot = slots.handle(0);
            slot.inspect(|slot| slot.begin(std::process::id(), monotonic_ns()))
        }
        given => given,
    };
    if let (Some(slot), Some(expiry)) = (&slot, first_expiry(&options.certificate_files)) {
        slot.certificate_expiry.store(expiry, Relaxed);
    }
    let access_log = access_log(options)?;
    let refusals = Refusals::new(slot.clone(), access_log.clone());
    Ok(FeatureConfig {
        overrides: options.request_id_header.is_some()
            || !decoded.is_empty()
            || options
                .forwarded()
                .is_some_and(|read| read.host || read.port || read.prefix)
            || options.queue_time,
        queue_time: options.queue_time,
        mounts: options
            .static_routes
            .iter()
            .map(mount)
            .collect::<PyResult<_>>()?,
        compression: (!encoded.is_empty()).then_some(Policy {
            codings: encoded,
            min_bytes: MIN_BYTES,
        }),
        decoding: (!decoded.is_empty()).then_some(RequestDecoding {
            codings: decoded,
            max_bytes: options
                .limit_request_body
                .map_or(max_bytes, |limit| limit.min(max_bytes)),
        }),
        access_log,
        refusals: Some(Arc::new(refusals)),
        rate_limit: rate_limit(options, slot.as_ref())?,
        slot,
        request_id: lower(options.request_id_header.as_deref()),
        build: build_labels(options),
        // With --metrics-address it is on that address only.
        metrics: options.metrics && options.metrics_address.is_none(),
        health_path: options.health_path.clone().map(String::into_bytes),
        acme_challenges: options.acme().map(|acme| acme.folder.join("http-01")),
        ..FeatureConfig::default()
    })
}

/// The first end of the validity of these certificates. A file that cannot be read is reported where it is loaded.
pub fn first_expiry(files: &[PathBuf]) -> Option<u64> {
    let expiries = files
        .iter()
        .filter_map(|file| certificate_expiry(file).ok()?);
    expiries.min()
}

fn rate_limit(options: &Options, slot: Option<&SlotHandle>) -> PyResult<Option<RateLimit>> {
    let (Some(rate), Some(memory)) = (options.rate, slot.and_then(|slot| slot.slots().limits()))
    else {
        return Ok(None);
    };
    let header = lower(options.limit_rate_key.strip_prefix("header:"));
    let key = header.map_or(RateKey::Address, RateKey::Header);
    let exempt = options.limit_rate_exempt.iter();
    let exempt = exempt.map(|path| path.as_bytes().into()).collect();
    let limit = RateLimit::new(rate, key, exempt, Arc::clone(memory));
    let out_of_range = || PyValueError::new_err("limit_rate: out of range");
    limit.map(Some).ok_or_else(out_of_range)
}

/// Labels of the metric `towline_build_info`.
fn build_labels(options: &Options) -> Vec<(&'static str, String)> {
    if !options.metrics {
        return Vec::new();
    }
    let python = Python::attach(|py| {
        let info = py.version_info();
        format!("{}.{}.{}", info.major, info.minor, info.patch)
    });
    vec![
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("python", python),
    ]
}

fn access_log(options: &Options) -> PyResult<Option<(Arc<Format>, Writer)>> {
    let is_default = options.access_log_format == DEFAULT_FORMAT;
    let mut format = match options.log_format {
        LogFormat::Json if is_default => "json".to_owned(),
        LogFormat::Json | LogFormat::Text => options.access_log_format.clone(),
    };
    let (name, sink) = match (&options.access_log_logger, &options.access_log) {
        (Some(name), _) => {
            let sink;
            (sink, format) = logger(name, &format)?;
            (name.as_str(), Sink::Lines(sink))
        }
        (None, Some(name)) if name == "-" => ("stdout", Sink::Stdout),
        (None, Some(name)) if !name.is_empty() => (name.as_str(), Sink::File(name.into())),
        (None, _) => return Ok(None),
    };
    let boxed = |names: &[String]| names.iter().filter_map(|name| lower(Some(name))).collect();
    let format_options = FormatOptions {
        redact: boxed(&options.access_log_redact),
        headers: boxed(&options.access_log_headers),
        request_id: lower(options.request_id_header.as_deref()),
        filter: Filter {
            exclude: options
                .access_log_exclude
                .iter()
                .filter_map(|rule| Rule::parse(rule))
                .collect(),
            sample: (options.access_log_sample < 1.0).then_some(options.access_log_sample),
            slow: options.access_log_slow.map(|slow| slow.0),
        },
    };
    let format = Format::compile_with(&format, format_options)
        .map_err(|error| PyValueError::new_err(format!("access_log_format: {error}")))?;
    let writer = Writer::new(sink, DEFAULT_BUFFER_BYTES)
        .map_err(|error| errors::setup(&error, &format!("access_log: {name}")))?;
    Ok(Some((Arc::new(format), writer)))
}

/// The default of `--access-log-format` (`GUNICORN_LOG_FORMAT` of `towline/config`).
const DEFAULT_FORMAT: &str = r#"%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s""#;

fn lower(name: Option<&str>) -> Option<Box<[u8]>> {
    name.map(|name| name.to_ascii_lowercase().into_bytes().into_boxed_slice())
}

/// A sink that passes each line to a Python logger, and the format that the sink needs (`towline.server.access_records`).
/// It runs on the writer's thread, so the event loop does not wait for the handlers.
fn logger(name: &str, format: &str) -> PyResult<(LineSink, String)> {
    let (log, format): (Py<PyAny>, String) = Python::attach(|py| {
        let records = py.import("towline.server.access_records")?;
        records.call_method1("writer", (name, format))?.extract()
    })?;
    let sink = LineSink(Arc::new(move |lines: &[u8]| {
        // `None` while the interpreter ends.
        Python::try_attach(|py| {
            for line in lines
                .split(|&byte| byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                let line = String::from_utf8_lossy(line);
                if let Err(error) = log.call1(py, (line,)) {
                    error.write_unraisable(py, None);
                }
            }
        });
    }));
    Ok((sink, format))
}
