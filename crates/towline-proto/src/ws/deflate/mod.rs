//! permessage-deflate (RFC 7692): what two ends agree on, and the coding of messages.
//!
//! An idle WebSocket must cost little, and a deflate state does not: 270 KiB for a compressor, 40 KiB for an inflater.
//! All that a state carries from one message to the next is its window, the last bytes of plain text. So only the
//! window stays with the WebSocket, and a state is lent by [`Scratch`](super::Scratch) for one message, with the window
//! as its dictionary. With windows of 4 KiB, the default, two hold 8 KiB at most. A peer that cannot be told to keep
//! to such a window is asked to keep no context at all.

mod compress;
mod inflate;
mod negotiate;
mod window;

pub(super) use compress::{Compressor, Compressors, Outbound};
pub(super) use inflate::{Inbound, Inflation};
pub use negotiate::{MalformedExtension, client_accept, client_offer, server_accept};

/// One direction of a compressed WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// A message may refer to those before it.
    pub takeover: bool,
    /// Base-2 logarithm of the window, 8..=15.
    pub window_bits: u8,
}

/// What both ends have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// From the server to the client.
    pub server: Direction,
    /// From the client to the server.
    pub client: Direction,
}

/// What one end wants, and how it compresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// What the server sends.
    pub server: Direction,
    /// What the client sends.
    pub client: Direction,
    /// Messages shorter than this are not compressed: there is nothing to gain.
    pub threshold_bytes: usize,
    /// 1 (fast) to 9.
    pub level: u8,
}

impl Config {
    /// Contexts are kept in windows of 4 KiB. Text of a session resembles what was said a moment ago: a longer window
    /// gains little, and costs its size for each idle WebSocket, twice.
    pub const fn server() -> Self {
        let small = Direction {
            takeover: true,
            window_bits: 12,
        };
        Self {
            server: small,
            client: small,
            threshold_bytes: 128,
            level: 3,
        }
    }

    /// Whatever the server wants: a client has few connections.
    pub const fn client() -> Self {
        let full = Direction {
            takeover: true,
            window_bits: 15,
        };
        Self {
            server: full,
            client: full,
            threshold_bytes: 128,
            level: 3,
        }
    }
}

/// What ends each message and is not sent (RFC 7692 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];
