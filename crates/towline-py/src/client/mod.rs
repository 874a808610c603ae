//! The client: the native halves of `AsyncClient`, `Client` and `Response`, and the pools below them.
pub mod aio;
pub mod blocking;
pub mod call;
pub mod collect;
pub mod core;
pub mod errors;
mod form;
pub mod head;
pub mod methods;
pub mod options;
pub mod plain;
pub mod plan;
pub mod pool;
pub mod prepare;
pub mod reply;
pub mod response;
pub mod terms;
pub mod tls;
