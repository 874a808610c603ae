//! ASGI 3 (spec 2.5): every request in a real `asyncio.Task`, stepped in the turn that read it.
//!
//! ```text
//! turn ── head ──► dispatch ── scope ──► run: idle task + coroutine ── returned ──► finish
//!                                                  │ suspended                       ▲
//!                                                  └──► task: drives the coroutine ──┘
//! server        the Python class; state: its data
//! exchange      one request and its response; cfunctions: its `receive` and `send`
//! send          over messages (parsed), response (to the protocol core), pending_head (until the first body)
//! receive       over awaitables
//! nested        applications that run the loop inside a request
//! flush         when output is sent; crate::gather: outside of a turn; crate::eager_flush: when it must not wait
//! notify        which waiters are stepped or woken; wake_queue: in a later turn
//! websocket     receive and send in websocket scopes
//! ```
mod awaitables;
mod cfunctions;
mod dispatch;
mod exchange;
mod exchange_state;
mod finish;
mod flush;
mod interned;
mod messages;
mod nested;
mod notify;
mod outcome;
mod part_batch;
mod pending_head;
mod receive;
mod response;
mod run;
mod scope;
mod scope_overrides;
mod send;
mod server;
mod state;
mod task;
mod turn;
mod wake_queue;
mod websocket;

pub use state::AsgiServer;
