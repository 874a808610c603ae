//! The state of a WebSocket in an exchange.
use std::sync::Arc;

use towline_proto::ws::handshake::Acceptance;
use towline_proto::ws::{self, WebSocket, deflate};

use crate::open_gauge::OpenGauge;
use crate::options::Options;

/// The part of a message that is read before the application receives it.
pub const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Close code of a connection that ended without a close frame (RFC 6455 7.1.5).
pub const ABNORMAL_CLOSURE: u16 = 1006;
/// Close code of a server shutdown after which the client may reconnect (RFC 6455 7.4, registered by its errata).
pub const SERVICE_RESTART: u16 = 1012;
/// Close code after an exception of the application (RFC 6455 7.4.1).
pub const INTERNAL_ERROR: u16 = 1011;
/// Close code after a normal end of the application (RFC 6455 7.4.1).
pub const NORMAL_CLOSURE: u16 = 1000;

/// Configuration and scratch memory of all `WebSockets` of a worker.
pub struct WsContext {
    /// `--ws`: without it an upgrade is an ordinary request.
    pub is_enabled: bool,
    pub limits: Arc<ws::Limits>,
    pub deflate: Option<deflate::Config>,
    pub shared: ws::Scratch,
    /// Buffer for the frames of a short message.
    pub frames: Vec<u8>,
}

impl WsContext {
    pub fn new(options: &Options) -> Self {
        let limits = ws::Limits {
            max_message_bytes: options.ws_max_size,
            max_fragments_bytes: options.ws_max_size,
            ping_interval: options.ws_ping_interval.map(|seconds| seconds.0),
            ping_timeout: options.ws_ping_timeout.map(|seconds| seconds.0),
            ..ws::Limits::default()
        };
        Self {
            limits: Arc::new(limits),
            is_enabled: options.ws,
            deflate: options.ws_per_message_deflate.then(deflate::Config::server),
            // A server sends no masks, so the seed need not be unpredictable.
            shared: ws::Scratch::new([0; 32]),
            frames: Vec::new(),
        }
    }
}

/// The WebSocket of an exchange.
pub struct Session {
    pub stage: Stage,
    /// The content of `websocket.disconnect`, once everything before it has been received.
    pub close: Option<CloseInfo>,
    /// The sending side of the stream is finished, or the stream is closed.
    pub is_finished: bool,
    /// Counts it while it is open.
    pub gauge: Option<OpenGauge>,
}

/// The offer of a WebSocket request, until the application decides.
pub struct Offer {
    pub accepted: Acceptance,
    pub protocols: Vec<Box<[u8]>>,
}

pub enum Stage {
    Handshake {
        /// `websocket.connect` has been received.
        connect_received: bool,
        offer: Offer,
    },
    /// Denied by a response of the exchange.
    Denied,
    Open(Box<WebSocket>),
}

pub struct CloseInfo {
    pub code: u16,
    pub reason: String,
}

impl CloseInfo {
    pub fn new(code: u16, reason: &str) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
        }
    }
}

impl Session {
    /// Whether the application exchanges messages, rather than a response.
    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }
}

/// Discards messages that the application will not receive, so that they do not delay the close behind them.
pub fn discard_unread(socket: &mut WebSocket, ws_context: &mut WsContext) {
    while socket.next_event().is_some() {}
    socket.release(&mut ws_context.shared);
}
