//! Streams that the peer has opened. Those of one kind are opened in order, but their first bytes arrive in any order,
//! so that a new stream is either above all known ones or a gap between them (RFC 9000 2.1).

/// Streams that may be opened before one above them is seen. QUIC's limits of streams are far below; without them it
/// bounds the list.
const MAX_GAPS: usize = 8192;

/// The numbers of one kind of streams of the peer.
#[derive(Debug)]
pub(super) struct OpenedStreams {
    /// The lowest number that is above all that were seen.
    next: u64,
    /// Lower ones that were not seen.
    gaps: Vec<u64>,
}

/// The request streams that we open.
#[derive(Debug, Default)]
pub(super) struct OwnRequests {
    next: u64,
    /// Number of streams that QUIC can open now.
    credit: u64,
}

impl OwnRequests {
    pub fn credit(&self) -> u64 {
        self.credit
    }

    pub fn set_credit(&mut self, credit: u64) {
        self.credit = credit;
    }

    /// The number of the next request, for which there is credit.
    #[inline]
    pub fn open(&mut self) -> u64 {
        let id = self.next;
        self.next += 4;
        self.credit -= 1;
        id
    }
}

/// Whether a number was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    First,
    Before,
    /// A number that is too far above the others.
    Impossible,
}

impl OpenedStreams {
    /// `first`: the lowest number of this kind.
    pub fn from(first: u64) -> Self {
        Self {
            next: first,
            gaps: Vec::new(),
        }
    }

    /// The lowest number that is above all that were seen.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Notes a stream of this kind.
    pub fn see(&mut self, id: u64) -> Order {
        if id < self.next {
            let Some(place) = self.gaps.iter().position(|&gap| gap == id) else {
                return Order::Before;
            };
            self.gaps.swap_remove(place);
            return Order::First;
        }
        let new_gaps = usize::try_from((id - self.next) / 4).unwrap_or(usize::MAX);
        if new_gaps > MAX_GAPS - self.gaps.len() {
            return Order::Impossible;
        }
        self.gaps.extend((self.next..id).step_by(4));
        self.next = id + 4;
        Order::First
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_is_new_once_in_any_order() {
        let mut opened = OpenedStreams::from(2);
        for id in [10, 2, 6, 18] {
            assert_eq!(opened.see(id), Order::First);
            assert_eq!(opened.see(id), Order::Before);
        }
        assert_eq!(opened.next(), 22);
        assert_eq!(opened.see(14), Order::First);
        assert_eq!(opened.see(2 + 4 * 9000), Order::Impossible);
        assert!(opened.gaps.is_empty());
    }
}
