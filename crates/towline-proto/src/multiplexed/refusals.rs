//! Faults of the clients of a server, kept for the program's logs.

use std::collections::VecDeque;

use crate::error::CloseReason;
use crate::{Protocol, Refusal, RefusedLine, StreamId};

use super::head::HeadDecoder;

/// Refusals kept for the program between two of its calls; the rate limit of resets ends a connection at about as
/// many.
const MAX_REFUSALS: usize = 128;

/// The object of a refusal.
#[derive(Clone, Copy)]
pub(crate) enum Refused {
    /// The request in the head decoder.
    Head(CloseReason),
    Stream(StreamId, CloseReason),
    Connection(CloseReason),
}

/// The refusals that the program has not taken.
#[derive(Debug)]
pub(crate) struct Refusals {
    protocol: Protocol,
    list: VecDeque<Refusal>,
}

impl Refusals {
    pub fn of(protocol: Protocol) -> Self {
        Self {
            protocol,
            list: VecDeque::new(),
        }
    }

    /// Keeps what the program's logs need. `status`: of the response; 0: there was none.
    #[cold]
    pub fn record(
        &mut self,
        refused: Refused,
        status: u16,
        rule: &'static str,
        head: &HeadDecoder,
    ) {
        if self.list.len() >= MAX_REFUSALS {
            return;
        }
        let (stream, reason, line) = match refused {
            Refused::Head(reason) => (None, reason, head.refused_line()),
            Refused::Stream(id, reason) => (Some(id), reason, RefusedLine::default()),
            Refused::Connection(reason) => (None, reason, RefusedLine::default()),
        };
        self.list.push_back(Refusal {
            stream,
            status,
            reason,
            rule,
            protocol: self.protocol,
            line,
        });
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn take(&mut self) -> Option<Refusal> {
        self.list.pop_front()
    }
}
