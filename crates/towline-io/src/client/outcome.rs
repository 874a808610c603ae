//! The client's policy, as pure functions: how a failure is classified, whether a request is sent again, and
//! the limits that every front end applies alike. The asynchronous driver and the blocking HTTP/1 and HTTP/2
//! paths all decide here.
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
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use towline_proto::{
    BodySize, CloseReason, ConnectionError, ErrorSource, ProtocolPolicy, StreamError,
};

use super::request::{
    CallError, CallErrorKind, CallOptions, CallPhase, OutgoingRequest, StaleRetry,
};
use super::route::Route;

/// Bytes of an unread response body that are skipped to keep the connection, or to spare the server a reset.
pub(super) const DRAIN_BYTES: usize = 64 * 1024;

/// Maximum resends of a request after a stale connection: a server that closes its idle connections closes several at once.
const MAX_RESENDS: u8 = 3;

/// Maximum resends of a request that the server refused unprocessed: a server that closes each connection after a number
/// of requests refuses those in progress each time.
const MAX_REFUSALS: u8 = 8;

/// A body that waits for `100 Continue` is sent after this long without it: the server may not send one
/// (RFC 9110 10.1.1). The same value as in curl.
pub const CONTINUE_WITHIN: Duration = Duration::from_secs(1);

/// State of a call whose exchange has ended, as far as resending depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryContext {
    /// The connection had carried an exchange before.
    pub reused: bool,
    /// A byte of the response had arrived.
    pub response_started: bool,
    /// The server has declared that it did not process the request and will not (RFC 9113 8.7).
    pub unprocessed: bool,
    /// Number of times the request has been resent.
    pub resends: u8,
}

impl RetryContext {
    /// The context of an HTTP/1 exchange that failed with `error`; `None` unless its connection had ended.
    pub(super) fn after(error: &CallError, resends: u8) -> Option<Self> {
        let is_end = matches!(
            error.kind,
            CallErrorKind::ServerDisconnected | CallErrorKind::Read | CallErrorKind::Write
        );
        is_end.then_some(Self {
            reused: error.reused,
            response_started: error.bytes_received > 0,
            unprocessed: false,
            resends,
        })
    }

    /// Returns the context after the failure `why`. `None`: the request would fail the same way again.
    #[must_use]
    pub fn failed(self, why: &StreamError, protocols: ProtocolPolicy) -> Option<Self> {
        match why {
            StreamError::Connection(_) => Some(self),
            StreamError::Http1Required { unprocessed } => {
                wants_http1(why, protocols).then_some(Self {
                    unprocessed: *unprocessed,
                    // Not a failure of the connection: resending is due even if it was new.
                    reused: true,
                    ..self
                })
            }
            _ => why.is_unprocessed().then_some(Self {
                unprocessed: true,
                ..self
            }),
        }
    }
}

/// Whether a request is sent again on another connection. A reused connection that ends without a byte of
/// the response was probably being closed when the request was sent (RFC 9112 9.3.1). A request that was
/// certainly not processed may be sent again whatever its method, if its body can be replayed.
pub fn may_resend(
    prepared: &OutgoingRequest,
    options: &CallOptions,
    retry_context: RetryContext,
) -> bool {
    let wanted = match options.stale {
        StaleRetry::Never => false,
        StaleRetry::Idempotent => prepared.idempotent,
        StaleRetry::Any => true,
    };
    let (is_due, most) = if retry_context.unprocessed {
        (options.stale != StaleRetry::Never, MAX_REFUSALS)
    } else {
        (wanted && retry_context.reused, MAX_RESENDS)
    };
    is_due
        && prepared.body.is_replayable()
        && !retry_context.response_started
        && retry_context.resends < most
}

/// Whether the server requires HTTP/1.1 for the request (RFC 9113 7) and the configuration allows it.
pub fn wants_http1(why: &StreamError, protocols: ProtocolPolicy) -> bool {
    matches!(why, StreamError::Http1Required { .. }) && protocols == ProtocolPolicy::Either
}

/// Whether to dial again after `attempts` failed ones. A bad certificate, a refusal by the proxy or an expired
/// timeout is not retried.
pub fn may_redial(options: &CallOptions, error: &CallError, attempts: u8) -> bool {
    error.kind == CallErrorKind::Connect && attempts <= options.connect_retries
}

/// Fails if no allowed protocol version can be used on the route.
pub(super) fn check_protocols(
    protocols: ProtocolPolicy,
    route: &Route,
) -> Result<(), Box<CallError>> {
    if protocols != ProtocolPolicy::Http2 || !route.absolute_form() {
        return Ok(());
    }
    Err(Box::new(CallError::new(
        CallErrorKind::LocalProtocol,
        CallPhase::Pool,
        "http:// through an HTTP proxy requires HTTP/1.1 (RFC 9112 3.2.2), which is switched off",
    )))
}

/// Returns a random number. Not for secrets.
pub(super) fn random_u32() -> u32 {
    // Every `RandomState` has its own keys.
    RandomState::new().build_hasher().finish() as u32
}

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
    pub(super) fn describe(self, error: CallError, unprocessed: bool) -> CallError {
        let is_safe = self.idempotent || self.bytes_sent == 0 || unprocessed;
        let is_own_fault = error.kind == CallErrorKind::LocalProtocol;
        CallError {
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
        (CallErrorKind::WriteTimeout, _) => {
            "the write timeout expired: the server accepted no byte of the request"
        }
        (CallErrorKind::ReadTimeout, _) => {
            "the read timeout expired: no byte of the response arrived"
        }
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

/// The error of a call in `phase` whose connection has ended.
pub fn failure(error: &ConnectionError, phase: CallPhase) -> CallError {
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
pub fn stream_failure(error: &StreamError, phase: CallPhase) -> CallError {
    let (kind, rule): (_, Cow<'static, str>) = match error {
        StreamError::Connection(error) => return failure(error, phase),
        StreamError::Reset => (
            CallErrorKind::LocalProtocol,
            "the call was cancelled".into(),
        ),
        StreamError::Http1Required { .. } => (
            CallErrorKind::RemoteProtocol,
            "the server wants HTTP/1.1 for this request (HTTP_1_1_REQUIRED, RFC 9113 7)".into(),
        ),
        StreamError::ResetByPeer(code) => (
            CallErrorKind::RemoteProtocol,
            format!("the server reset the stream: {code} (RFC 9113 5.4.2)").into(),
        ),
        StreamError::Refused(rule) => (
            CallErrorKind::RemoteProtocol,
            format!("the server did not process the request: {rule}").into(),
        ),
        StreamError::Broken { reason, rule } => match reason {
            CloseReason::Timeout => (CallErrorKind::ReadTimeout, (*rule).into()),
            _ => (CallErrorKind::RemoteProtocol, (*rule).into()),
        },
    };
    CallError::new(kind, phase, rule)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::client::{Body, RequestText};

    const STALE: RetryContext = RetryContext {
        reused: true,
        response_started: false,
        unprocessed: false,
        resends: 0,
    };

    fn request(idempotent: bool, body: Body) -> OutgoingRequest {
        OutgoingRequest {
            route: Arc::new(Route::plain("a", 80)),
            head: RequestText::new(b"GET", b"/"),
            body,
            idempotent,
        }
    }

    fn stale(stale: StaleRetry) -> CallOptions {
        CallOptions {
            stale,
            ..CallOptions::default()
        }
    }

    #[test]
    fn only_idempotent_requests_are_resent_unless_the_policy_is_any() {
        let (get, post) = (request(true, Body::Empty), request(false, Body::Empty));
        for (policy, again, posted_again) in [
            (StaleRetry::Never, false, false),
            (StaleRetry::Idempotent, true, false),
            (StaleRetry::Any, true, true),
        ] {
            assert_eq!(may_resend(&get, &stale(policy), STALE), again);
            assert_eq!(may_resend(&post, &stale(policy), STALE), posted_again);
        }
    }

    #[test]
    fn a_request_that_may_have_been_processed_is_not_resent() {
        let options = stale(StaleRetry::Any);
        let get = request(true, Body::Bytes(Bytes::from_static(b"x")));
        assert!(may_resend(&get, &options, STALE));
        let fresh = RetryContext {
            reused: false,
            ..STALE
        };
        let answered = RetryContext {
            response_started: true,
            ..STALE
        };
        let often = RetryContext {
            resends: MAX_RESENDS,
            ..STALE
        };
        for retry_context in [fresh, answered, often] {
            assert!(
                !may_resend(&get, &options, retry_context),
                "{retry_context:?}"
            );
        }
        assert!(!may_resend(&request(true, Body::Unknown), &options, STALE));
    }

    #[test]
    fn an_unprocessed_request_is_resent_whatever_its_method() {
        let refused = RetryContext {
            reused: false,
            unprocessed: true,
            ..STALE
        };
        let post = request(false, Body::Bytes(Bytes::from_static(b"x")));
        assert!(may_resend(&post, &stale(StaleRetry::Idempotent), refused));
        assert!(!may_resend(&post, &stale(StaleRetry::Never), refused));
        let streamed = request(true, Body::Unknown);
        assert!(!may_resend(&streamed, &stale(StaleRetry::Any), refused));
        let again = RetryContext {
            resends: MAX_REFUSALS,
            ..refused
        };
        assert!(!may_resend(&post, &stale(StaleRetry::Any), again));
    }

    #[test]
    fn http1_required_falls_back_to_http1_where_allowed() {
        let unprocessed = StreamError::Http1Required { unprocessed: true };
        let begun = StreamError::Http1Required { unprocessed: false };
        let fresh = RetryContext {
            reused: false,
            ..STALE
        };
        let options = stale(StaleRetry::Idempotent);
        let (get, post) = (request(true, Body::Empty), request(false, Body::Empty));
        for (why, posted_again) in [(&unprocessed, true), (&begun, false)] {
            assert!(wants_http1(why, ProtocolPolicy::Either));
            let retry_context = fresh.failed(why, ProtocolPolicy::Either).unwrap();
            assert!(may_resend(&get, &options, retry_context));
            assert_eq!(may_resend(&post, &options, retry_context), posted_again);
            assert!(!wants_http1(why, ProtocolPolicy::Http2));
            assert_eq!(fresh.failed(why, ProtocolPolicy::Http2), None);
        }
    }

    #[test]
    fn a_stream_error_other_than_refused_is_not_resent() {
        let refused = StreamError::Refused("");
        let retry_context = STALE.failed(&refused, ProtocolPolicy::Http2).unwrap();
        assert!(retry_context.unprocessed);
        let reset = StreamError::ResetByPeer(towline_proto::ErrorCode::INTERNAL_ERROR);
        assert_eq!(STALE.failed(&reset, ProtocolPolicy::Either), None);
        assert_eq!(
            STALE.failed(&StreamError::Reset, ProtocolPolicy::Either),
            None
        );
    }

    #[test]
    fn a_dial_is_repeated_only_where_that_can_help() {
        let options = CallOptions::default();
        let error = |kind| CallError::new(kind, CallPhase::Connect, "");
        assert!(may_redial(&options, &error(CallErrorKind::Connect), 1));
        assert!(!may_redial(&options, &error(CallErrorKind::Connect), 2));
        assert!(!may_redial(&options, &error(CallErrorKind::Tls), 1));
        let late = error(CallErrorKind::ConnectTimeout);
        assert!(!may_redial(&options, &late, 1));
        assert!(!may_redial(&options, &error(CallErrorKind::Dns), 1));
    }

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
            context.describe(error, unprocessed).retryable
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
        let text = |kind, phase| timeout(kind, phase).rule.into_owned();
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
