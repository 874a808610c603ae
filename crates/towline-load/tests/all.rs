//! The tests of this crate in one program: each program of its own is linked with all that the crate needs, and runs
//! alone. `accuracy.rs`, `hosts.rs` and `netem.rs` are, since they compare times.

mod agents;
mod divided_slices;
mod errors;
mod hangs;
mod http2;
mod http3;
mod invalid_rows;
mod options;
mod repeated;
mod responder;
mod scripted;
mod send_modes;
mod session;
mod tls;
mod users;
mod websocket;
