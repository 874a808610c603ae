//! Results and errors of the operations of a blocking call.

use std::fmt;

use crate::client::request::{CallError, CallErrorKind, CallPhase};
use crate::client::route::Route;

/// The result of [`BlockingCall::take`].
#[derive(Debug)]
pub enum ReadOutcome<T> {
    Data(T),
    /// No bytes are buffered: call [`BlockingCall::fill`].
    Pending,
    /// The whole body has been read, and the connection has been released.
    End,
}

/// The result of [`BlockingCall::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// More may be written.
    Continue,
    /// The head of the response is here. [`BlockingCall::wants_body`]: the rest is to be written while the body of
    /// the response is read.
    Responded,
}

/// The result of [`BlockingCall::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillOutcome {
    /// [`BlockingCall::take`] may return something.
    Filled,
    /// A piece of the request body can be written, or its end, without waiting.
    Writable,
}

/// The reason why an operation ended without its result.
#[derive(Debug)]
pub enum BlockingError {
    /// The interrupt check stopped it; the call is over.
    Interrupted,
    Failed(Box<CallError>),
}

impl BlockingError {
    /// Adds the proxy of the route to an error.
    pub(super) fn through(self, route: &Route) -> Self {
        match self {
            Self::Interrupted => self,
            Self::Failed(error) => Self::Failed(Box::new(error.through(route))),
        }
    }
}

impl From<Box<CallError>> for BlockingError {
    fn from(error: Box<CallError>) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for BlockingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BlockingError {}

/// The error of an operation on a call that has ended.
pub(super) fn over() -> BlockingError {
    BlockingError::Failed(Box::new(CallError::new(
        CallErrorKind::LocalProtocol,
        CallPhase::Send,
        "the exchange is over",
    )))
}

/// The error of a call that a forked child inherited.
pub(super) fn belongs_to_parent() -> BlockingError {
    BlockingError::Failed(Box::new(CallError::new(
        CallErrorKind::Read,
        CallPhase::Body,
        "the response belongs to the parent process",
    )))
}
