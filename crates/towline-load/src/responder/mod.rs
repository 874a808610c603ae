//! The responder: a native HTTP server on the engine, for client benchmarks and tests.
//!
//! The responder prints its addresses, one per line, and serves until SIGTERM, SIGINT, or the end of a piped
//! standard input, so that it ends with the process that started it. A line of that input is replied to by one with its
//! version and CPU time: a client that is measured on another machine cannot read them in `/proc`.
//!
//! HTTP/1.1 and HTTP/2 share its ports: by the first bytes, under TLS by ALPN; `--protocol` selects one
//! of them. HTTP/3 has the UDP port of the same number with `--http3`.
//!
//! The responder serves the scenarios of the catalogue for servers (`routes/catalogue.rs`), and these targets:
//!
//! | target | response |
//! |---|---|
//! | `/req`, `/req?ms=N` | 2,000 bytes, chunked, 10 ms (or N) later |
//! | `/upload` | the number of bytes in the body |
//! | `/after` | hello, after the whole request |
//! | `POST /json` | the request's JSON, after all of it |
//! | `/echo` | the request's body, as it arrives |
//! | `/bytes?n=N` | N bytes, with `&chunked` chunked |
//! | `/endless`, `/endless?chunked` | a tebibyte |
//! | `/sse?per_s=N&n=COUNT&bytes=SIZE` | server-sent events; without COUNT, endless |
//! | `/delay?ms=N`, `/delay?us=N` | hello, after this delay |
//! | `/chunked` | `Hello, World!` in two chunks |
//! | `/ws` | a WebSocket that echoes messages, compressed if the client offers it |
//! | `/file?path=P` | the file P, by `sendfile` |
//! | `/injected` | the faults injected so far, as JSON: see `routes/behaviour.rs` |
//!
//! All targets take the queries of `routes/injection.rs`: delays and faults in a known pattern.

mod options;
mod routes;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::shutdown::ShutdownSignal;
use crate::usage::process_cpu;
use options::{Command, Options};
use routes::{Jobs, State};
use towline_io::quic::{Endpoint, QuicLimits, UdpSocket, server_config};
use towline_io::{ConnConfig, DEFAULT_BACKLOG, Engine, EngineConfig, Listener, TlsConfig};
use towline_proto::{Limits, ProtocolPolicy};

/// Runs the program and returns the exit status: 0, or 2 if it could not serve.
pub fn responder_main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let served = match Options::parse(args) {
        Ok(Command::Help) => io::stdout().write_all(options::HELP.as_bytes()),
        Ok(Command::Serve(mut options)) => serve(&mut options),
        Err(why) => {
            eprintln!("towline-responder: {why} (see --help)");
            return 2;
        }
    };
    match served {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("towline-responder: {error}");
            2
        }
    }
}

fn serve(options: &mut Options) -> io::Result<()> {
    let mut engine = Engine::<Jobs>::new(EngineConfig {
        max_ready_per_turn: 256,
        turn_time: Duration::from_millis(5),
        ..EngineConfig::default()
    })?;
    let service = Arc::new(ConnConfig {
        limits: Arc::new(limits(options)),
        protocols: options.protocols(),
        tls: options.tls.as_ref().map(TlsConfig::load).transpose()?,
        ..ConnConfig::default()
    });
    let shutdown = {
        let remote = engine.waker();
        ShutdownSignal::install(move || drop(remote.wake()), introduce)
    };
    let mut out = io::stdout();
    for spec in &options.binds {
        for listener in Listener::open(spec, DEFAULT_BACKLOG)? {
            let addr = listener.local_addr()?;
            engine.add_listener(listener, Arc::clone(&service))?;
            if let (true, Some(tls), Some(addr)) = (options.http3, &service.tls, addr.inet()) {
                let endpoint = endpoint(addr, tls, options)?;
                let service = Arc::new(http3_service(options));
                engine.add_endpoint(endpoint, service)?;
            }
            // The reader of the line may connect at once, over TCP and UDP.
            writeln!(out, "{addr}")?;
        }
    }
    out.flush()?;
    towline_io::generator::exact_timers();
    let mut state = State::new(options.behaviour());
    while !shutdown.is_requested() {
        routes::turn(&mut engine, &mut state)?;
        if let Some(notice) = engine.take_notice() {
            eprintln!("towline-responder: {notice:?}");
        }
    }
    Ok(())
}

/// Replies to the process that started it.
fn introduce() {
    let reply = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cpu_s": process_cpu().as_secs_f64(),
    });
    // The reader may have ended.
    drop(writeln!(io::stdout(), "{reply}"));
}

fn http3_service(options: &Options) -> ConnConfig {
    ConnConfig {
        limits: Arc::new(limits(options)),
        protocols: ProtocolPolicy::Http3,
        ..ConnConfig::default()
    }
}

fn endpoint(addr: SocketAddr, tls: &TlsConfig, options: &Options) -> io::Result<Endpoint> {
    let limits = QuicLimits {
        max_bidi_streams: options.max_streams.unwrap_or(1024),
        // Clients under measurement are stopped for minutes between their slices.
        idle_timeout: Duration::from_secs(3600),
        // A storm of handshakes is a load here, not an attack.
        max_handshakes: 65_536,
        retry_from_handshakes: 65_536,
        early_data: options.early_data,
        early_data_tickets: 65_536,
        ..QuicLimits::server()
    };
    let config = server_config(tls, &limits)?;
    let socket = UdpSocket::bind(addr, limits.socket_buffer_bytes)?;
    Ok(Endpoint::new(socket, Some(config), limits))
}

/// No timeouts: clients under measurement are stopped for minutes between their slices.
fn limits(options: &Options) -> Limits {
    let mut limits = Limits {
        header_timeout: None,
        body_timeout: None,
        min_bytes_per_s: 0,
        keep_alive_timeout: None,
        ..Limits::server()
    };
    limits.http2.settings_timeout = None;
    // A thousand concurrent streams are a load here, not an attack.
    limits.http2.max_concurrent_streams = options.max_streams.unwrap_or(1024);
    // QUIC counts a stream until its end is acknowledged, HTTP/3 until it is sent: QUIC's limit comes first.
    limits.http3.max_concurrent_streams = limits.http2.max_concurrent_streams;
    limits
}
