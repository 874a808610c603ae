//! One stream: its messages, whose states are in `multiplexed::states`, its windows and its buffers.
//!
//! ```text
//!  outbox.end    Open ──the program has finished──► Pending ──all sent──► Sent
//!  discard       None ──the response is sent, the request is not over──► Some ──its end, or the bound──► closed
//! ```
//!
//! The states of RFC 9113 5.1: *open* is neither `Ended` nor `Sent`; *half-closed (remote)* is `Ended`;
//! *half-closed (local)* is `Sent`; a stream that is both, or failed, is *closed*, and exists only as long as the
//! program uses it.

use std::time::Instant;

use crate::StreamStats;
use crate::head::OwnedFields;
use crate::progress_timer::ProgressTimer;

use crate::multiplexed::buffers::{Inbox, Outbox};
use crate::multiplexed::exchange::Exchange;
use crate::multiplexed::priority::Priority;
use crate::multiplexed::send_queue::{QueueLink, Queued};
pub(super) use crate::multiplexed::states::{EndStream, RecvState, SendState, Tunnel};
use crate::multiplexed::streams::Slot;

use super::window::{RecvWindow, SendWindow};

/// A request whose response was sent before its end. Its bytes are skipped and its window is reopened, because clients
/// that send the whole body before they read the response (curl 7.88, httpx) take a reset for a failure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Discard {
    pub until: Instant,
    /// The program is done with the stream, which it knows until then.
    pub is_released: bool,
}

/// A stream in use by the program, the peer or both. Its buffers are kept when it ends and reused by the next one
/// in its slot.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// 0: a free slot.
    pub id: u32,
    pub exchange: Exchange,
    /// It is in the list of streams with pending events.
    pub has_events: bool,
    /// It is in the list of closed streams.
    pub is_closed: bool,
    pub stats: StreamStats,
    pub recv_window: RecvWindow,
    pub send_window: SendWindow,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub recv_timer: ProgressTimer,
    pub send_timer: ProgressTimer,
    /// The rest of the request is skipped.
    pub discard: Option<Discard>,
    pub priority: Priority,
    pub link: QueueLink,
    /// Trailers to send after the body.
    pub pending_trailers: Option<Box<OwnedFields>>,
}

impl Stream {
    /// Initializes the stream in a free slot. Fields cleared by [`end`](Self::end) are left as they are.
    pub fn begin(&mut self, id: u32, recv_window: RecvWindow, send_window: SendWindow) {
        // Field by field, since replacing the whole stream would construct and drop the few fields that own
        // memory.
        let Self {
            id: own_id,
            exchange,
            has_events,
            is_closed,
            stats,
            recv_window: own_recv_window,
            send_window: own_send_window,
            inbox: _,
            outbox: _,
            recv_timer,
            send_timer,
            discard,
            priority,
            link,
            pending_trailers: _,
        } = self;
        *own_id = id;
        *own_recv_window = recv_window;
        *own_send_window = send_window;
        exchange.begin();
        *has_events = false;
        *is_closed = false;
        *stats = StreamStats::default();
        *recv_timer = ProgressTimer::default();
        *send_timer = ProgressTimer::default();
        *discard = None;
        *priority = Priority::default();
        *link = QueueLink::default();
    }

    pub fn has_failed(&self) -> bool {
        self.exchange.has_failed()
    }

    /// It has failed, and nothing of it is waited for.
    pub fn is_over(&self) -> bool {
        self.has_failed() && self.discard.is_none()
    }

    /// Ends the skipping of the rest of the request; whether the program is done with the stream, too.
    pub fn take_discard(&mut self) -> bool {
        let discard = self.discard.take();
        discard.is_some_and(|discard| discard.is_released)
    }

    /// There is something to send that only windows, buffer space or its turn hold back.
    pub fn wants_to_send(&self) -> bool {
        !self.outbox.is_empty() || self.outbox.end == EndStream::Pending
    }

    /// The same, and its own window does not hold it back.
    pub fn can_send(&self) -> bool {
        self.wants_to_send() && (self.outbox.is_empty() || self.send_window.bytes() > 0)
    }
}

impl Slot for Stream {
    type Id = u32;

    fn id(&self) -> u32 {
        self.id
    }

    fn end(&mut self) {
        self.id = 0;
        self.inbox.clear();
        self.outbox.clear();
        self.outbox.end = EndStream::Open;
        self.exchange.end();
        self.pending_trailers = None;
    }

    fn shrink(&mut self) {
        self.inbox.shrink();
        self.outbox.shrink();
    }
}

impl Queued for Stream {
    fn priority(&self) -> Priority {
        self.priority
    }

    fn link(&mut self) -> &mut QueueLink {
        &mut self.link
    }
}
