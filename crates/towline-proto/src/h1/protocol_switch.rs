//! Handing over to another protocol: the peer's first bytes, or ALPN, have chosen HTTP/2.

use std::sync::Arc;
use std::time::Instant;

use crate::buffer::RecvBuffer;
use crate::timer::HeadTimer;
use crate::{Limits, Side};

use super::{Connection, Phase};

/// State of a connection that has exchanged no message, for another protocol to continue with.
#[derive(Debug)]
pub struct ProtocolSwitch {
    pub side: Side,
    pub limits: Arc<Limits>,
    pub recv: RecvBuffer,
    pub head_timer: HeadTimer,
    pub now: Instant,
    pub closing: bool,
}

impl Connection {
    /// Bytes received and not yet read.
    pub fn unread(&self) -> &[u8] {
        self.recv.unread()
    }

    /// No byte was received and no request sent: the protocol can still be chosen.
    pub fn is_untouched(&self) -> bool {
        self.phase == Phase::Open
            && self.exchange.id == 0
            && self.recv.is_empty()
            && self.parser.is_fresh()
            && !self.eof
    }

    /// Takes the state for the protocol that was chosen.
    pub fn switch_protocol(&mut self) -> ProtocolSwitch {
        ProtocolSwitch {
            side: self.side,
            limits: Arc::clone(&self.limits),
            recv: std::mem::take(&mut self.recv),
            head_timer: self.head_timer,
            now: self.now,
            closing: self.closing,
        }
    }
}
