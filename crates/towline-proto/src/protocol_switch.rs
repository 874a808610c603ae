//! The state handed over when the peer's first bytes, or ALPN, have chosen HTTP/2.

use std::sync::Arc;
use std::time::Instant;

use crate::buffer::RecvBuffer;
use crate::event::Side;
use crate::idle_timer::IdleTimer;
use crate::limits::Limits;

/// State of a connection that has exchanged no message, for another protocol to continue with.
#[derive(Debug)]
pub struct ProtocolSwitch {
    pub side: Side,
    pub limits: Arc<Limits>,
    pub recv: RecvBuffer,
    pub idle_timer: IdleTimer,
    pub now: Instant,
    pub closing: bool,
}
