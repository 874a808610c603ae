//! State of one call: its stage, the request to send it again, and its times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::{BodySize, HeadRef, OwnedHead, StreamId};

use super::websocket_state::{OpenWebSocket, WsCall, WsPhase};

use crate::client::acquire_timer::AcquireTimer;
use crate::client::call_error::{self, FailureContext};
use crate::client::conn_ext::{Trailer, refuses_body};
use crate::client::connection_info::ConnectionInfo;
use crate::client::dial::DialTimings;
use crate::client::pool::{Lease, SlotId, WaiterId};
use crate::client::request::{CallError, CallOptions, CallPhase, OutgoingRequest, Timings};
use crate::client::retry_policy::RetryContext;
use crate::conn::Traffic;
use crate::conn::id::ConnId;

/// ```text
///  Waiting ──connection──► Active ──whole response read──► Over
///     │  └──► AwaitingSettings ▲  (a WebSocket over HTTP/2, until the server's SETTINGS)
///     ▲                        │
///     └──stale, resent─────────┴──failed──► Over
///     └◄─ Resting ◄──refused, again─┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Stage {
    /// In the pool's queue.
    Waiting(WaiterId),
    /// On an HTTP/2 connection whose server has not yet sent whether it allows `WebSockets` (RFC 8441 3).
    AwaitingSettings(Lease<ConnId>),
    /// Waits to be sent again.
    Resting(Instant),
    /// On a connection.
    Active(StreamHandle),
    /// Ended; only accessors work.
    #[default]
    Over,
}

/// Connection, pool slot and stream of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamHandle {
    pub(super) conn: ConnId,
    pub(super) slot: SlotId,
    pub(super) stream: StreamId,
}

/// State of the request body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Upload {
    /// Complete: given with the request, finished, or not wanted by the server.
    #[default]
    Done,
    /// Being written by the program.
    Open,
    /// No body: bytes, or messages, go both ways.
    Tunnel,
}

/// How much of the response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseState {
    Nothing,
    Head,
    /// The head of a response after which the rest of the request body is not sent.
    Refusal,
    /// The program has read the end, while the request was still being sent.
    End,
}

pub(super) struct Call {
    pub(super) generation: u32,
    pub(super) stage: Stage,
    pub(super) request: OutgoingRequest,
    pub(super) options: CallOptions,
    pub(super) upload: Upload,
    pub(super) head: Option<OwnedHead>,
    pub(super) response: ResponseState,
    /// The program's last read returned `Pending`.
    pub(super) reader_waits: bool,
    pub(super) reused: bool,
    pub(super) info: Option<Arc<ConnectionInfo>>,
    pub(super) resends: u8,
    pub(super) failed_dials: u8,
    pub(super) acquire_timer: AcquireTimer,
    /// Deadline of waiting for 100 (Continue) before the body is sent.
    pub(super) continue_deadline: Option<Instant>,
    /// Traffic of the connection before this call.
    pub(super) before: Traffic,
    pub(super) trailers: Vec<Trailer>,
    /// Set if the call requests, or has become, a WebSocket.
    pub(super) websocket: Option<Box<WsCall>>,
    /// Failure of the call, reported by an event or by the next read.
    pub(super) error: Option<Box<CallError>>,
    /// Decides whether the request of the failed exchange may be sent again; `None` if it would fail again.
    pub(super) retry_context: Option<RetryContext>,
    pub(super) times: CallTimes,
}

/// Instants of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimes {
    pub(super) begun: Instant,
    /// When the call got its connection.
    pub(super) started: Option<Instant>,
    /// When the connection last made progress.
    pub(super) progress: Instant,
    pub(super) head: Option<Instant>,
    pub(super) over: Option<Instant>,
    /// Timings of the dial, if the connection was opened for this call.
    pub(super) dial: Option<DialTimings>,
    /// The request was sent before the handshake was complete.
    pub(super) early_data: bool,
}

impl CallTimes {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            begun: now,
            started: None,
            progress: now,
            head: None,
            over: None,
            dial: None,
            early_data: false,
        }
    }

    pub(super) fn timings(&self) -> Timings {
        let since = |at: Instant| at.saturating_duration_since(self.begun);
        let dial = self.dial.unwrap_or_default();
        let dns = dial.dns.unwrap_or_default();
        let (tls, quic) = (dial.tls.unwrap_or_default(), dial.quic.unwrap_or_default());
        let dialled = dns + dial.connect + dial.proxy.unwrap_or_default() + tls + quic;
        let waited = self.started.map_or(Duration::ZERO, since);
        Timings {
            queued: waited.saturating_sub(dialled),
            dns,
            connect: dial.connect,
            tls,
            quic,
            first_byte: self.head.map(since),
            total: self.over.map(since),
            early_data: self.early_data,
        }
    }
}

impl Call {
    pub(super) fn new(
        generation: u32,
        request: OutgoingRequest,
        options: CallOptions,
        now: Instant,
    ) -> Self {
        Self {
            generation,
            stage: Stage::Over,
            request,
            options,
            upload: Upload::Done,
            head: None,
            response: ResponseState::Nothing,
            reader_waits: false,
            reused: false,
            info: None,
            resends: 0,
            failed_dials: 0,
            acquire_timer: AcquireTimer::new(now),
            continue_deadline: None,
            before: Traffic::default(),
            trailers: Vec::new(),
            websocket: None,
            error: None,
            retry_context: None,
            times: CallTimes::new(now),
        }
    }

    /// Ends the call: nothing more is sent or received for it.
    pub(super) fn end(&mut self, now: Instant) {
        self.stage = Stage::Over;
        self.upload = Upload::Done;
        self.times.over = Some(now);
    }

    pub(super) fn handle(&self) -> Option<StreamHandle> {
        match self.stage {
            Stage::Active(handle) => Some(handle),
            Stage::Waiting(_) | Stage::AwaitingSettings(_) | Stage::Resting(_) | Stage::Over => {
                None
            }
        }
    }

    /// When the call is due to be sent again after a pause.
    pub(super) fn rests_until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Resting(until) => Some(until),
            _ => None,
        }
    }

    pub(super) fn has_head(&self) -> bool {
        self.response != ResponseState::Nothing
    }

    /// Whether the response has been read while the request was still being sent.
    pub(super) fn is_read(&self) -> bool {
        self.response == ResponseState::End
    }

    /// The phase that an error of this call reports, `bytes_sent` bytes of its request having been sent.
    pub(super) fn phase(&self, bytes_sent: u64) -> CallPhase {
        if let Stage::Waiting(_) | Stage::Resting(_) = self.stage {
            return CallPhase::Pool;
        }
        let size = match self.continue_deadline {
            Some(_) => BodySize::Empty,
            None => self.request.body.size(),
        };
        call_error::phase(
            self.has_head(),
            self.upload == Upload::Open,
            size,
            bytes_sent,
        )
    }

    pub(super) fn failure_context(&self) -> FailureContext {
        FailureContext::of(&self.request, self.reused)
    }
}

/// WebSocket state.
impl Call {
    pub(super) fn open_websocket(&self) -> Option<&OpenWebSocket> {
        match &self.websocket.as_deref()?.stage {
            WsPhase::Open(websocket) => Some(websocket),
            WsPhase::Requested(_) => None,
        }
    }

    /// The next timer of the open WebSocket, while it has a connection.
    pub(super) fn websocket_deadline(&self) -> Option<Instant> {
        self.handle()?;
        self.open_websocket()?.deadline()
    }

    pub(super) fn open_websocket_mut(&mut self) -> Option<&mut OpenWebSocket> {
        match &mut self.websocket.as_deref_mut()?.stage {
            WsPhase::Open(websocket) => Some(websocket),
            WsPhase::Requested(_) => None,
        }
    }

    /// Handles the final head: opens the WebSocket if the server accepted it. An error is the rule that the head violates.
    pub(super) fn handle_head(
        &mut self,
        head: &HeadRef<'_>,
        now: Instant,
    ) -> Result<(), &'static str> {
        self.response = ResponseState::Head;
        if refuses_body(head.status()) {
            self.response = ResponseState::Refusal;
            self.continue_deadline = None;
            self.upload = Upload::Done;
        }
        let Some(websocket) = self.websocket.as_deref_mut() else {
            return Ok(());
        };
        if websocket.open_if_granted(head, now)? {
            self.upload = Upload::Tunnel;
            // The timeouts of the handshake do not apply to messages.
            (self.options.timeouts.read, self.options.timeouts.total) = (None, None);
        }
        Ok(())
    }
}
