//! The synchronous client: calls run on the calling thread, which waits without the GIL.
pub mod body;
pub mod client;
pub mod pool;
pub mod reply;
pub mod stream;
pub mod upload;
pub mod wait;
pub mod websocket;
