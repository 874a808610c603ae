//! The Python bindings of the server: `asgi` and `wsgi` are its front ends, the other modules are common to both.
// Python determines the signatures: arguments are extracted by value, methods have a self.
#![allow(clippy::needless_pass_by_value, clippy::unused_self)]
mod addresses;
mod asgi;
mod default_headers;
mod eager_flush;
mod feature_config;
mod forked;
mod gather;
mod http3;
mod listeners;
mod log_level;
mod open_gauge;
mod options;
mod pem;
mod request_id;
mod setup;
mod shared_stats;
mod target;
mod tickets;
mod wsgi;

pub use asgi::AsgiServer;
pub use listeners::open_listeners;
pub use shared_stats::{SharedStats, Slot, resident_bytes, shared_memory};
pub use tickets::Tickets;
pub use wsgi::WsgiServer;
