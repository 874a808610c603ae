//! One stream: the states of its two directions, and their buffers.
//!
//! ```text
//!  receive    Head ─► Body ─► Ended ─► Done            (a request's head is there when the stream is)
//!           (client)                (client: read to the end)
//!  send       Head ─► Body/Discard ─► Complete
//!           (server)                  outbox.end: Open ─► Pending ─► Sent
//!
//!  either of them ──reset, broken rule──► Failed
//! ```
//!
//! The states of RFC 9113 5.1: *open* is neither `Ended` nor `Sent`; *half-closed (remote)* is `Ended`;
//! *half-closed (local)* is `Sent`; a stream that is both, or failed, is *closed*, and exists only as long as the
//! program uses it.

use crate::body::Method;
use crate::head::OwnedFields;
use crate::progress_timer::ProgressTimer;
use crate::{StreamError, StreamStats};

use crate::multiplexed::buffers::{Inbox, Outbox};
use crate::multiplexed::pending_events::PendingEvents;
use crate::multiplexed::priority::Priority;
use crate::multiplexed::send_queue::{QueueLink, Queued};
pub(super) use crate::multiplexed::states::{EndStream, RecvState, SendState, Tunnel};
use crate::multiplexed::streams::Slot;

use super::window::{RecvWindow, SendWindow};

/// A stream in use by the program, the peer or both. Its buffers are kept when it ends and reused by the next one
/// in its slot.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// 0: a free slot.
    pub id: u32,
    pub recv_state: RecvState,
    pub send_state: SendState,
    pub tunnel: Tunnel,
    pub method: Method,
    pub pending: PendingEvents,
    /// It is in the list of streams with pending events.
    pub has_events: bool,
    /// It is in the list of closed streams.
    pub is_closed: bool,
    /// The client waits for `100 Continue` before it sends its body.
    pub awaits_continue: bool,
    pub interim_responses: u8,
    /// Announced body bytes that are still to come.
    pub announced: Option<u64>,
    pub received_bytes: u64,
    pub stats: StreamStats,
    pub recv_window: RecvWindow,
    pub send_window: SendWindow,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub recv_timer: ProgressTimer,
    pub send_timer: ProgressTimer,
    pub priority: Priority,
    pub link: QueueLink,
    /// Received trailers.
    pub trailers: Option<Box<OwnedFields>>,
    /// Trailers to send after the body.
    pub pending_trailers: Option<Box<OwnedFields>>,
    pub failure: Option<StreamError>,
}

impl Stream {
    /// Initializes the stream in a free slot. Fields cleared by [`end`](Self::end) are left as they are.
    pub fn begin(&mut self, id: u32, recv_window: RecvWindow, send_window: SendWindow) {
        // Field by field, since replacing the whole stream would construct and drop the few fields that own
        // memory.
        let Self {
            id: own_id,
            recv_state,
            send_state,
            tunnel,
            method,
            pending,
            has_events,
            is_closed,
            awaits_continue,
            interim_responses,
            announced,
            received_bytes,
            stats,
            recv_window: own_recv_window,
            send_window: own_send_window,
            inbox: _,
            outbox: _,
            recv_timer,
            send_timer,
            priority,
            link,
            trailers: _,
            pending_trailers: _,
            failure: _,
        } = self;
        *own_id = id;
        *own_recv_window = recv_window;
        *own_send_window = send_window;
        *recv_state = RecvState::default();
        *send_state = SendState::default();
        *tunnel = Tunnel::default();
        *method = Method::default();
        *pending = PendingEvents::default();
        *has_events = false;
        *is_closed = false;
        *awaits_continue = false;
        *interim_responses = 0;
        *announced = None;
        *received_bytes = 0;
        *stats = StreamStats::default();
        *recv_timer = ProgressTimer::default();
        *send_timer = ProgressTimer::default();
        *priority = Priority::default();
        *link = QueueLink::default();
    }

    pub fn has_failed(&self) -> bool {
        self.recv_state == RecvState::Failed
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
        self.trailers = None;
        self.pending_trailers = None;
        self.failure = None;
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
