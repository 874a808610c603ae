//! The asynchronous face: a hub per running event loop, and what its calls wait on.
//!
//! ```text
//!   get() ─► Hub (of the running loop) ─► Caller: the request leaves with the others of this turn
//!   await ─► Call ─ there already? ─► result, the loop is not touched
//!              └─ Waiter ◄─ turn: events first, then the waiting tasks are stepped one by one
//! ```
pub mod client;
pub mod desk;
pub mod home;
pub mod hub;
pub mod operation;
pub mod source;
pub mod upload;
pub mod waiter;
pub mod websocket;
