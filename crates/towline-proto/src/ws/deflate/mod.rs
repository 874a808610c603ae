//! permessage-deflate (RFC 7692): negotiation, and the coding of messages.
//!
//! An idle WebSocket must cost little, but a deflate state takes 270 KiB for a compressor and 40 KiB for an
//! inflater. The only part of a state that carries over from one message to the next is its window, the last
//! bytes of plain text. So only the window stays with the WebSocket, and a state is borrowed from
//! [`Scratch`](super::Scratch) for one message, with the window as its dictionary. With windows of 4 KiB, the
//! default, two take 8 KiB at most. A peer that cannot limit its window is asked to keep no context at all.

mod compress;
mod inflate;
mod negotiate;
mod window;

pub(super) use compress::{Compressor, Compressors, Outbound};
pub(super) use inflate::{Inbound, Inflation};
pub use negotiate::{MalformedExtension, client_accept, client_offer, server_accept};

/// The most bytes of text that one byte of DEFLATE stands for (258 bytes in two bits).
pub(super) const MAX_EXPANSION: usize = 1032;

/// One direction of a compressed WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// Context takeover: a message may refer to earlier ones.
    pub takeover: bool,
    /// Base-2 logarithm of the window, 8..=15.
    pub window_bits: u8,
}

/// The negotiated parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// From the server to the client.
    pub server: Direction,
    /// From the client to the server.
    pub client: Direction,
}

/// Parameters that one end wants, and the settings of its compressor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Messages of the server.
    pub server: Direction,
    /// Messages of the client.
    pub client: Direction,
    /// Messages shorter than this are not compressed, since that saves nothing.
    pub threshold_bytes: usize,
    /// 1 (fast) to 9.
    pub level: u8,
}

impl Config {
    /// The defaults of a server: contexts are kept in windows of 4 KiB. Text of a session resembles recent
    /// messages: a longer window saves little, and costs its size for each idle WebSocket, twice.
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

    /// The defaults of a client: the largest windows, since a client has few connections.
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

/// The end of each compressed message, which is not sent (RFC 7692 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];
