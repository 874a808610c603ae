//! Sockets, TLS and timers for the protocols of `towline-proto`.
//!
//! An [`Engine`] owns one poll with listeners, connections, timers and receive buffers, and serves them
//! in bounded turns. A front end (ASGI, WSGI, a native program) drives it:
//!
//! ```no_run
//! use std::sync::Arc;
//! use towline_io::{Engine, EngineConfig, Listener, ConnConfig};
//! use towline_proto::{BodySize, Event, Limits, ResponseHead};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut engine = Engine::<()>::new(EngineConfig::default())?;
//! let config = Arc::new(ConnConfig::plain(Limits::server()));
//! for listener in Listener::open("127.0.0.1:8000", 2048)? {
//!     engine.add_listener(listener, Arc::clone(&config))?;
//! }
//! loop {
//!     engine.turn_start(None)?;
//!     while let Some(id) = engine.next_ready() {
//!         let Some(conn) = engine.conn(id) else { continue };
//!         while let Some(event) = conn.proto.next_event() {
//!             if let Event::Head { stream, .. } = event {
//!                 let head = ResponseHead { status: 204, reason: b"", fields: &[] };
//!                 let _ = conn.proto.respond(stream, &head, BodySize::Empty);
//!             }
//!         }
//!         engine.flush_and_rearm(id);
//!     }
//!     engine.turn_end();
//! }
//! # }
//! ```

pub mod client;
pub mod coding;
pub mod generator;
pub mod output_file;
pub mod quic;
pub mod serve;
pub mod text;

mod conn;
mod engine;
pub mod fork;
mod shared_memory;
mod sys;
mod thread_pool;
mod tls;

// For files that `tests/loom` compiles with loom's atomics.
use std::sync;

pub use conn::Conn;
pub use conn::addr::PeerAddr;
pub use conn::checked_out_io::WaitOutcome;
pub use conn::config::{ConnConfig, ProxyTrust, Role};
pub use conn::file_body::open_regular;
pub use conn::id::ConnId;
pub use conn::spool::Spool;
pub use conn::spooled_response::SpooledResponse;
pub use conn::stream_map::StreamMap;
pub use conn::takeover::{SocketControl, TakenSocket};
pub use engine::accept::Notice;
pub use engine::drain::Drain;
pub use engine::listener::{DEFAULT_BACKLOG, Listener};
pub use engine::pending_dials::{DialId, DialOutcome};
pub use engine::{Engine, EngineConfig, EngineWaker};
pub use sys::{resident_bytes, shared_file, unix_seconds};
pub use tls::{
    AcmeSettings, ClientCerts, ClientTls, ClientTlsSettings, ExternalTls, ExternalTlsContext,
    Identity, MinVersion, Password, TlsConfig, TlsInfo, TlsSettings, Trust, certificate_expiry,
    seed,
};
