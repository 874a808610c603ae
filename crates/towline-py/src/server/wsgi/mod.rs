//! WSGI (PEP 3333).
//!
//! ```text
//! request   from events to a request                      (no Python)
//! desk      where an application thread does its I/O      inline: the engine; threads: one connection
//! berth     a connection whose streams several threads serve
//! exchange  one call of the application: environ, responder, input, draft, file_wrapper, context
//! own       what the server answers itself: files, metrics
//! inline, threads   the two loops; server: the Python class
//! ```
mod app_runner;
mod builtin;
mod client_info;
mod context;
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

pub use server::WsgiServer;
