//! The Python bindings of the client: the native halves of `AsyncClient`, `Client` and `Response`, and the pools below them.
// Python determines the signatures: arguments are extracted by value, methods have a self.
#![allow(clippy::needless_pass_by_value, clippy::unused_self)]
mod aio;
mod blocking;
mod bodies;
mod call_log;
mod collector;
mod core;
mod errors;
mod fast_path;
mod finish;
mod head;
mod methods;
mod pool_config;
mod pool_methods;
mod reply;
mod request;
mod response;
mod response_config;
mod sent_request;
mod ssl_context;
mod urlencoded;
mod websocket;

pub use aio::awaitable::Call;
pub use aio::client::AsyncClientCore;
pub use aio::pool::AsyncPool;
pub use aio::reply::AsyncReply;
pub use aio::websocket::AsyncSocket;
pub use blocking::client::ClientCore;
pub use blocking::pool::SyncPool;
pub use blocking::reply::SyncReply;
pub use blocking::stream::open_stream;
pub use blocking::websocket::SyncSocket;
pub use bodies::decoder::Decoder;
pub use bodies::event::ServerSentEvent;
pub use bodies::json::{dump_json, load_json};
pub use bodies::parsers::{LineParser, SseParser};
pub use call_log::{observe_calls, take_connection_events};
pub use reply::Reply;
pub use request::IDEMPOTENT_METHODS;
pub use response::ResponseCore;
pub use websocket::Handshake;
