//! A native HTTP responder on the engine: the upstream of benches and tests.
//!
//! It prints its addresses, one per line, and serves until SIGTERM, SIGINT, or the end of its standard
//! input where that is a pipe: whoever started it cannot leave it behind.
//!
//! HTTP/1.1 and HTTP/2 share its ports: by the first bytes, under TLS by ALPN; `--protocol` leaves one of them.
//!
//! It answers the scenarios of the catalogue for servers (`routes/catalogue.rs`), and besides:
//!
//! | target | answer |
//! |---|---|
//! | `/req`, `/req?ms=N` | 2,000 bytes, chunked, 10 ms (or N) later |
//! | `/upload` | how many bytes the body had |
//! | `/after` | hello, when the whole request has come |
//! | `POST /json` | the request's JSON, when all of it has come |
//! | `/echo` | the request's body, as it comes |
//! | `/bytes?n=N` | N bytes, with `&chunked` chunked |
//! | `/endless`, `/endless?chunked` | a tebibyte |
//! | `/sse?per_s=N&n=COUNT&bytes=SIZE` | server-sent events; none of COUNT: without end |
//! | `/delay?ms=N`, `/delay?us=N` | hello, so much later |
//! | `/chunked` | `Hello, World!` in two chunks |
//! | `/ws` | a WebSocket that sends every message back, compressed if the client wants it |
//! | `/file?path=P` | the file P, by `sendfile` |
//! | `/injected` | what was injected so far, as JSON: see `routes/behaviour.rs` |
//!
//! Every target takes the queries of `routes/injection.rs`: late and wrong answers in a known pattern.

mod options;
mod routes;

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::shutdown::ShutdownSignal;
use options::{Command, Options};
use routes::{Jobs, State};
use towline_io::{DEFAULT_BACKLOG, Engine, EngineConfig, Listener, Service, TlsConfig};
use towline_proto::Limits;

/// Everything from arguments to the exit status: 0, or 2 when it could not serve.
pub fn responder_main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let served = match Options::parse(args) {
        Ok(Command::Help) => io::stdout().write_all(options::HELP.as_bytes()),
        Ok(Command::Serve(options)) => serve(&options),
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

fn serve(options: &Options) -> io::Result<()> {
    let mut engine = Engine::<Jobs>::new(EngineConfig {
        max_ready_per_turn: 256,
        turn_time: Duration::from_millis(5),
        ..EngineConfig::default()
    })?;
    let service = Arc::new(Service {
        limits: Arc::new(limits(options)),
        protocols: options.protocols(),
        tls: options.tls.as_ref().map(TlsConfig::load).transpose()?,
        ..Service::default()
    });
    let shutdown = {
        let remote = engine.remote();
        ShutdownSignal::install(move || drop(remote.wake()))
    };
    let mut out = io::stdout();
    for spec in &options.binds {
        for listener in Listener::open(spec, DEFAULT_BACKLOG)? {
            writeln!(out, "{}", listener.local_addr()?)?;
            engine.add_listener(listener, Arc::clone(&service))?;
        }
    }
    out.flush()?;
    towline_io::exact_timers();
    let mut state = State::new(options.behaviour());
    while !shutdown.is_requested() {
        routes::turn(&mut engine, &mut state)?;
        if let Some(notice) = engine.take_notice() {
            eprintln!("towline-responder: {notice:?}");
        }
    }
    Ok(())
}

/// Clients under measurement are stopped for minutes between their slices.
fn limits(options: &Options) -> Limits {
    let mut limits = Limits {
        header_timeout: None,
        body_timeout: None,
        min_bytes_per_s: 0,
        keep_alive_timeout: None,
        ..Limits::server()
    };
    limits.http2.settings_timeout = None;
    // A thousand streams at once are a load here, not an attack.
    limits.http2.max_concurrent_streams = options.max_streams.unwrap_or(1024);
    limits
}
