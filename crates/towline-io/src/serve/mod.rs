//! Server features: static files, compression, access log, metrics and addresses behind a proxy.
//!
//! Each file has one subject. It takes bytes, values and times from the front end and returns a decision,
//! headers or text. Sockets belong to the engine, requests to the front end.

pub mod access_log;
pub mod compress;
pub mod features;
pub mod files;
pub mod forwarded;
mod labels;
pub mod limits;
pub mod metrics;
pub mod proxy_protocol;
mod redirect;
mod refusal;
pub mod refusals;
pub mod request_id;
mod request_line;
mod request_start;
