//! State that a generator keeps for each connection.

use bytes::Bytes;
use towline_proto::StreamId;

/// The front end's state of a connection of a generator.
pub trait GeneratorState: Default {
    fn generated(&self) -> &Generated;
    fn generated_mut(&mut self) -> &mut Generated;
}

/// Messages that a generator sends and receives on a connection in its own way.
#[derive(Default)]
pub struct Generated {
    pub(super) repeat: Option<Box<Repeat>>,
    /// Bytes of HTTP that may still be sent; `None` for no limit.
    pub(super) allowance: Option<u64>,
}

impl Generated {
    pub(super) fn sends(&self) -> bool {
        self.allowance.is_some() || (self.repeat.as_ref()).is_some_and(|repeat| repeat.unsent > 0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// The core knows the request.
    Tracked,
    /// An equal response has arrived; `is_new` until the front end has seen it.
    Answered { is_new: bool },
    /// The request is sent again, and the core does not know it.
    Sent,
    /// Bytes have arrived while no request was outstanding.
    Unsolicited,
}

/// The repeated exchange of a connection.
pub(super) struct Repeat {
    pub(super) request: Bytes,
    /// Index of the response among the engine's.
    pub(super) response: usize,
    /// The request that is outstanding for the core, from the first one on.
    pub(super) stream: Option<StreamId>,
    pub(super) exchange: Exchange,
    /// Bytes of the request that are not sent yet, its last ones.
    pub(super) unsent: usize,
    /// Bytes that the connection had received when the last request began.
    pub(super) received_before: u64,
    /// The first bytes after the request, if they were to be sampled.
    pub(super) sample: Vec<u8>,
}
