//! The synchronous client below Python: one pool for all threads, and every call on the thread that makes it,
//! blocking on its own socket.
//!
//! ```text
//!   begin ─► SharedPool: a free connection, waited for, or dialled here ─► request written
//!              ▲                                                              │ (write, finish)
//!              └── stale: sent again on another ◄── await_head ◄──────────────┘
//!                                                      └─► take / fill ... End ─► connection released
//! ```
//!
//! An HTTP/1 connection carries one call at a time (`h1_call`, `h1_exchange`, `h1_conn`); an HTTP/2 connection is
//! driven by the client's one `ClientDriver` (`h2_call`, `h2_driver`), which also drives those of the asynchronous
//! client.
//!
//! A call waits in three places: for a connection in `pool_wait` (with a `waiter_mailbox`, or driving a dial), for
//! the server in `h1_wait` or `h2_wait`. `wait_policy` has the deadlines and the interrupt check of all.
//!
//! A warm request over HTTP/1 costs three system calls: one check of the idle connection, one send, one receive; a
//! thread that is alone may poll for the response a few times before it sleeps (`client/adaptive_spin`).

mod acquire;
mod call;
mod config;
mod h1_call;
mod h1_conn;
mod h1_exchange;
mod h1_wait;
mod h2_call;
mod h2_driver;
mod h2_wait;
mod outcome;
mod pool_wait;
mod pooled_conn;
mod read_buffer;
mod shared_pool;
mod wait_policy;
mod waiter_mailbox;
mod wake_pipe;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use super::fork;
use super::pool::PoolStatus;
use super::request::{CallOptions, OutgoingRequest};
use super::route::Route;

pub use call::BlockingCall;
pub use config::BlockingConfig;
pub use outcome::{BlockingError, FillOutcome, ReadOutcome, WriteOutcome};
pub use wait_policy::WaitPolicy;
pub use websocket::{BlockingWebSocket, UpgradeOutcome, WsRecvOutcome};

use shared_pool::SharedPool;

/// The client; see the module's diagram.
pub struct BlockingClient {
    pool: Arc<SharedPool>,
}

impl BlockingClient {
    pub fn new(config: BlockingConfig) -> Self {
        Self {
            pool: Arc::new(SharedPool::new(config)),
        }
    }

    /// Acquires a connection and writes the request, with the whole body unless it is streamed. Then
    /// [`BlockingCall::write`] and [`finish`](BlockingCall::finish) a streamed body, and
    /// [`await_head`](BlockingCall::await_head).
    pub fn begin(
        &self,
        request: OutgoingRequest,
        options: CallOptions,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<BlockingCall, BlockingError> {
        BlockingCall::begin(Arc::clone(&self.pool), request, options, policy)
    }

    /// Opens connections until the route has `n`. Returns how many were opened.
    pub fn prewarm(
        &self,
        route: &Arc<Route>,
        n: usize,
        timeout: Option<Duration>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<usize, BlockingError> {
        self.pool.open_ahead(route, n, timeout, policy)
    }

    pub fn status(&self) -> PoolStatus {
        self.pool.status()
    }

    /// Closes idle connections and fails waiting calls; connections in use close when their calls end.
    pub fn close(&self) {
        self.pool.config.dial.save_alternatives();
        self.pool.close();
    }

    /// Whether it was made before a fork, in the parent process: call [`close_after_fork`](Self::close_after_fork) and
    /// make a new one.
    pub fn is_from_parent_process(&self) -> bool {
        self.pool.generation != fork::generation()
    }

    /// Closes the parent's sockets in this process without sending anything.
    pub fn close_after_fork(&self) {
        if self.is_from_parent_process() {
            self.pool.close_after_fork();
        }
    }
}

impl Drop for BlockingClient {
    fn drop(&mut self) {
        self.close_after_fork();
        self.pool.outlive_fork();
    }
}
