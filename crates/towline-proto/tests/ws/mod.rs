//! WebSocket: input of a peer and its results, at every cut.

mod closing;
mod frames;
mod handshake;
mod inflation;
mod keepalive;
mod properties;
mod support;
