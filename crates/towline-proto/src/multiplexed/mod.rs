//! The connection of HTTP/2 and HTTP/3: `core` has its state and `stream` that of a stream. The traits have the behaviour:
//! `connection` how streams and the connection end, `timing` the timeouts, `events` what the program is told, `messages`
//! requests, responses and bodies. Each protocol implements what differs: frames, windows, and its own rules.

pub(crate) mod buffers;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod encode;
pub(crate) mod events;
pub(crate) mod exchange;
pub(crate) mod fault;
pub(crate) mod fields;
pub(crate) mod head;
mod head_info;
pub(crate) mod messages;
pub(crate) mod priority;
pub(crate) mod rate_limit;
pub(crate) mod refusals;
pub(crate) mod response;
pub(crate) mod send_queue;
pub(crate) mod signal;
pub(crate) mod states;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod timers;
pub(crate) mod timing;

pub(crate) use connection::{Lifecycle, Multiplexed};
pub(crate) use events::Events;
pub(crate) use messages::Messages;
pub(crate) use timing::Timing;
