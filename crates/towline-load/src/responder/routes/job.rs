//! The remaining work of a connection's exchanges.

use std::time::Duration;

use towline_io::StreamMap;
use towline_proto::ws::WebSocket;

use super::behaviour::Faults;

/// Body tasks of a connection; most responses need none.
pub type Jobs = StreamMap<Job>;

/// The remaining work for the bodies of one exchange.
pub enum Job {
    Echo,
    Drain(u64, DrainResponse),
    /// Reads the whole body first, for clients that send everything before they read.
    Collect(Vec<u8>, CollectResponse),
    Fill(u64),
    Events(Events),
    Socket(Box<Echo>),
}

/// The response after a body that was discarded.
#[derive(Clone, Copy)]
pub enum DrainResponse {
    Ok,
    Hello,
    Bytes,
}

/// The response after a complete body.
#[derive(Clone, Copy)]
pub enum CollectResponse {
    /// The JSON of the request.
    Json,
    /// The bytes of the request.
    Octets,
    /// The number of pairs in its form.
    Form,
}

/// An event stream in progress.
pub struct Events {
    pub every: Duration,
    pub sent: u64,
    /// `None`: endless.
    pub left: Option<u64>,
    pub data_bytes: usize,
}

/// An open WebSocket.
pub struct Echo {
    pub socket: WebSocket,
    pub faults: Faults,
}
