//! The asynchronous client below Python: one engine, one pool, and the calls of one event loop.
//!
//! ```text
//!   begin ─► connection at hand? ─yes─► request written ─► Head ─► read ... End ─► connection back
//!               └─no─► waits (pool) ◄─ stale or connect retry ─┘ Failed ─► connection closed
//! ```
//!
//! A turn: [`Caller::turn`], then [`Caller::next_event`] until there is none. Act on an event before
//! asking for the next one (take the head, read what is there): the connection that it came from is
//! settled then, and gives its block back. Every call ends with [`Caller::cancel`], which is harmless
//! after its last event: a call that is over keeps its trailers and timings until then.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use towline_proto::{Field, KeptHead, Limits};

use super::dial::DialConfig;
use super::pool::{PoolLimits, PoolStatus};
use super::request::{CallError, CallOptions, Prepared, Timings};
use super::route::Route;
use crate::engine::{Engine, EngineConfig, Remote};

/// The bounds and terms of a client.
#[derive(Clone, Debug)]
pub struct CallerConfig {
    pub engine: EngineConfig,
    pub pool: PoolLimits,
    pub dial: Arc<DialConfig>,
    /// Of each connection; `window_bytes` is what a response may have here that nobody has read.
    pub limits: Arc<Limits>,
    pub flush: Flush,
}

impl Default for CallerConfig {
    fn default() -> Self {
        Self {
            engine: EngineConfig::default(),
            pool: PoolLimits::default(),
            dial: Arc::default(),
            limits: Arc::new(Limits::client()),
            flush: Flush::AtOnce,
        }
    }
}

/// When a request leaves that was begun outside a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    #[default]
    AtOnce,
    /// With [`Caller::flush`] or in the next turn, together with the others.
    Together,
}

/// One call of one [`Caller`]. Once the call is gone the name finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    index: u32,
    generation: u32,
}

impl CallId {
    /// As one number, for languages that cannot hold a struct.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The inverse of [`CallId::as_u64`].
    pub fn from_u64(number: u64) -> Self {
        Self {
            index: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

/// What happened to a call.
#[derive(Debug)]
pub enum CallEvent {
    /// The response has begun: [`Caller::take_head`]. `end`: no body follows.
    Head {
        end: bool,
    },
    /// An interim response.
    Informational(KeptHead),
    /// After [`CallRead::Pending`]: body bytes, or the end.
    Readable,
    /// A streamed body may go on. Comes first when the request has got its connection, then after each
    /// `write` that left no room.
    Writable,
    /// After a 101, or a 2xx to CONNECT: `read` and `write` now carry raw bytes.
    Switched,
    Failed(Box<CallError>),
}

/// What reading a response gave.
#[derive(Debug)]
pub enum CallRead<'a> {
    /// Never empty. Taking it is what lets the server send more.
    Data(&'a [u8]),
    /// Nothing now: [`CallEvent::Readable`] or [`CallEvent::Failed`] follows.
    Pending,
    /// The whole body has been read and the connection has been given back.
    End,
    Failed(Box<CallError>),
}

/// See the module's picture. It must stay on its thread's event loop.
pub struct Caller {
    engine: Engine<()>,
}

impl Caller {
    pub fn new(config: CallerConfig) -> io::Result<Self> {
        Ok(Self {
            engine: Engine::new(config.engine)?,
        })
    }

    /// Readable whenever `turn` has something to do. For another poll; never read from it.
    pub fn as_raw_fd(&self) -> RawFd {
        self.engine.as_raw_fd()
    }

    /// Starts a turn from another thread.
    pub fn remote(&self) -> Remote {
        self.engine.remote()
    }

    /// Polls. `Some(0)` never blocks and is what a foreign loop calls. Take every event afterwards.
    pub fn turn(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.engine.turn_start(wait)
    }

    /// What has happened, in and outside turns. `None` ends the turn.
    pub fn next_event(&mut self) -> Option<(CallId, CallEvent)> {
        self.engine.turn_end();
        None
    }

    /// Starts a call. When a connection is at hand the request is written now. `Err`: it is malformed,
    /// too many wait, or the client is closed.
    pub fn begin(
        &mut self,
        request: Prepared,
        options: CallOptions,
    ) -> Result<CallId, Box<CallError>> {
        let _ = (request, options);
        Err(Box::new(CallError::closed()))
    }

    /// Sends what [`Flush::Together`] has held back.
    pub fn flush(&mut self) {}

    /// The final head, once.
    pub fn take_head(&mut self, call: CallId) -> Option<KeptHead> {
        let _ = call;
        None
    }

    /// Takes up to `max` bytes of the body.
    pub fn read(&mut self, call: CallId, max: usize) -> CallRead<'_> {
        let _ = (call, max);
        CallRead::End
    }

    /// Bytes held that have not been read, framing included: never more than the window.
    pub fn buffered(&mut self, call: CallId) -> usize {
        let _ = call;
        0
    }

    /// Queues bytes of a streamed body; large ones by reference. Returns the room that is left: 0 means
    /// to wait for [`CallEvent::Writable`].
    pub fn write(&mut self, call: CallId, data: Bytes) -> Result<usize, Box<CallError>> {
        let _ = (call, data);
        Err(Box::new(CallError::closed()))
    }

    /// Bytes that may be written before waiting. 0 also before the request has got its connection.
    pub fn room(&mut self, call: CallId) -> usize {
        let _ = call;
        0
    }

    /// Ends a streamed body.
    pub fn finish(&mut self, call: CallId, trailers: &[Field<'_>]) -> Result<(), Box<CallError>> {
        let _ = (call, trailers);
        Err(Box::new(CallError::closed()))
    }

    /// Gives a call up, or puts away one that is over. Its slot is free at once.
    pub fn cancel(&mut self, call: CallId) {
        let _ = call;
    }

    pub fn timings(&self, call: CallId) -> Timings {
        let _ = call;
        Timings::default()
    }

    /// The connection had carried an exchange before.
    pub fn is_reused(&self, call: CallId) -> bool {
        let _ = call;
        false
    }

    /// Opens connections ahead of need, until there are `n` of this route.
    pub fn prewarm(&mut self, route: &Arc<Route>, n: usize) {
        let _ = (route, n);
    }

    pub fn status(&self) -> PoolStatus {
        PoolStatus::default()
    }

    /// Takes no further call and fails those that wait; the others go on. Over when `is_empty`.
    pub fn close(&mut self) {
        self.engine.drain();
    }

    /// No call is left and no connection is open.
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }
}
