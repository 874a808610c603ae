//! Identifiers of streams: each side opens its own in ascending order, and none is used twice (RFC 9113 5.1.1).

/// No identifier is as large.
const END: u32 = 0x8000_0000;

/// The streams that were opened.
#[derive(Debug)]
pub(super) struct StreamIds {
    /// The last stream opened by the peer.
    last_peer: u32,
    /// The last stream opened after our final GOAWAY: more frames of it may have crossed the GOAWAY (RFC 9113
    /// 6.8).
    last_ignored: u32,
    /// The next stream that a client opens.
    next: u32,
}

impl Default for StreamIds {
    fn default() -> Self {
        Self {
            last_peer: 0,
            last_ignored: 0,
            next: 1,
        }
    }
}

impl StreamIds {
    /// The identifier of the next stream that we open.
    #[inline]
    pub fn open(&mut self) -> u32 {
        let id = self.next;
        self.next += 2;
        id
    }

    /// Number of streams that can still be opened.
    #[inline]
    pub fn left(&self) -> usize {
        (END - self.next.min(END)).div_ceil(2) as usize
    }

    /// The last stream that the peer has opened and that is processed; 0: none.
    #[inline]
    pub fn last_peer(&self) -> u32 {
        self.last_peer
    }

    /// The peer has opened a stream.
    #[inline]
    pub fn opened_by_peer(&mut self, id: u32) {
        self.last_peer = id;
    }

    /// The peer has opened a stream after our final GOAWAY.
    pub fn ignored(&mut self, id: u32) {
        self.last_ignored = id;
    }

    /// Whether neither side has opened the stream.
    #[inline]
    pub fn is_idle(&self, id: u32, is_ours: bool) -> bool {
        if is_ours {
            id >= self.next
        } else {
            id > self.last_peer.max(self.last_ignored)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_idle_until_its_side_has_opened_it() {
        let mut ids = StreamIds::default();
        assert!(ids.is_idle(1, true) && ids.is_idle(1, false));
        assert_eq!((ids.open(), ids.open()), (1, 3));
        assert!(!ids.is_idle(3, true) && ids.is_idle(5, true));
        ids.opened_by_peer(7);
        ids.ignored(9);
        assert!(!ids.is_idle(9, false) && ids.is_idle(11, false));
        assert_eq!(ids.last_peer(), 7);
    }

    #[test]
    fn identifiers_end() {
        let mut ids = StreamIds {
            next: END - 3,
            ..StreamIds::default()
        };
        assert_eq!(ids.left(), 2);
        ids.open();
        ids.open();
        assert_eq!(ids.left(), 0);
    }
}
