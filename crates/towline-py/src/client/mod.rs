//! The client: the native halves of `AsyncClient`, `Client` and `Response`, and the pools below them.
pub mod call;
pub mod core;
pub mod pool;
pub mod reply;
pub mod response;
