//! HTTP/3 on the UDP sockets of a server.
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use towline_io::Engine;
use towline_io::quic::{
    Congestion, Endpoint, Forwarder, QuicLimits, UdpSocket, WorkerSecret, Workers,
    server_config_sharing,
};
use towline_io::serve::features::FeatureConfig;
use towline_io::serve::metrics::SlotHandle;

use super::addresses::Addresses;
use super::options::{Bind, Options};
use towline_py_common::errors;

/// Time after the keep-alive timeout for which QUIC waits. HTTP/3, which can tell clients, closes first.
const IDLE_MARGIN: Duration = Duration::from_secs(15);

/// Adds an endpoint for each UDP socket, on duplicates of the descriptors.
pub fn listen<S: Default>(
    engine: &mut Engine<S>,
    addresses: &mut Addresses<'_>,
    features: &FeatureConfig,
) -> PyResult<()> {
    let binds: Vec<&Bind> = addresses.over_udp().collect();
    let workers = match (&features.slot, secret(&binds)) {
        (Some(slot), Some(secret)) => {
            let workers = Workers::new(&secret, slot.clone())
                .map(Arc::new)
                .and_then(|workers| {
                    engine.set_workers(Arc::clone(&workers))?;
                    Ok(workers)
                });
            let workers = workers.map_err(|error| errors::setup(&error, "HTTP/3"))?;
            Some((secret, workers))
        }
        _ => None,
    };
    let limits = limits(addresses.options);
    for (index, bind) in binds.into_iter().enumerate() {
        let conn_config = addresses.conn_config(bind)?;
        let Some(tls) = &conn_config.tls else {
            return Err(PyValueError::new_err("HTTP/3 needs certificates"));
        };
        let tickets = bind.tickets.0.clone();
        let mut config = server_config_sharing(tls, &limits, tickets)
            .map_err(|error| errors::setup(&error, "HTTP/3"))?;
        if let Some((secret, _)) = &workers {
            secret.share_tokens(&mut config);
        }
        let endpoint = |socket| match &workers {
            Some((_, workers)) => {
                Endpoint::of_worker(socket, config, limits.clone(), workers, index)
            }
            None => Endpoint::new(socket, Some(config), limits.clone()),
        };
        socket(bind, &limits)
            .map(endpoint)
            .and_then(|endpoint| engine.add_endpoint(endpoint, Arc::new(conn_config)))
            .map_err(|error| errors::setup(&error, &format!("{} (UDP)", bind.address)))?;
    }
    Ok(())
}

/// Forwards what arrives at the UDP sockets to workers that are ready; `None` without such sockets.
pub fn forwarder(binds: &[Bind], slot: SlotHandle) -> io::Result<Option<Forwarder>> {
    let over_udp: Vec<&Bind> = binds.iter().filter(|bind| bind.udp).collect();
    let Some(secret) = secret(&over_udp) else {
        return Ok(None);
    };
    let limits = QuicLimits::server();
    let sockets = over_udp.iter().map(|bind| socket(bind, &limits));
    Forwarder::start(sockets.collect::<io::Result<_>>()?, &secret, slot).map(Some)
}

/// The secret of workers that share the ports.
fn secret(binds: &[&Bind]) -> Option<WorkerSecret> {
    let secret = binds.first()?.secret.as_slice().try_into().ok()?;
    Some(WorkerSecret::new(secret))
}

fn socket(bind: &Bind, limits: &QuicLimits) -> io::Result<UdpSocket> {
    // SAFETY: the descriptor is borrowed for the one call that duplicates it.
    let fd = unsafe { BorrowedFd::borrow_raw(bind.fd) };
    let own: OwnedFd = fd.try_clone_to_owned()?;
    UdpSocket::inherited(own, limits.socket_buffer_bytes)
}

fn limits(options: &Options) -> QuicLimits {
    let streams = options.http3_max_concurrent_streams;
    let window = options.http3_initial_stream_window_size;
    QuicLimits {
        max_bidi_streams: streams,
        stream_window_bytes: window,
        // Room for all streams, so that those that are not read do not stop the others.
        connection_window_bytes: streams.saturating_mul(window),
        idle_timeout: options.timeout_keep_alive.0 + IDLE_MARGIN,
        retry_from_handshakes: options.http3_retry_handshakes,
        early_data: options.http3_early_data,
        congestion: match options.http3_congestion.as_str() {
            "bbr" => Congestion::Bbr,
            _ => Congestion::Cubic,
        },
        ..QuicLimits::server()
    }
}
