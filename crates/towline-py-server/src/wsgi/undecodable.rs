//! The end of an exchange whose body could not be decoded while the application was reading it.
use std::sync::Arc;

use pyo3::prelude::*;

use super::request_io::lock;
use super::start_response::{Phase, Responder, State};

impl Responder {
    /// Refuses the exchange if its body could not be decoded: with a response, or by aborting the one that has begun.
    pub fn refuse_undecodable(&self, py: Python<'_>) -> bool {
        let mut state = self.state(py);
        let mut request_io = lock(py, &self.request_io);
        let refusal = request_io.refusal.take();
        let Some((_, refusal)) = refusal.filter(|(serial, _)| *serial == state.serial) else {
            return false;
        };
        let stream = request_io.current(state.serial);
        let (Some(stream), Some(peer)) = (stream, request_io.peer()) else {
            return true;
        };
        let is_sent = std::mem::replace(&mut state.phase, Phase::Sent) == Phase::Sent;
        let State {
            features,
            record,
            default_headers,
            ..
        } = &mut *state;
        if is_sent {
            refusal.count(features, record, peer);
            if let Ok(mut stream) = peer.proto.stream(stream) {
                stream.reset();
            }
            return true;
        }
        default_headers.refresh();
        let config = Arc::clone(peer.service());
        let added = default_headers.missing(&config.fields, |_| false);
        // Fails only if the client has disconnected.
        let _ = refusal.send(features, record, peer, stream, added);
        true
    }
}
