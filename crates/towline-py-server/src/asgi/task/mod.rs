//! The tasks that serve requests.
//!
//! ```text
//! asyncio    functions of asyncio
//! idle       the task that the server keeps for the next request
//! coroutine  the coroutine of such a task; drive: its Python methods
//! step       one step of any coroutine
//! ```
pub mod asyncio;
mod coroutine;
mod drive;
mod idle;
pub mod step;
