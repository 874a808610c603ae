//! `towline._native`: the Python module, which joins the bindings of server, client, state and bench.
// Python determines the signatures: arguments are extracted by value, methods have a self.
#![allow(clippy::needless_pass_by_value, clippy::unused_self)]
use pyo3::prelude::*;

mod bench;
mod output_file;
mod state;

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    const IDEMPOTENT_METHODS: [&str; 6] = towline_py_client::IDEMPOTENT_METHODS;
    #[pymodule_export]
    use super::bench::pool::PoolBench;
    #[pymodule_export]
    use super::bench::{load_main, load_options, netem_main, responder_main, test_certificate};
    #[pymodule_export]
    use super::output_file::open_output;
    #[pymodule_export]
    use super::state::{log_reader::StateLog, store::StateStore};
    #[pymodule_export]
    use towline_py_client::{
        AsyncClientCore, AsyncPool, AsyncReply, AsyncSocket, Call, ClientCore, Decoder, Handshake,
        LineParser, Reply, ResponseCore, ServerSentEvent, SseParser, SyncPool, SyncReply,
        SyncSocket, dump_json, load_json, observe_calls, open_stream, take_connection_events,
    };
    #[pymodule_export]
    use towline_py_server::{
        AsgiServer, SharedStats, Slot, Tickets, WsgiServer, open_listeners, resident_bytes,
        shared_memory,
    };
}
