//! What a server adds to the wire: files, compression, logs, metrics and the addresses behind a proxy.
//!
//! Each file has one subject and is driven by a face: it takes bytes, facts and times, and gives back
//! a decision, fields or text. Sockets stay with the engine, requests with the face.

pub mod access_log;
pub mod compress;
pub mod features;
pub mod files;
pub mod forwarded;
pub mod metrics;
pub mod proxy_protocol;
