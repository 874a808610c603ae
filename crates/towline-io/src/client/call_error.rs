//! The error of a failed call: its kind, phase, message, and whether it is `retryable`. Both front ends make
//! their errors here.
//!
//! A [`CallError`] is `retryable` when sending the request again is safe (RFC 9110 9.2.2):
//!
//! | the call failed | `retryable` |
//! |---|---|
//! | before it got a connection (pool, DNS, connect, proxy, TLS, queue full) | yes: nothing was sent |
//! | the server declared it unprocessed (GOAWAY, `REFUSED_STREAM`: RFC 9113 8.7) | if the body can be replayed |
//! | no byte of the request had left | if the body can be replayed |
//! | at any later point, also within the response body | if idempotent and the body can be replayed |
//! | because of the program (malformed request, closed client, cancelled) | no |
//!
//! Its phase is `Body` once the response head has arrived, `Send` while part of the request is unsent, else `Head`.

use std::borrow::Cow;
use std::sync::Arc;

use towline_proto::{BodySize, CloseReason, ConnectionError, ErrorSource, StreamError};

use super::request::{CallError, CallErrorKind, CallPhase, OutgoingRequest};

const NOTHING_ACCEPTED: &str =
    "the write timeout expired: the server accepted no byte of the request";
const NOTHING_ARRIVED: &str = "the read timeout expired: no byte of the response arrived";

/// State of an exchange that decides whether its error is retryable, and is reported by it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FailureContext {
    pub(super) replayable: bool,
    pub(super) idempotent: bool,
    pub(super) reused: bool,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
}

impl FailureContext {
    pub(super) fn of(request: &OutgoingRequest, reused: bool) -> Self {
        Self {
            replayable: request.body.is_replayable(),
            idempotent: request.idempotent,
            reused,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Adds `retryable`, bytes and reuse to an error of this exchange. `unprocessed`: the server has not processed
    /// the request.
    pub(super) fn with_context(self, error: CallError, unprocessed: bool) -> CallError {
        let is_safe = self.idempotent || self.bytes_sent == 0 || unprocessed;
        let is_own_fault = error.kind == CallErrorKind::LocalProtocol;
        let message = match &*error.message {
            NOTHING_ACCEPTED if self.bytes_sent > 0 => {
                "the write timeout expired: the server accepted no further byte of the request"
                    .into()
            }
            NOTHING_ARRIVED if self.bytes_received > 0 => {
                "the read timeout expired: no further byte of the response arrived".into()
            }
            _ => error.message,
        };
        CallError {
            message,
            retryable: self.replayable && is_safe && !is_own_fault,
            bytes_sent: self.bytes_sent,
            bytes_received: self.bytes_received,
            reused: self.reused,
            ..error
        }
    }
}

/// The phase of a call that has a connection. `uploading`: the program has not finished a streamed body.
pub(super) fn phase(has_head: bool, uploading: bool, size: BodySize, bytes_sent: u64) -> CallPhase {
    let body_bytes = match size {
        BodySize::Known(bytes) => bytes,
        BodySize::Empty | BodySize::Unknown => 0,
    };
    match (has_head, uploading || bytes_sent < body_bytes) {
        (true, _) => CallPhase::Body,
        (false, true) => CallPhase::Send,
        (false, false) => CallPhase::Head,
    }
}

/// The error of an expired timeout. `phase`: what the call was doing.
pub(super) fn timeout(kind: CallErrorKind, phase: CallPhase) -> CallError {
    let text = match (kind, phase) {
        (CallErrorKind::PoolTimeout, _) => "the pool timeout expired: no connection became free",
        (CallErrorKind::ConnectTimeout, _) => {
            "the connect timeout expired: no connection was established"
        }
        (CallErrorKind::WriteTimeout, _) => NOTHING_ACCEPTED,
        (CallErrorKind::ReadTimeout, _) => NOTHING_ARRIVED,
        (_, CallPhase::Pool) => "the total timeout expired while waiting for a connection",
        _ => "the total timeout expired",
    };
    CallError::new(kind, phase, text)
}

/// The error of a wait for a connection that timed out; nothing was sent.
pub(super) fn acquire_timeout(kind: CallErrorKind) -> CallError {
    let phase = match kind {
        CallErrorKind::ConnectTimeout => CallPhase::Connect,
        _ => CallPhase::Pool,
    };
    CallError {
        retryable: true,
        ..timeout(kind, phase)
    }
}

/// The error of a call that finds the queue for connections full; nothing was sent.
pub(super) fn queue_full() -> CallError {
    CallError {
        retryable: true,
        ..CallError::new(
            CallErrorKind::QueueFull,
            CallPhase::Pool,
            "as many calls are waiting for a connection as max_queue allows",
        )
    }
}

/// The error of a call whose new connection got `error`, or the end of input, before its request was sent.
pub(super) fn before_request(error: Option<&Arc<ConnectionError>>) -> CallError {
    let error = match error {
        Some(error) if error.reason == CloseReason::Protocol => failure(error, CallPhase::Send),
        _ => CallError::new(
            CallErrorKind::ServerDisconnected,
            CallPhase::Send,
            "the server closed the new connection before the request was sent",
        ),
    };
    CallError {
        retryable: true,
        ..error
    }
}

/// The error of a call in `phase` whose connection has ended.
pub(super) fn failure(error: &ConnectionError, phase: CallPhase) -> CallError {
    let kind = match (error.reason, error.source) {
        (CloseReason::Protocol | CloseReason::Limit, _) => CallErrorKind::RemoteProtocol,
        (CloseReason::Done | CloseReason::Truncated, _) => CallErrorKind::ServerDisconnected,
        (CloseReason::Timeout, _) => CallErrorKind::ReadTimeout,
        (CloseReason::Reset, ErrorSource::Program) => CallErrorKind::LocalProtocol,
        (CloseReason::Reset | CloseReason::Aborted, _) if phase == CallPhase::Send => {
            CallErrorKind::Write
        }
        (CloseReason::Reset | CloseReason::Aborted, _) => CallErrorKind::Read,
    };
    CallError::new(kind, phase, error.rule)
}

/// The error of a call in `phase` whose exchange has ended.
pub(super) fn stream_failure(error: &StreamError, phase: CallPhase) -> CallError {
    let (kind, message): (_, Cow<'static, str>) = match error {
        StreamError::Connection(error) => return failure(error, phase),
        StreamError::Reset => (
            CallErrorKind::LocalProtocol,
            "the call was cancelled".into(),
        ),
        StreamError::Http1Required { code, .. } => (
            CallErrorKind::RemoteProtocol,
            format!("the server wants HTTP/1.1 for this request: {code}").into(),
        ),
        StreamError::ResetByPeer(code) => (
            CallErrorKind::RemoteProtocol,
            if code.is_http3() {
                format!("the server reset the stream: {code} (RFC 9114 8)").into()
            } else {
                format!("the server reset the stream: {code} (RFC 9113 5.4.2)").into()
            },
        ),
        StreamError::Refused(rule) => (
            CallErrorKind::RemoteProtocol,
            format!("the server did not process the request: {rule}").into(),
        ),
        StreamError::ClosedByPeer {
            unprocessed: true,
            close,
        } => (
            CallErrorKind::RemoteProtocol,
            format!("the server did not process the request: above the last stream of {close}")
                .into(),
        ),
        StreamError::ClosedByPeer { close, .. } => (
            CallErrorKind::ServerDisconnected,
            format!("the server ended the connection: {close}").into(),
        ),
        StreamError::Broken { reason, rule } => match reason {
            CloseReason::Timeout => (CallErrorKind::ReadTimeout, (*rule).into()),
            _ => (CallErrorKind::RemoteProtocol, (*rule).into()),
        },
    };
    CallError::new(kind, phase, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(idempotent: bool, replayable: bool, bytes_sent: u64) -> FailureContext {
        FailureContext {
            replayable,
            idempotent,
            bytes_sent,
            ..FailureContext::default()
        }
    }

    #[test]
    fn retryable_follows_the_table() {
        let is_retryable = |context: FailureContext, kind, unprocessed| {
            let error = CallError::new(kind, CallPhase::Body, "");
            context.with_context(error, unprocessed).retryable
        };
        let read = CallErrorKind::Read;
        for (idempotent, bytes_sent, unprocessed, expected) in [
            (true, 10, false, true),
            (false, 10, false, false),
            (false, 10, true, true),
            (false, 0, false, true),
        ] {
            let replayable = context(idempotent, true, bytes_sent);
            assert_eq!(is_retryable(replayable, read, unprocessed), expected);
            let streamed = context(idempotent, false, bytes_sent);
            assert!(!is_retryable(streamed, read, unprocessed));
        }
        let own = CallErrorKind::LocalProtocol;
        assert!(!is_retryable(context(true, true, 0), own, true));
    }

    #[test]
    fn a_failure_before_the_connection_is_retryable() {
        for (error, phase) in [
            (queue_full(), CallPhase::Pool),
            (acquire_timeout(CallErrorKind::PoolTimeout), CallPhase::Pool),
            (
                acquire_timeout(CallErrorKind::TotalTimeout),
                CallPhase::Pool,
            ),
            (
                acquire_timeout(CallErrorKind::ConnectTimeout),
                CallPhase::Connect,
            ),
        ] {
            assert_eq!((error.phase, error.retryable), (phase, true), "{error:?}");
        }
    }

    #[test]
    fn the_phase_follows_the_head_then_the_upload() {
        let known = BodySize::Known(10);
        for (has_head, uploading, size, sent, expected) in [
            (true, true, known, 0, CallPhase::Body),
            (false, true, BodySize::Unknown, 99, CallPhase::Send),
            (false, false, known, 9, CallPhase::Send),
            (false, false, known, 10, CallPhase::Head),
            (false, false, BodySize::Empty, 0, CallPhase::Head),
        ] {
            assert_eq!(phase(has_head, uploading, size, sent), expected);
        }
    }

    #[test]
    fn each_timeout_has_a_text_of_its_own() {
        let text = |kind, phase| timeout(kind, phase).message.into_owned();
        let texts = [
            text(CallErrorKind::PoolTimeout, CallPhase::Pool),
            text(CallErrorKind::ConnectTimeout, CallPhase::Connect),
            text(CallErrorKind::WriteTimeout, CallPhase::Send),
            text(CallErrorKind::ReadTimeout, CallPhase::Head),
            text(CallErrorKind::TotalTimeout, CallPhase::Pool),
            text(CallErrorKind::TotalTimeout, CallPhase::Body),
        ];
        let distinct: std::collections::HashSet<_> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len(), "{texts:?}");
    }
}
