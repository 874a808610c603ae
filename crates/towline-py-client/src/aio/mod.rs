//! The asynchronous client: a driver for each running event loop, and the awaitables that its calls return.
//!
//! ```text
//!   get() ─► LoopDriver (of the running loop) ─► request is queued, sent at the end of this iteration
//!   await ─► Call ─ response is there ─► return it, without suspending
//!              └─ TaskFuture ◄─ turn: all events first, then the waiting tasks are stepped one by one
//! ```
pub mod awaitable;
pub mod body;
pub mod buffered;
pub mod calls;
pub mod client;
pub mod loop_driver;
pub mod pending_op;
pub mod pool;
pub mod read;
pub mod reply;
pub mod upload;
pub mod websocket;
