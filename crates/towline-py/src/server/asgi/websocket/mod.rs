//! WebSocket as ASGI shows it (HTTP & WebSocket spec 2.5), over `towline_proto::ws`.
//!
//! ```text
//!                      websocket.accept                  close, of either side; a failure
//!   Asking ────────────────────────────────► Open ──────────────────────────────────────► ended
//!     │ websocket.http.response.start                                                       ▲
//!     ├──────────────────────────► Denied: the messages of an http scope, under other names │
//!     └── websocket.close (403) ──────────────┴─────────────────────────────────────────────┘
//! ```
//!
//! The exchange stays what it is for http scopes: the same task, the same `receive` and `send`. Its [`Session`] is
//! the rest. The application pulls: what it has not asked for stays unread, but for one message of up to
//! [`AHEAD_BYTES`], which lets pings, pongs and the close behind it be seen.
mod drive;
mod handshake;
mod receive;
mod send;

use std::sync::Arc;

use towline_proto::ws::{self, WebSocket, deflate};

pub use drive::{Left, Outcome, drain, end, tell, tick};
pub use handshake::{Asked, asked};
pub use receive::receive;
pub use send::send;

use crate::server::options::Options;

/// What is read of a message before the application asks for one.
const AHEAD_BYTES: usize = 64 * 1024;

/// The code of a connection that ended without a close frame (RFC 6455 7.1.5).
const VANISHED: u16 = 1006;
/// The server ends, and the client may come back at once (RFC 6455 7.4, registered by its errata).
const RESTART: u16 = 1012;
/// The application has failed (RFC 6455 7.4.1).
const INTERNAL_ERROR: u16 = 1011;
/// The application has ended well (RFC 6455 7.4.1).
const NORMAL: u16 = 1000;

/// What each WebSocket of a worker has in common.
pub struct Sockets {
    limits: Arc<ws::Limits>,
    deflate: Option<deflate::Config>,
    shared: ws::Scratch,
    /// Short messages are put together here.
    frames: Vec<u8>,
}

impl Sockets {
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
            deflate: options.ws_per_message_deflate.then(deflate::Config::server),
            // A server masks nothing, so that nobody must be kept from guessing.
            shared: ws::Scratch::new([0; 32]),
            frames: Vec::new(),
        }
    }
}

/// What an exchange has of a WebSocket.
pub struct Session {
    stage: Stage,
    /// What `websocket.disconnect` says, when everything before it has been received.
    ended: Option<Ended>,
    /// Our side of the stream is finished, or it is no more.
    over: bool,
}

enum Stage {
    Asking {
        /// `websocket.connect` has been received.
        told: bool,
        offer: handshake::Offer,
    },
    /// By a response, which is the exchange's.
    Denied,
    Open(Box<WebSocket>),
}

struct Ended {
    code: u16,
    reason: String,
}

impl Ended {
    fn new(code: u16, reason: &str) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
        }
    }
}

impl Session {
    /// The application is at work on messages, and not on a response.
    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }
}
