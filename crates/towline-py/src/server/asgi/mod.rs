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
mod draft;
mod exchange;
mod haste;
mod host;
mod message;
mod method;
mod names;
mod response;
mod run;
mod scope;
mod server;
mod sleepers;
mod stepping;
mod tasks;
mod turn;
mod waiting;
mod websocket;

pub use server::AsgiServer;
