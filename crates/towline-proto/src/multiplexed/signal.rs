//! Events, before they borrow what they show from their connection.

use std::sync::Arc;

use crate::{ConnectionError, Event, StreamError, StreamId};

use super::exchange::Exchange;
use super::head::HeadDecoder;
use crate::pending_events::PendingEvents;

/// An event without borrows.
pub(crate) enum Signal {
    Head { stream: StreamId, end: bool },
    Informational { stream: StreamId },
    Readable(StreamId),
    Switched(StreamId),
    HalfClosed(StreamId),
    Writable(StreamId),
    Failed(StreamId, StreamError),
    GoingAway { last: StreamId },
    Closed,
}

/// Result of a frame, or of a part of one.
pub(crate) enum Step {
    Signal(Signal),
    Next,
    /// More input is needed, or none will come.
    NeedMore,
}

impl Signal {
    /// Takes the first pending event of a stream that has one.
    #[inline]
    pub fn pending_of(stream: StreamId, exchange: &mut Exchange) -> Self {
        let pending = &mut exchange.pending;
        if pending.take(PendingEvents::SWITCHED) {
            Self::Switched(stream)
        } else if pending.take(PendingEvents::READABLE) {
            Self::Readable(stream)
        } else if pending.take(PendingEvents::HALF_CLOSED) {
            Self::HalfClosed(stream)
        } else if pending.take(PendingEvents::WRITABLE) {
            Self::Writable(stream)
        } else {
            pending.take(PendingEvents::FAILED);
            let failure = exchange.failure.clone();
            Self::Failed(stream, failure.unwrap_or(StreamError::Reset))
        }
    }

    /// The event for the program. `error`: why the connection has ended.
    #[expect(
        clippy::inline_always,
        reason = "a call costs 20 of 5,600 instructions an exchange, for its large result; measured by benches/h2_memory"
    )]
    #[inline(always)]
    pub fn event<'a>(
        self,
        head: &'a HeadDecoder,
        error: Option<&Arc<ConnectionError>>,
    ) -> Option<Event<'a>> {
        Some(match self {
            Self::Head { stream, end } => Event::Head {
                stream,
                head: head.view(),
                end,
            },
            Self::Informational { stream } => Event::Informational {
                stream,
                head: head.view(),
            },
            Self::Readable(stream) => Event::Readable(stream),
            Self::Switched(stream) => Event::Switched { stream },
            Self::HalfClosed(stream) => Event::HalfClosed(stream),
            Self::Writable(stream) => Event::Writable(stream),
            Self::Failed(stream, error) => Event::Failed(stream, error),
            Self::GoingAway { last } => Event::GoingAway { last },
            Self::Closed => Event::Closed(Arc::clone(error?)),
        })
    }
}
