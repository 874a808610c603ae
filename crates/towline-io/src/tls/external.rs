//! TLS implemented outside of this crate, in memory: Python's `ssl` with its `MemoryBIO`.

use std::io;

use super::TlsInfo;

/// Creates the sessions of one configuration.
pub trait ExternalTlsContext: Send + Sync {
    /// Creates a client session that has its first records (`ClientHello`) ready. An `Err` of this and of all
    /// methods below has a message for the user.
    fn connect(&self, server_name: &str, alpn: &[Vec<u8>]) -> io::Result<Box<dyn ExternalTls>>;
}

/// One session. Records and plain bytes are exchanged in memory, and no method blocks. Called from one thread
/// at a time, but not always from the same.
pub trait ExternalTls: Send {
    /// Processes records from the peer, all of them, and continues the handshake.
    fn received(&mut self, records: &[u8]) -> io::Result<()>;

    /// Processes the end of input: no further records follow.
    fn received_eof(&mut self);

    /// Reads plain bytes: `Ok(0)` after `close_notify`, `WouldBlock` if more records are needed,
    /// `UnexpectedEof` if the input has ended.
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize>;

    /// Encrypts some of `plain`; `take_records` returns the records.
    fn write(&mut self, plain: &[u8]) -> io::Result<usize>;

    /// Appends all pending output records. Called after each of the other methods, also after an `Err`,
    /// because an alert may be pending.
    fn take_records(&mut self, into: &mut Vec<u8>);

    /// Creates the `close_notify` alert; nothing is written after it.
    fn close_notify(&mut self);

    fn is_handshaking(&self) -> bool;

    /// Protocol chosen by ALPN.
    fn alpn(&self) -> Option<Vec<u8>> {
        self.info()?.alpn
    }

    /// Result of the handshake, once it is complete.
    fn info(&self) -> Option<TlsInfo>;
}
