//! ASGI 3 (spec 2.5): every request in a real `asyncio.Task`, stepped in the turn that read it.
//!
//! ```text
//! turn ── head ──► scope ──► run: spare task + coroutine ── returned ──► finish
//!                                          │ suspended                     ▲
//!                                          └──► host: the task adopts it ──┘
//! method: receive() and send() of an exchange, over message (what was given), draft (the held head),
//!         response (what becomes of it), waiting (awaitables), websocket (the same for websocket scopes)
//! sleepers: whom a later turn wakes
//! ```
mod awaitables;
mod cfunctions;
mod eager_flush;
mod exchange;
mod interned;
mod messages;
mod pending_head;
mod response;
mod run;
mod scope;
mod server;
mod task;
mod turn;
mod wake_queue;
mod websocket;

pub use server::AsgiServer;
