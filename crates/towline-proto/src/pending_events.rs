//! The pending events of a stream, or of the exchange of an HTTP/1 connection.

/// Events to be delivered, and the events that the program waits for: a bit set.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct PendingEvents(u8);

impl PendingEvents {
    pub const READABLE: u8 = 1;
    pub const WRITABLE: u8 = 2;
    pub const SWITCHED: u8 = 4;
    pub const HALF_CLOSED: u8 = 8;
    pub const FAILED: u8 = 16;
    /// A read returned `Pending`: `Readable` is due when bytes come.
    pub const READER_WAITS: u8 = 32;
    /// The send capacity was 0: `Writable` is due when there is some.
    pub const WRITER_WAITS: u8 = 64;
    /// HTTP/1: the connection is closed.
    pub const CLOSED: u8 = 128;
    pub const WAITS: u8 = Self::READER_WAITS | Self::WRITER_WAITS;
    pub const EVENTS: u8 = !Self::WAITS;

    pub fn has(self, event: u8) -> bool {
        self.0 & event != 0
    }

    pub fn set(&mut self, event: u8) {
        self.0 |= event;
    }

    pub fn take(&mut self, event: u8) -> bool {
        let had = self.has(event);
        self.0 &= !event;
        had
    }
}
