//! Handing over to another protocol.

use std::sync::Arc;

use super::{Connection, Ending, Phase, RecvState, SendState};
use crate::protocol_switch::ProtocolSwitch;

impl Connection {
    /// Bytes received and not yet read.
    pub fn unread(&self) -> &[u8] {
        self.recv.unread()
    }

    /// The current request has `Upgrade` and `Connection: upgrade`.
    pub fn offers_upgrade(&self) -> bool {
        self.exchange.may_upgrade
    }

    /// The request has been read completely, nothing follows it, and its final response has not begun.
    pub fn is_between_request_and_response(&self) -> bool {
        self.phase == Phase::Open
            && matches!(self.recv_state, RecvState::Complete)
            && self.send_state == SendState::Head
            && self.recv.is_empty()
            && !self.eof
    }

    /// No byte was received and no request sent: the protocol can still be chosen.
    pub fn is_untouched(&self) -> bool {
        self.phase == Phase::Open
            && self.exchange.id == 0
            && self.recv.is_empty()
            && self.has_fresh_head()
            && !self.eof
    }

    /// Takes the state for the protocol that was chosen.
    pub fn switch_protocol(&mut self) -> ProtocolSwitch {
        ProtocolSwitch {
            side: self.side,
            limits: Arc::clone(&self.limits),
            recv: std::mem::take(&mut self.recv),
            idle_timer: self.timers.idle,
            now: self.now,
            closing: self.ending != Ending::None,
        }
    }
}
