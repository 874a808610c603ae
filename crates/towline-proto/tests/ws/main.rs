//! A WebSocket: what a peer may send and what comes of it, however it is cut.

mod closing;
mod frames;
mod handshake;
mod inflation;
mod keepalive;
mod properties;
mod support;
