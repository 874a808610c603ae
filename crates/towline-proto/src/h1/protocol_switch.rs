//! The way out: a connection that turns out to speak another protocol hands over what it has.

use std::sync::Arc;
use std::time::Instant;

use crate::buffer::RecvBuffer;
use crate::timer::HeadTimer;
use crate::{Limits, Side};

use super::{Connection, Phase};

/// A connection on which nothing was said yet, for another protocol to go on with.
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
    /// What has been received and not yet read.
    pub fn unread(&self) -> &[u8] {
        self.recv.unread()
    }

    /// Nothing has come and nothing was said: another protocol may still be chosen.
    pub fn is_untouched(&self) -> bool {
        self.phase == Phase::Open
            && self.exchange.id == 0
            && self.recv.is_empty()
            && self.parser.is_fresh()
            && !self.eof
    }

    /// Hands everything over to the protocol that it turned out to be.
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
