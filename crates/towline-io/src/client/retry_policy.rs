//! Decides, as pure functions, whether a request is sent again after a failure. The asynchronous driver and the
//! blocking HTTP/1 and HTTP/2 paths all decide here.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use towline_proto::{ProtocolPolicy, StreamError};

use super::request::{CallError, CallErrorKind, CallOptions, OutgoingRequest, StaleRetry};

/// Maximum resends of a request after a stale connection: a server that closes its idle connections closes several at once.
const MAX_RESENDS: u8 = 3;

/// Maximum resends of a request that the server refused unprocessed: a server that closes each connection after a number
/// of requests refuses those in progress each time. The same as in Go's transport.
const MAX_UNPROCESSED_RESENDS: u8 = 6;

/// Pause before the second such resend, doubled for each further one: all of them take 3 s.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Pause before the first resend to a server that asks for fewer requests.
const FIRST_CALM_PAUSE: Duration = Duration::from_secs(1);

/// State of a call whose exchange has ended, as far as resending depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct RetryContext {
    /// The connection had carried an exchange before.
    pub reused: bool,
    /// A byte of the response had arrived.
    pub response_started: bool,
    /// The server has declared that it did not process the request and will not (RFC 9113 8.7).
    pub unprocessed: bool,
    /// The server asks for fewer requests: the request is not sent again at once.
    pub calm: bool,
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
            calm: false,
            resends,
        })
    }

    /// Returns the context after the failure `why`. `None`: the request would fail the same way again.
    #[must_use]
    pub(super) fn failed(self, why: &StreamError, protocols: ProtocolPolicy) -> Option<Self> {
        match why {
            StreamError::Connection(_) => Some(self),
            // A connection on which the server refuses everything because of an error: the next one would be the same.
            StreamError::ClosedByPeer {
                unprocessed: true,
                close,
            } if close.is_error() && close.processed_none => None,
            StreamError::ClosedByPeer { unprocessed, close } => Some(Self {
                unprocessed: *unprocessed,
                calm: close.asks_for_less(),
                ..self
            }),
            StreamError::Http1Required { unprocessed, .. } => {
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

    /// Pause before the request is sent again: none the first time, so that the end of one connection costs no time,
    /// then longer each time, so that a server that refuses everything gets no storm of requests.
    #[must_use]
    pub(super) fn pause(self) -> Duration {
        let doubled = |pause: Duration, times: u8| pause.saturating_mul(1 << times.min(16));
        match (self.calm, self.unprocessed, self.resends) {
            (true, _, resends) => doubled(FIRST_CALM_PAUSE, resends),
            (false, false, _) | (false, true, 0) => Duration::ZERO,
            (false, true, resends) => doubled(FIRST_PAUSE, resends - 1),
        }
    }
}

/// Whether a request is sent again on another connection. A reused connection that ends without a byte of
/// the response was probably being closed when the request was sent (RFC 9112 9.3.1). A request that was
/// certainly not processed may be sent again whatever its method, if its body can be replayed.
pub(super) fn may_resend(
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
        (options.stale != StaleRetry::Never, MAX_UNPROCESSED_RESENDS)
    } else {
        (wanted && retry_context.reused, MAX_RESENDS)
    };
    is_due
        && prepared.body.is_replayable()
        && !retry_context.response_started
        && retry_context.resends < most
}

/// Whether the server requires HTTP/1.1 for the request (RFC 9113 7, RFC 9114 8.1) and the configuration allows it.
pub(super) fn wants_http1(why: &StreamError, protocols: ProtocolPolicy) -> bool {
    let allows_http1 = matches!(protocols, ProtocolPolicy::Http1 | ProtocolPolicy::Either);
    matches!(why, StreamError::Http1Required { .. }) && allows_http1
}

/// Whether to dial again after `attempts` failed ones. A bad certificate, a refusal by the proxy or an expired
/// timeout is not retried.
pub(super) fn may_redial(options: &CallOptions, error: &CallError, attempts: u8) -> bool {
    error.kind == CallErrorKind::Connect && attempts <= options.connect_retries
}

/// Returns a random number for the jitter of a pause. Not for secrets.
pub(super) fn random_u32() -> u32 {
    // Every `RandomState` has its own keys.
    RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use towline_proto::{ErrorCode, PeerClose};

    use super::*;
    use crate::client::request::CallPhase;
    use crate::client::{Body, RequestText, Route};

    const STALE: RetryContext = RetryContext {
        reused: true,
        response_started: false,
        unprocessed: false,
        calm: false,
        resends: 0,
    };

    fn request(idempotent: bool, body: Body) -> OutgoingRequest {
        OutgoingRequest {
            route: Arc::new(Route::plain("a", 80)),
            head: RequestText::new(b"GET", b"/").into(),
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
            resends: MAX_UNPROCESSED_RESENDS,
            ..refused
        };
        assert!(!may_resend(&post, &stale(StaleRetry::Any), again));
    }

    #[test]
    fn http1_required_falls_back_to_http1_where_allowed() {
        let required = |unprocessed| StreamError::Http1Required {
            unprocessed,
            code: "HTTP_1_1_REQUIRED (RFC 9113 7)",
        };
        let (unprocessed, begun) = (required(true), required(false));
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
    fn a_first_request_refused_with_an_error_is_not_resent() {
        let go_away = |code, processed_none| StreamError::ClosedByPeer {
            unprocessed: true,
            close: Arc::new(PeerClose {
                code,
                debug: "".into(),
                processed_none,
            }),
        };
        let after = |why: &StreamError| STALE.failed(why, ProtocolPolicy::Http2);
        let calm = ErrorCode::ENHANCE_YOUR_CALM;
        assert_eq!(after(&go_away(calm, true)), None);
        assert_eq!(after(&go_away(ErrorCode::PROTOCOL_ERROR, true)), None);
        let polite = after(&go_away(ErrorCode::NO_ERROR, true)).unwrap();
        assert_eq!(polite.pause(), Duration::ZERO);
        let later = after(&go_away(calm, false)).unwrap();
        assert!(later.unprocessed);
        assert_eq!(later.pause(), FIRST_CALM_PAUSE);
    }

    #[test]
    fn pauses_between_resends_grow() {
        let refused = |resends| RetryContext {
            unprocessed: true,
            resends,
            ..STALE
        };
        let pauses: Vec<_> = (0..MAX_UNPROCESSED_RESENDS)
            .map(|resends| refused(resends).pause().as_millis())
            .collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600]);
        assert_eq!(STALE.pause(), Duration::ZERO);
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
}
