//! ASGI 3 (spec 2.5): every request in a real `asyncio.Task`, stepped in the turn that read it.
//!
//! ```text
//! turn ── head ──► scope ──► run: spare task + coroutine ── returned ──► finish
//!                                          │ suspended                     ▲
//!                                          └──► host: the task adopts it ──┘
//! exchange: receive() and send(), over draft (the held head), response (messages), waiting (awaitables)
//! ```
mod draft;
mod exchange;
mod haste;
mod host;
mod names;
mod response;
mod run;
mod scope;
mod server;
mod stepping;
mod tasks;
mod turn;
mod waiting;

pub use server::AsgiServer;
