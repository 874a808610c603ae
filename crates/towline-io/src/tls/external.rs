//! TLS that somebody else does in memory: Python's `ssl` with its `MemoryBIO`.

use std::io;

use super::TlsInfo;

/// Makes the sessions of one configuration.
pub trait ExternalTlsContext: Send + Sync {
    /// A session of the client's side which has its first records (`ClientHello`) ready. An `Err` of this
    /// and of all below carries a message for the user.
    fn connect(&self, server_name: &str, alpn: &[Vec<u8>]) -> io::Result<Box<dyn ExternalTls>>;
}

/// One session: records and plain bytes go through memory, and nothing here waits. Called from one thread
/// at a time, not always from the same.
pub trait ExternalTls: Send {
    /// Takes records from the peer, all of them, and goes on with the handshake where there is one.
    fn received(&mut self, records: &[u8]) -> io::Result<()>;

    /// The peer's end of the wire; no record comes any more.
    fn received_eof(&mut self);

    /// Plain bytes: `Ok(0)` after `close_notify`, `WouldBlock` where more records are needed,
    /// `UnexpectedEof` where they cannot come.
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize>;

    /// Encrypts some of `plain`; the records come out of `take_records`.
    fn write(&mut self, plain: &[u8]) -> io::Result<usize>;

    /// Appends all records that wait to go out. Asked after each of the others, also after an `Err`: an
    /// alert may wait.
    fn take_records(&mut self, into: &mut Vec<u8>);

    /// Makes the `close_notify` alert; nothing is written after it.
    fn close_notify(&mut self);

    fn is_handshaking(&self) -> bool;

    /// The protocol that the handshake chose.
    fn alpn(&self) -> Option<Vec<u8>> {
        self.info()?.alpn
    }

    /// What the handshake agreed on, once it has.
    fn info(&self) -> Option<TlsInfo>;
}
