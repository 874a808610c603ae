//! Calls on connections that began with early data (0-RTT).

use std::sync::Arc;

use super::call::{Call, StreamHandle};
use super::{CallId, ClientDriver, ConnState};
use crate::client::conn_ext::write_request;
use crate::client::connection_info::ConnectionInfo;
use crate::conn::Conn;

/// The status with which a server wants a request after the handshake (RFC 8470 5.2).
pub(super) const TOO_EARLY: u16 = 425;

impl ClientDriver {
    /// Sends a request again that was sent in early data, on the same connection: the handshake is complete by now.
    /// False if it was not, or cannot be sent.
    pub(super) fn resend_too_early(&mut self, id: CallId) -> bool {
        let Some((handle, call, peer)) = self.on_connection(id) else {
            return false;
        };
        if !peer.proto.was_sent_early(handle.stream) {
            return false;
        }
        // Early data has no body.
        let Ok(stream) = write_request(peer, &call.request) else {
            return false;
        };
        peer.state.h2.remove(handle.stream);
        if let Ok(mut refused) = peer.proto.stream(handle.stream) {
            refused.reset();
        }
        peer.state.h2.begin(stream, id);
        call.stage = super::Stage::Active(StreamHandle { stream, ..handle });
        self.schedule_flush(handle.conn);
        true
    }

    /// Notes whether the request of a call whose head has arrived was sent in early data, and what is known about the
    /// connection since its handshake.
    pub(super) fn note_early_data(&mut self, id: CallId) {
        let Some((handle, call, peer)) = self.on_connection(id) else {
            return;
        };
        if !peer.proto.began_with_early_data() {
            return;
        }
        call.times.early_data = peer.proto.was_sent_early(handle.stream);
        if let Some(before) = peer.state.info.take() {
            let info = match before.tls {
                Some(_) => before,
                None => Arc::new(ConnectionInfo::of(peer, before.timings)),
            };
            peer.state.info = Some(Arc::clone(&info));
            call.info = Some(info);
        }
    }

    /// A call with its stream and its connection.
    fn on_connection(
        &mut self,
        id: CallId,
    ) -> Option<(StreamHandle, &mut Call, &mut Conn<ConnState>)> {
        let handle = self.call(id)?.handle()?;
        let call = self.calls.get_mut(id.index as usize)?;
        let peer = self.engine.conn(handle.conn)?;
        Some((handle, call, peer))
    }
}
