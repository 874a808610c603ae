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
mod berth;
mod context;
mod desk;
mod draft;
mod environ;
mod exchange;
mod file_wrapper;
mod inline;
mod input;
mod log;
mod origin;
mod own;
mod request;
mod responder;
mod server;
mod text;
mod threads;

pub use server::WsgiServer;
