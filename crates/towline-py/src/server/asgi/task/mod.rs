//! The tasks that serve requests: their coroutine, the idle one that the server keeps, one step of a coroutine.
pub mod coroutine;
pub mod idle;
pub mod step;
