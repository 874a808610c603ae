//! WSGI (PEP 3333).
//!
//! ```text
//! server            the Python class; control: commands to it; application: what all threads share
//! inline, threads   the two main loops; work_queue: from the I/O thread to the workers
//! request           from a connection's events to a request        (no Python)
//! request_io        the I/O of an application thread               inline_io: the engine; worker: one connection
//! shared_conn       an HTTP/2 connection whose streams several workers serve
//! app_runner        one call of the application: environ, responder, input, pending_head, file_wrapper, context
//! websocket_threads requests for WebSockets, bounded by websockets; taken_socket: environ["werkzeug.socket"]
//! builtin           responses without the application
//! ```
//!
//! A client never decides how long a thread is occupied:
//! - A request is received completely before the application is called: in memory, then in a temporary file
//!   (`request`). Over `--wsgi-request-buffer` the application reads the rest itself.
//! - A response goes to the socket. If the client is slow, the thread waits for it, as PEP 3333 wants, but only
//!   until a request waits for the thread: then the response goes to a temporary file (`request_io::write_out`), and
//!   the engine sends it after the call. Over `--wsgi-response-buffer` the thread waits, for
//!   `--timeout-wsgi-client` of other requests' time.
//! - An iterator is never suspended to run another call on its thread: applications keep state in their thread.
//! - Timeouts count only while we wait for the peer: before one takes effect, the kernel's buffers are checked
//!   (`Conn::catch_up`), and complete requests are received even if the queue is full (`threads`).
mod app_runner;
mod application;
mod builtin;
mod client_info;
mod context;
mod control;
mod environ;
mod file_wrapper;
mod inline;
mod inline_io;
mod input;
mod log;
mod pending_head;
mod request;
mod request_io;
mod response_bounds;
mod server;
mod shared_conn;
mod start_response;
mod taken_socket;
mod text;
mod threads;
mod undecodable;
mod websocket_threads;
mod websockets;
mod work_queue;
mod worker;

pub use server::WsgiServer;
