//! The asynchronous face: a loop_driver per running event loop, and what its calls wait on.
//!
//! ```text
//!   get() ─► LoopDriver (of the running loop) ─► Caller: the request leaves with the send_waiters of this turn
//!   await ─► Call ─ there already? ─► result, the loop is not touched
//!              └─ Waiter ◄─ turn: events first, then the waiting tasks are stepped one by one
//! ```
pub mod awaitable;
pub mod body;
pub mod calls;
pub mod client;
pub mod event_loop;
pub mod loop_driver;
pub mod pending_op;
pub mod pool;
pub mod reply;
pub mod upload;
pub mod waiter;
pub mod websocket;
