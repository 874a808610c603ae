//! The TLS session of one connection.

use std::io::{self, IoSlice, Read, Write};

use socket2::Socket;

use super::TlsConfig;
use super::external::ExternalTls;
use super::info::TlsInfo;
use super::record_layer::{External, RecordLayer};
use crate::sys::SEND_FLAGS;

/// Outcome of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvOutcome {
    /// Bytes were read; `drained` if the socket is known to have no more.
    Data {
        bytes: usize,
        drained: bool,
    },
    Eof,
    WouldBlock,
}

/// State of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeOutcome {
    Done,
    Pending,
}

/// TLS state of a connection. Boxed by its owner, so that plain connections stay small.
pub(crate) struct Session {
    tls: RecordLayer,
    /// The outer TLS session that carries this one: that of an https proxy.
    outer: Option<Box<Session>>,
    /// The last read from the socket filled its buffer, so there may be more.
    full_read: bool,
    /// The first byte of the peer.
    first_byte: Option<u8>,
    /// Plain bytes that are encrypted but not yet written, so not yet reported as sent.
    unsent: usize,
    /// A `close_notify` has been queued or sent.
    closing: bool,
}

impl Session {
    pub(crate) fn new(config: &TlsConfig) -> io::Result<Self> {
        let tls = rustls::ServerConnection::new(config.server.clone()).map_err(io::Error::other)?;
        Ok(Self::over(RecordLayer::Rustls(tls.into()), None))
    }

    pub(super) fn client(tls: rustls::ClientConnection, outer: Option<Box<Self>>) -> Self {
        Self::over(RecordLayer::Rustls(tls.into()), outer)
    }

    pub(super) fn external(tls: Box<dyn ExternalTls>, outer: Option<Box<Self>>) -> Self {
        Self::over(RecordLayer::External(External::new(tls)), outer)
    }

    fn over(tls: RecordLayer, outer: Option<Box<Self>>) -> Self {
        Self {
            tls,
            outer,
            full_read: true,
            first_byte: None,
            unsent: 0,
            closing: false,
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    pub(crate) fn info(&self) -> Option<TlsInfo> {
        self.tls.info()
    }

    /// Whether the peer has sent a method of HTTP in place of a `ClientHello`.
    pub(crate) fn got_plain_http(&self) -> bool {
        self.is_handshaking()
            && self
                .first_byte
                .is_some_and(|byte| byte.is_ascii_uppercase())
    }

    /// Protocol that the server has chosen by ALPN.
    pub(crate) fn alpn(&self) -> Option<Vec<u8>> {
        self.tls.alpn()
    }

    /// Continues the handshake as far as the socket allows, including its last records.
    pub(crate) fn drive_handshake(&mut self, socket: &Socket) -> io::Result<HandshakeOutcome> {
        loop {
            while self.wants_write() {
                if self.flush(socket)?.is_none() {
                    return Ok(HandshakeOutcome::Pending);
                }
            }
            if !self.is_handshaking() {
                return Ok(HandshakeOutcome::Done);
            }
            match self.read_records(&mut &*socket) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(HandshakeOutcome::Pending);
                }
                Err(error) => {
                    // Sends the alert with the reason.
                    let _ = self.flush(socket);
                    return Err(error);
                }
            }
        }
    }

    /// Reads plain bytes into `space`. A close without `close_notify` is `UnexpectedEof`: an attacker may have
    /// truncated the data (RFC 8446 6.1).
    pub(crate) fn recv(
        &mut self,
        socket: &mut dyn Read,
        space: &mut [u8],
    ) -> io::Result<RecvOutcome> {
        // Plain bytes left from an earlier call do not show that the socket is drained: more may have arrived
        // since, and the poll reports it once.
        let mut has_read = false;
        loop {
            match self.tls.read(space) {
                Ok(0) => return Ok(RecvOutcome::Eof),
                Ok(mut bytes) => {
                    let mut drained = has_read && bytes < space.len() && !self.full_read;
                    if drained {
                        // A close_notify received with the data causes no event of the socket. If the peer
                        // keeps the connection open until it gets ours, it would never be noticed.
                        match self.tls.read(&mut space[bytes..]) {
                            Ok(more) => {
                                bytes += more;
                                drained = false;
                            }
                            Err(error) => drained = error.kind() == io::ErrorKind::WouldBlock,
                        }
                    }
                    return Ok(RecvOutcome::Data { bytes, drained });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.read_records(socket) {
                Ok(_) => has_read = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(RecvOutcome::WouldBlock);
                }
                // The next flush sends the alert that rustls queues for a bad record.
                Err(error) => return Err(error),
            }
        }
    }

    fn read_records(&mut self, socket: &mut dyn Read) -> io::Result<usize> {
        if let Some(outer) = &mut self.outer {
            // Whether the outer session has more is not known here.
            self.full_read = true;
            return self.tls.read_records(&mut OuterReader {
                session: outer,
                socket,
            });
        }
        let mut wire = SocketReader {
            socket,
            full: false,
            first_byte: self.first_byte,
        };
        let bytes = self.tls.read_records(&mut wire);
        self.first_byte = wire.first_byte;
        self.full_read = wire.full;
        bytes
    }

    /// Whether plain bytes can be encrypted: no records are pending.
    pub(crate) fn accepts_plaintext(&self) -> bool {
        self.unsent == 0 && !self.wants_write() && !self.tls.is_handshaking() && !self.closing
    }

    /// Encrypts some of `plain`. The bytes are sent only when `flush` reports them.
    pub(crate) fn encrypt(&mut self, plain: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.tls.encrypt(plain)?;
        self.unsent += taken;
        Ok(taken)
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.tls.wants_write() || self.outer.as_ref().is_some_and(|outer| outer.wants_write())
    }

    /// Writes records to the socket. `Ok(Some(n))`: n more plain bytes have been sent. `Ok(None)`: the socket
    /// accepts nothing now.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<Option<usize>> {
        let mut wire_bytes = 0;
        while self.wants_write() || self.close_outer() {
            match self.write_records(socket) {
                Ok(n) => wire_bytes += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if wire_bytes == 0 {
                        return Ok(None);
                    }
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        // Report partial progress of a batch, or a slow reader would look stalled.
        let done = if self.wants_write() {
            wire_bytes.min(self.unsent.saturating_sub(1))
        } else {
            self.unsent
        };
        self.unsent -= done;
        Ok(Some(done))
    }

    fn write_records(&mut self, socket: &Socket) -> io::Result<usize> {
        let Some(outer) = &mut self.outer else {
            return self.tls.write_records(&mut SocketWriter(socket));
        };
        if outer.wants_write() {
            return outer.flush(socket)?.ok_or(io::ErrorKind::WouldBlock.into());
        }
        self.tls.write_records(&mut OuterWriter(outer))
    }

    /// Closes the outer session after the last record of this one, so that an https proxy can rule out
    /// truncation (RFC 8446 6.1). Returns whether there is more to write.
    fn close_outer(&mut self) -> bool {
        let Some(outer) = self.outer.as_mut().filter(|_| self.closing) else {
            return false;
        };
        if outer.closing {
            return false;
        }
        outer.close_notify();
        outer.wants_write()
    }

    /// Queues `close_notify`, the end of the output.
    pub(crate) fn close_notify(&mut self) {
        if !self.closing {
            self.closing = true;
            self.tls.close_notify();
        }
    }
}

/// Reads records through the outer session.
struct OuterReader<'a> {
    session: &'a mut Session,
    socket: &'a mut dyn Read,
}

impl Read for OuterReader<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        match self.session.recv(self.socket, space)? {
            RecvOutcome::Data { bytes, .. } => Ok(bytes),
            RecvOutcome::Eof => Ok(0),
            RecvOutcome::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Writes records into the outer session.
struct OuterWriter<'a>(&'a mut Session);

impl Write for OuterWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.0.accepts_plaintext() {
            self.0.encrypt(slices)
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads from the socket and records whether the read filled its buffer.
struct SocketReader<'a> {
    socket: &'a mut dyn Read,
    full: bool,
    first_byte: Option<u8>,
}

impl Read for SocketReader<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let n = self.socket.read(space)?;
        self.full = n == space.len();
        self.first_byte = self.first_byte.or(space[..n].first().copied());
        Ok(n)
    }
}

/// Writes to the socket without SIGPIPE and without blocking.
struct SocketWriter<'a>(&'a Socket);

impl Write for SocketWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_with_flags(bytes, SEND_FLAGS)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored_with_flags(slices, SEND_FLAGS)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::{CertificateParams, KeyPair};
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
    use socket2::{Domain, Type};

    use super::*;

    /// A server's session and a client, connected in memory, after the handshake.
    struct Pair {
        session: Session,
        socket: Socket,
        client: ClientConnection,
        peer: Socket,
    }

    impl Pair {
        fn new() -> Self {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let cert = params.self_signed(&key).unwrap().der().clone();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut roots = RootCertStore::empty();
            roots.add(cert.clone()).unwrap();
            let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![cert], key)
                .unwrap();
            let client = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            let name = ServerName::try_from("localhost").unwrap();
            let tls = ServerConnection::new(Arc::new(server)).unwrap();
            let (socket, peer) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
            for end in [&socket, &peer] {
                end.set_nonblocking(true).unwrap();
            }
            let mut ends = Self {
                session: Session::over(RecordLayer::Rustls(tls.into()), None),
                socket,
                client: ClientConnection::new(Arc::new(client), name).unwrap(),
                peer,
            };
            while ends.session.is_handshaking() || ends.client.is_handshaking() {
                ends.flush();
                ends.session.drive_handshake(&ends.socket).unwrap();
                while ends.client.read_tls(&mut &ends.peer).is_ok() {
                    ends.client.process_new_packets().unwrap();
                }
            }
            ends
        }

        fn flush(&mut self) {
            while self.client.wants_write() {
                self.client.write_tls(&mut &self.peer).unwrap();
            }
        }

        /// Sends `bytes` bytes from the client, as one record.
        fn send(&mut self, bytes: usize) {
            self.client.writer().write_all(&vec![7; bytes]).unwrap();
            self.flush();
        }

        fn recv(&mut self, most: usize) -> RecvOutcome {
            let mut space = vec![0; most];
            self.session.recv(&mut &self.socket, &mut space).unwrap()
        }
    }

    #[test]
    fn the_rest_of_a_record_does_not_mean_that_the_socket_is_drained() {
        let mut ends = Pair::new();
        let data = |bytes, drained| RecvOutcome::Data { bytes, drained };
        ends.send(1500);
        assert_eq!(ends.recv(1000), data(1000, false));
        // The poll reports this once.
        ends.send(20);
        assert_eq!(ends.recv(1000), data(500, false));
        assert_eq!(ends.recv(1000), data(20, true));
        assert_eq!(ends.recv(1000), RecvOutcome::WouldBlock);
    }
}
