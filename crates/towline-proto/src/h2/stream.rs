//! The HTTP/2 part of a stream, in addition to `multiplexed::stream`: windows and trailers to send.
//!
//! The states of RFC 9113 5.1: *open* is neither `Ended` nor `Sent`; *half-closed (remote)* is `Ended`;
//! *half-closed (local)* is `Sent`; a stream that is both, or failed, is *closed*, and exists only as long as the
//! program uses it.

use std::time::Instant;

use crate::head::OwnedFields;
use crate::multiplexed::stream::{self, Part, SharedLimits, SharedRules, Variant};
use crate::{Limits, Protocol};

pub(super) use crate::multiplexed::states::{EndStream, RecvState, SendState, Tunnel};

use super::rules;
use super::window::{RecvWindow, SendWindow};

/// The types, rules and limits of HTTP/2.
#[derive(Debug, Default)]
pub(crate) struct Http2;

impl Variant for Http2 {
    type Id = u32;
    type Part = StreamPart;
    type Idle = ();

    const PROTOCOL: Protocol = Protocol::Http2;
    const RULES: SharedRules = SharedRules {
        resets: rules::RESETS,
        control: rules::CONTROL,
        messages: rules::MESSAGES,
        silent: rules::SILENT,
        slow_body: rules::SLOW_BODY,
        slow_reader: rules::SLOW_WINDOW,
    };

    #[inline]
    fn limits(limits: &Limits) -> SharedLimits {
        SharedLimits {
            resets: limits.http2.resets,
            control_frames: limits.http2.control_frames,
            max_unsent_bytes: limits.http2.max_unsent_bytes,
            go_away_delay: limits.http2.go_away_delay,
        }
    }
}

pub(super) type Stream = stream::Stream<Http2>;

/// State that only a stream of HTTP/2 has.
#[derive(Debug, Default)]
pub(crate) struct StreamPart {
    pub(super) recv_window: RecvWindow,
    pub(super) send_window: SendWindow,
    /// The program is done with the stream, whose request is skipped.
    pub(super) is_released: bool,
    /// Trailers to send after the body.
    pub(super) pending_trailers: Option<Box<OwnedFields>>,
}

impl StreamPart {
    #[inline]
    pub(super) fn begin(&mut self, recv_window: RecvWindow, send_window: SendWindow) {
        self.recv_window = recv_window;
        self.send_window = send_window;
        self.is_released = false;
    }
}

impl Part for StreamPart {
    #[inline]
    fn may_send(&self) -> bool {
        true
    }

    #[inline]
    fn is_known(&self) -> bool {
        true
    }

    #[inline]
    fn deadline(&self, _limits: &Limits) -> Option<Instant> {
        None
    }

    #[inline]
    fn end(&mut self) {
        self.pending_trailers = None;
    }

    fn shrink(&mut self) {}
}

impl Stream {
    /// The stream has failed, and nothing of it is waited for.
    pub(super) fn is_over(&self) -> bool {
        self.has_failed() && self.discard_until.is_none()
    }

    /// Ends the skipping of the rest of the request; whether the program is done with the stream, too.
    pub(super) fn take_discard(&mut self) -> bool {
        self.discard_until.take().is_some() && self.own.is_released
    }

    /// The stream has something to send, and its own window does not hold it back.
    #[inline]
    pub(super) fn can_send(&self) -> bool {
        self.wants_to_send() && (self.outbox.is_empty() || self.own.send_window.bytes() > 0)
    }
}
