//! `towline._native`: the Python bindings of the engine. The only crate that depends on Python.
// Python determines the signatures: arguments are extracted by value, methods have a self.
#![allow(clippy::needless_pass_by_value, clippy::unused_self)]
use pyo3::prelude::*;

mod bench_processes;
mod bodies;
mod client;
mod coroutine;
mod errors;
mod gil;
mod load;
mod output_file;
mod pool_bench;
mod server;
#[cfg(target_os = "linux")]
mod state;

// One thread at a time, on a free-threaded build, too: see `gil`.
#[pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use super::bench_processes::{netem_main, responder_main};
    #[pymodule_export]
    use super::bodies::decoder::Decoder;
    #[pymodule_export]
    use super::bodies::event::ServerSentEvent;
    #[pymodule_export]
    use super::bodies::json::{dump_json, load_json};
    #[pymodule_export]
    use super::bodies::parsers::{LineParser, SseParser};
    #[pymodule_export]
    use super::client::aio::awaitable::Call;
    #[pymodule_export]
    use super::client::aio::client::AsyncClientCore;
    #[pymodule_export]
    use super::client::aio::pool::AsyncPool;
    #[pymodule_export]
    use super::client::aio::reply::AsyncReply;
    #[pymodule_export]
    use super::client::aio::websocket::AsyncSocket;
    #[pymodule_export]
    use super::client::blocking::client::ClientCore;
    #[pymodule_export]
    use super::client::blocking::pool::SyncPool;
    #[pymodule_export]
    use super::client::blocking::reply::SyncReply;
    #[pymodule_export]
    use super::client::blocking::stream::open_stream;
    #[pymodule_export]
    use super::client::blocking::websocket::SyncSocket;
    #[pymodule_export]
    use super::client::call_log::{observe_calls, take_connection_events};
    #[pymodule_export]
    use super::client::reply::Reply;
    #[pymodule_export]
    use super::client::response::ResponseCore;
    #[pymodule_export]
    use super::client::websocket::Handshake;
    #[pymodule_export]
    use super::load::{load_main, test_certificate};
    #[pymodule_export]
    use super::output_file::open_output;
    #[pymodule_export]
    use super::pool_bench::PoolBench;
    #[pymodule_export]
    use super::server::asgi::AsgiServer;
    #[pymodule_export]
    use super::server::listeners::open_listeners;
    #[pymodule_export]
    use super::server::shared_stats::{SharedStats, Slot};
    #[pymodule_export]
    use super::server::tickets::Tickets;
    #[pymodule_export]
    use super::server::wsgi::WsgiServer;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::state::log_reader::StateLog;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::state::store::StateStore;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::gil::require(module.py())
    }
}
