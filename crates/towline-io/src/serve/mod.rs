//! What a server adds to the wire: pure features that know neither Python nor the engine.
//!
//! Each file has one subject and is driven by a face: it takes bytes, facts and times, and gives back
//! a decision, fields or text. Sockets stay with the engine, requests with the face.

pub mod forwarded;
pub mod proxy_protocol;
