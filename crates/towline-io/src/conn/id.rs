//! Ids of connections: the index in the table and a generation.

use mio::Token;

// A token carries both halves.
const _: () = assert!(usize::BITS == 64, "towline-io needs a 64-bit machine");

/// Identifies one connection of one engine. Once the connection is closed the id finds nothing, even when
/// its index has been reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId {
    generation: u32,
    index: u32,
}

/// Reserved generation: tokens of the engine itself.
const OWN: u32 = u32::MAX;
/// Reserved generation: tokens of dials.
const DIAL: u32 = u32::MAX - 1;
/// Reserved generation: tokens of UDP endpoints.
const UDP: u32 = u32::MAX - 2;

impl ConnId {
    pub(crate) fn new(index: usize, generation: u32) -> Self {
        debug_assert!(generation < UDP);
        Self {
            generation,
            index: index as u32,
        }
    }

    /// The generation after `generation`; the largest values are reserved.
    pub(crate) fn next_generation(generation: u32) -> u32 {
        (generation + 1) % UDP
    }

    pub(crate) fn index(self) -> usize {
        self.index as usize
    }

    /// The id as one number, for Python and for logs.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The inverse of [`ConnId::as_u64`].
    pub fn from_u64(number: u64) -> Self {
        Self {
            generation: (number >> 32) as u32,
            index: number as u32,
        }
    }

    pub(crate) fn token(self) -> Token {
        Token(self.as_u64() as usize)
    }
}

/// Source of an event of the poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The waker: another thread, or the engine itself, requests a turn.
    Wake,
    /// The timer: the earliest deadline has passed.
    TimerFd,
    /// The socket by which workers pass datagrams to each other.
    Workers,
    Listener(usize),
    /// A UDP endpoint.
    Udp(usize),
    /// A descriptor of the dial with this index.
    Dial(usize),
    Connection(ConnId),
}

impl Source {
    pub(crate) fn token(self) -> Token {
        let special = |generation: u32, index: usize| {
            ConnId {
                generation,
                index: index as u32,
            }
            .token()
        };
        match self {
            Self::Wake => special(OWN, 0),
            Self::TimerFd => special(OWN, 1),
            Self::Workers => special(OWN, 2),
            Self::Listener(index) => special(OWN, index + 3),
            Self::Udp(index) => special(UDP, index),
            Self::Dial(index) => special(DIAL, index),
            Self::Connection(id) => id.token(),
        }
    }

    pub(crate) fn from_token(token: Token) -> Self {
        let id = ConnId::from_u64(token.0 as u64);
        match (id.generation, id.index()) {
            (OWN, 0) => Self::Wake,
            (OWN, 1) => Self::TimerFd,
            (OWN, 2) => Self::Workers,
            (OWN, index) => Self::Listener(index - 3),
            (UDP, index) => Self::Udp(index),
            (DIAL, index) => Self::Dial(index),
            _ => Self::Connection(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_converts_back_to_its_source() {
        let sources = [
            Source::Wake,
            Source::TimerFd,
            Source::Workers,
            Source::Listener(3),
            Source::Udp(0),
            Source::Dial(5),
            Source::Connection(ConnId::new(7, 9)),
        ];
        for source in sources {
            assert_eq!(Source::from_token(source.token()), source);
        }
        let id = ConnId::new(70_000, 12);
        assert_eq!(ConnId::from_u64(id.as_u64()), id);
    }
}
