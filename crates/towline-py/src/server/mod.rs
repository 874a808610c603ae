//! The server: `asgi` and `wsgi` are its front ends, the other modules are common to both.
pub mod asgi;
pub mod default_headers;
pub mod feature_config;
pub mod forked;
pub mod http3;
pub mod listeners;
pub mod open_gauge;
pub mod options;
pub mod pem;
pub mod setup;
pub mod shared_stats;
pub mod target;
pub mod tickets;
pub mod wsgi;
