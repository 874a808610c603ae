//! The life of a connection and of its streams over HTTP/2 and HTTP/3, on top of what each of them does by itself.

use std::sync::Arc;
use std::time::Instant;

use crate::error::CloseReason;
use crate::{ConnectionError, Refusal, Side, StreamId, UserError};

use super::core::Core;
use super::fault::Fault;
use super::stream::{Number, Part, Variant};
use super::streams::StreamKey;

/// A connection of HTTP/2 or HTTP/3. The required methods are those in which the protocols differ.
pub(crate) trait Multiplexed {
    type Variant: Variant;

    fn core(&self) -> &Core<Self::Variant>;

    fn core_mut(&mut self) -> &mut Core<Self::Variant>;

    /// Neither closing nor closed.
    fn is_open(&self) -> bool;

    /// Number of requests that can be in flight at once; 0: no more can be started.
    fn stream_limit(&self) -> usize;

    /// Whether the server accepts an extended CONNECT; `None`: its SETTINGS have not arrived.
    fn extended_connect(&self) -> Option<bool>;

    #[inline]
    fn side(&self) -> Side {
        self.core().side()
    }

    #[inline]
    fn response_started(&self) -> bool {
        self.core().response_started()
    }

    #[inline]
    fn error(&self) -> Option<&Arc<ConnectionError>> {
        self.core().error()
    }

    /// Number of requests that can be started now.
    #[inline]
    fn stream_capacity(&self) -> usize {
        self.stream_limit()
            .saturating_sub(self.core().open_streams())
    }

    #[inline]
    fn find(&self, id: StreamId) -> Result<StreamKey, UserError> {
        let id = <Self::Variant as Variant>::Id::of(id).ok_or(UserError::UnknownStream)?;
        self.core()
            .find(id)
            .filter(|&key| self.core().stream(key).own.is_known())
            .ok_or(UserError::UnknownStream)
    }

    #[inline]
    fn has_refusals(&self) -> bool {
        self.core().has_refusals()
    }

    fn take_refusal(&mut self) -> Option<Refusal> {
        self.core_mut().take_refusal()
    }

    /// The fault that has ended the stream `id`: its status (0: no response was sent) and its rule.
    fn refusal_of(&self, id: StreamId) -> Option<(u16, CloseReason, &'static str)> {
        let key = self.find(id).ok()?;
        self.core().stream(key).exchange.refusal()
    }
}

/// How streams and the connection end.
pub(crate) trait Lifecycle: Multiplexed {
    /// Closes the stream if both directions and the program are done with it.
    fn check_closed(&mut self, key: StreamKey);

    /// The program has released a stream that has failed.
    fn release_failed(&mut self, key: StreamKey);

    /// The rest of a request is not waited for any longer.
    fn stop_discarding(&mut self, key: StreamKey);

    /// Resets a stream after a violation or a timeout. `Err`: the rate limit of resets is exceeded.
    fn reset_stream(&mut self, key: StreamKey, fault: Fault) -> Result<(), Fault>;

    /// Resets a stream for the program, or releases one that has failed.
    fn reset(&mut self, key: StreamKey);

    fn close(&mut self);

    /// Closes the connection if GOAWAY was exchanged and no stream is open.
    fn close_if_drained(&mut self);

    /// Orderly end.
    fn close_gracefully(&mut self, error: ConnectionError);

    /// Ends the connection after a violation or a timeout.
    fn fail_connection(&mut self, fault: Fault);

    /// Time until which the rest of a request is skipped. A server that stops leaves less time.
    fn discard_until(&self) -> Instant {
        let (core, limits) = (self.core(), self.core().limits());
        core.now()
            + if core.is_closing() {
                limits.drain_idle_timeout
            } else {
                limits.discard_timeout
            }
    }

    /// A server that stops leaves less time to requests that are skipped.
    fn shorten_discarding(&mut self) {
        let latest = self.discard_until();
        for key in self.core().stream_keys() {
            let core = self.core_mut();
            if let Some(until) = &mut core.stream_mut(key).discard_until {
                *until = latest.min(*until);
                let now = core.now();
                core.timers_mut().set_streams(Some(now));
            }
        }
    }
}
