//! The way out: a connection that turns out to speak another protocol hands over what it has.

use std::sync::Arc;
use std::time::Instant;

use crate::buffer::RecvBuffer;
use crate::timer::HeadClock;
use crate::{Limits, Side};

use super::{Connection, Phase};

/// A connection on which nothing was said yet, for another protocol to go on with.
#[derive(Debug)]
pub struct Handover {
    pub side: Side,
    pub limits: Arc<Limits>,
    pub recv: RecvBuffer,
    pub head_clock: HeadClock,
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
    pub fn hand_over(&mut self) -> Handover {
        Handover {
            side: self.side,
            limits: Arc::clone(&self.limits),
            recv: std::mem::take(&mut self.recv),
            head_clock: self.head_clock,
            now: self.now,
            closing: self.closing,
        }
    }
}
