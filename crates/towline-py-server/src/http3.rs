//! HTTP/3 on the UDP sockets of a server.
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use towline_io::quic::{
    Endpoint, Forwarder, QuicLimits, UdpSocket, WorkerSecret, Workers, server_config_sharing,
};
use towline_io::serve::metrics::SlotHandle;
use towline_io::{ConnConfig, Engine};
use towline_proto::ProtocolPolicy;

use super::options::{Bind, Options};
use towline_py_common::errors;

/// Time after the keep-alive timeout for which QUIC waits. HTTP/3, which can tell clients, closes first.
const IDLE_MARGIN: Duration = Duration::from_secs(15);

/// Adds an endpoint for each UDP socket, on duplicates of the descriptors. `tcp`: the configuration of the application's
/// connections over TCP.
pub fn listen<S: Default>(
    engine: &mut Engine<S>,
    options: &Options,
    binds: &[&Bind],
    tcp: &ConnConfig,
) -> PyResult<()> {
    let Some(tls) = &tcp.tls else {
        return Err(PyValueError::new_err("HTTP/3 needs certificates"));
    };
    let service = Arc::new(ConnConfig {
        limits: Arc::clone(&tcp.limits),
        protocols: ProtocolPolicy::Http3,
        meter: tcp.meter.clone(),
        refusals: tcp.refusals.clone(),
        ..ConnConfig::default()
    });
    let limits = limits(options);
    let tickets = binds.first().and_then(|bind| bind.tickets.0.clone());
    let mut config = server_config_sharing(tls, &limits, tickets)
        .map_err(|error| errors::setup(&error, "HTTP/3"))?;
    let workers = match (&tcp.meter, secret(binds)) {
        (Some(slot), Some(secret)) => {
            secret.share_tokens(&mut config);
            let workers = Workers::new(&secret, slot.clone())
                .map(Arc::new)
                .and_then(|workers| {
                    engine.set_workers(Arc::clone(&workers))?;
                    Ok(workers)
                });
            Some(workers.map_err(|error| errors::setup(&error, "HTTP/3"))?)
        }
        _ => None,
    };
    for (index, bind) in binds.iter().enumerate() {
        let endpoint = |socket| match &workers {
            Some(workers) => {
                Endpoint::of_worker(socket, config.clone(), limits.clone(), workers, index)
            }
            None => Endpoint::new(socket, Some(config.clone()), limits.clone()),
        };
        socket(bind, &limits)
            .map(endpoint)
            .and_then(|endpoint| engine.add_endpoint(endpoint, Arc::clone(&service)))
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
        ..QuicLimits::server()
    }
}

/// The value of `alt-svc` for clients of HTTP/1 and HTTP/2.
pub fn alt_svc(options: &Options, binds: &[&Bind]) -> Option<Vec<u8>> {
    let max_age = options.http3_alt_svc_max_age;
    let (_, own) = binds.first()?.address.rsplit_once(':')?;
    let own = own.parse().ok()?;
    let port = options.http3_alt_svc_port.unwrap_or(own);
    (max_age > 0).then(|| format!("h3=\":{port}\"; ma={max_age}").into_bytes())
}
