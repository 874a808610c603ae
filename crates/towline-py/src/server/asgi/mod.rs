//! ASGI 3 (spec 2.5): every request in a real `asyncio.Task`, stepped in the turn that read it.
mod server;

pub use server::AsgiServer;
