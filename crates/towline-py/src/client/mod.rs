//! The client: the native halves of `AsyncClient`, `Client` and `Response`, and the pools below them.
pub mod aio;
pub mod blocking;
pub mod collector;
pub mod core;
pub mod errors;
pub mod fast_path;
pub mod finish;
pub mod head;
pub mod methods;
pub mod pool_config;
pub mod pool_status;
pub mod reply;
pub mod request;
pub mod response;
pub mod response_config;
pub mod ssl_context;
mod urlencoded;
pub mod websocket;
