//! Parts that HTTP/2 and HTTP/3 share: the streams of a connection, the states of their messages, heads that come as
//! compressed fields, priorities and rate limits. The frames, the flow of bytes and the rules of a connection are each protocol's own.

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
