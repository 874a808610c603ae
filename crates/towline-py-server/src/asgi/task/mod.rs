//! The tasks that serve requests.
//!
//! ```text
//! idle       the task that the server keeps for the next request, and the functions of asyncio for it
//! coroutine  the coroutine of such a task; drive: its Python methods
//! step       one step of any coroutine
//! ```
pub mod coroutine;
mod drive;
pub mod idle;
pub mod step;
