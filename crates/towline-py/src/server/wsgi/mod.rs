//! WSGI (PEP 3333).
//!
//! ```text
//! server            the Python class; control: commands to it; application: what all threads share
//! inline, threads   the two main loops; work_queue: from the I/O thread to the workers
//! request           from a connection's events to a request        (no Python)
//! request_io        the I/O of an application thread               inline: the engine; worker: one connection
//! shared_conn       an HTTP/2 connection whose streams several workers serve
//! app_runner        one call of the application: environ, responder, input, pending_head, file_wrapper, context
//! builtin           responses without the application
//! ```
mod app_runner;
mod application;
mod builtin;
mod client_info;
mod context;
mod control;
mod environ;
mod file_wrapper;
mod inline;
mod input;
mod log;
mod pending_head;
mod request;
mod request_io;
mod responder;
mod server;
mod shared_conn;
mod text;
mod threads;
mod work_queue;

pub use server::WsgiServer;
