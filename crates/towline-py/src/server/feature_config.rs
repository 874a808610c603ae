//! From options to the features of `towline_io::serve::features`, the same for both interfaces: static files, metrics,
//! access log, compression and trusted proxies.
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use towline_io::coding::Coding;
use towline_io::serve::access_log::{DEFAULT_BUFFER_BYTES, Format, Sink, Writer};
use towline_io::serve::compress::{MIN_BYTES, Policy};
use towline_io::serve::features::FeatureConfig;
use towline_io::serve::files::{self, Mount};
use towline_io::serve::metrics::{SlotHandle, Slots, monotonic_ns};
use towline_io::serve::refusals::Refusals;

use super::options::Options;
use super::setup::trusted_peers;
use crate::errors;

/// The features that the options configure. `slot`: counters and heartbeat for the supervisor.
pub fn from_options(options: &Options, slot: Option<SlotHandle>) -> PyResult<FeatureConfig> {
    let trusted = if options.proxy_headers {
        Some(trusted_peers(options)?)
    } else {
        None
    };
    let settings = files::Options {
        expires: options.static_expires,
        index: options.static_index.clone(),
        ..files::Options::default()
    };
    let mount = |(route, directory): &(String, PathBuf)| {
        Mount::open(route, directory, settings.clone())
            .map_err(|error| errors::setup(&error, &format!("static: {}", directory.display())))
    };
    let codings: Vec<Coding> = options
        .compress
        .iter()
        .filter_map(|name| Coding::named(name.as_bytes()))
        .collect();
    // Without a supervisor the counters are those of this process.
    let slot = slot.or_else(|| {
        let slot = options.metrics.then(|| Slots::private(1).handle(0))??;
        slot.begin(std::process::id(), monotonic_ns());
        Some(slot)
    });
    let access_log = access_log(options)?;
    let refusals = Refusals::new(slot.clone(), access_log.clone());
    Ok(FeatureConfig {
        trusted: trusted.filter(|trusted| !trusted.is_empty()),
        mounts: options
            .static_routes
            .iter()
            .map(mount)
            .collect::<PyResult<_>>()?,
        compression: (!codings.is_empty()).then_some(Policy {
            codings,
            min_bytes: MIN_BYTES,
        }),
        access_log,
        refusals: Some(Arc::new(refusals)),
        slot,
        // With --metrics-address it is on that address only.
        metrics: options.metrics && options.metrics_address.is_none(),
        health_path: options.health_path.clone().map(String::into_bytes),
        ..FeatureConfig::default()
    })
}

fn access_log(options: &Options) -> PyResult<Option<(Arc<Format>, Writer)>> {
    let Some(place) = &options.access_log else {
        return Ok(None);
    };
    let sink = if place == "-" {
        Sink::Stdout
    } else {
        Sink::File(place.into())
    };
    let format = Format::compile(&options.access_log_format)
        .map_err(|error| PyValueError::new_err(format!("access_log_format: {error}")))?;
    let writer = Writer::new(sink, DEFAULT_BUFFER_BYTES)
        .map_err(|error| errors::setup(&error, &format!("access_log: {place}")))?;
    Ok(Some((Arc::new(format), writer)))
}
