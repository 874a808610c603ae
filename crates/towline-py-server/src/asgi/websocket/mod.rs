//! WebSocket in ASGI (HTTP & WebSocket spec 2.5), over `towline_proto::ws`.
//!
//! ```text
//!                      websocket.accept                  close, of either side; a failure
//!   Handshake ─────────────────────────────► Open ──────────────────────────────────────► closed
//!     │ websocket.http.response.start                                                       ▲
//!     ├──────────────────────────► Denied: the messages of an http scope, under other names │
//!     └── websocket.close (403) ──────────────┴─────────────────────────────────────────────┘
//! ```
//!
//! The exchange is the same as in http scopes: the same task, the same `receive` and `send`. Its [`Session`] is the
//! difference. The application pulls: a message stays unread until the application receives it, except for one
//! message of up to `READ_AHEAD_BYTES`, so that pings, pongs and the close behind it are handled.
mod drive;
mod handshake;
mod receive;
mod send;
mod session;

pub use drive::{Outcome, WsEnd, check_timers, drain, end, handle_event};
pub use handshake::{UpgradeRequest, upgrade_request};
pub use receive::receive;
pub use send::send;
pub use session::{Session, WsContext};
