//! A native HTTP responder on the engine: the upstream of benches and tests.
//!
//! `responder [--port N] [--bind SPEC] [--cert FILE --key FILE]` prints its addresses, one per line,
//! and serves until it is killed:
//!
//! | target | answer |
//! |---|---|
//! | `/req`, `/req?ms=N` | 2,000 bytes, chunked, 10 ms (or N) later |
//! | `/upload`, `/drain` | how many bytes the body had |
//! | `/json` | the request's JSON, when all of it has come |
//! | `/echo` | the request's body, as it comes |
//! | `/bytes?n=N`, `/large` | N bytes (64 KiB), with `&chunked` chunked |
//! | `/endless`, `/endless?chunked` | a tebibyte |
//! | `/sse?per_s=N&n=COUNT&bytes=SIZE` | server-sent events; none of COUNT: without end |
//! | `/gzip` | a JSON array, gzip |
//! | `/delay?ms=N` | hello, N milliseconds later |
//! | `/chunked` | hello in two chunks |
//! | `/file?path=P` | the file P, by `sendfile` |
//! | anything else | hello |

mod routes;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use routes::{Delayed, Job};
use towline_io::{
    DEFAULT_BACKLOG, Engine, EngineConfig, Listener, Service, TlsConfig, TlsSettings,
};
use towline_proto::Limits;

fn main() -> io::Result<()> {
    let options = Options::parse()?;
    let mut engine = Engine::<Job>::new(EngineConfig {
        max_ready_per_turn: 256,
        turn_time: Duration::from_millis(5),
        ..EngineConfig::default()
    })?;
    let service = Arc::new(Service {
        limits: Arc::new(limits()),
        tls: options.tls.as_ref().map(TlsConfig::load).transpose()?,
        ..Service::default()
    });
    for spec in &options.binds {
        for listener in Listener::open(spec, DEFAULT_BACKLOG)? {
            writeln!(io::stdout(), "{}", listener.local_addr()?)?;
            engine.add_listener(listener, Arc::clone(&service))?;
        }
    }
    io::stdout().flush()?;
    towline_io::exact_timers();
    let mut delayed = Delayed::new();
    loop {
        routes::turn(&mut engine, &mut delayed)?;
        if let Some(notice) = engine.take_notice() {
            writeln!(io::stderr(), "{notice:?}")?;
        }
    }
}

/// Clients under measurement are stopped for minutes between their slices.
fn limits() -> Limits {
    Limits {
        header_timeout: None,
        body_timeout: None,
        min_bytes_per_s: 0,
        keep_alive_timeout: None,
        ..Limits::server()
    }
}

struct Options {
    binds: Vec<String>,
    tls: Option<TlsSettings>,
}

impl Options {
    fn parse() -> io::Result<Self> {
        let mut options = Self {
            binds: Vec::new(),
            tls: None,
        };
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| usage(&name))?;
            match name.as_str() {
                "--port" => options.binds.push(format!("127.0.0.1:{value}")),
                "--bind" => options.binds.push(value),
                "--cert" => options.tls.get_or_insert_default().cert_file = value.into(),
                "--key" => options.tls.get_or_insert_default().key_file = Some(value.into()),
                _ => return Err(usage(&name)),
            }
        }
        if options.binds.is_empty() {
            options.binds.push("127.0.0.1:0".into());
        }
        Ok(options)
    }
}

fn usage(name: &str) -> io::Error {
    let text = format!("{name}: use [--port N] [--bind SPEC] [--cert FILE --key FILE]");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
