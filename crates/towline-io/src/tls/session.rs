//! One connection's TLS: records in, plain bytes out, and back.

use std::io::{self, IoSlice, Read, Write};

use rustls::ServerConnection;
use rustls::pki_types::CertificateDer;
use socket2::Socket;

use super::TlsConfig;

/// What one read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recv {
    /// Bytes; `drained` when the socket is known to hold no more of them.
    Data {
        bytes: usize,
        drained: bool,
    },
    Eof,
    WouldBlock,
}

/// What the handshake agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// The code point: 0x0303 is TLS 1.2, 0x0304 is TLS 1.3.
    pub version: u16,
    /// The code point of the cipher suite (IANA registry).
    pub cipher_suite: u16,
    pub alpn: Option<Vec<u8>>,
    /// The client's chain in DER, leaf first; empty when none was shown.
    pub peer_certs: Vec<CertificateDer<'static>>,
    pub server_name: Option<String>,
}

/// The state beside the socket. Boxed by its owner: plain connections do not pay for it.
pub(crate) struct Session {
    tls: ServerConnection,
    /// The last read from the socket filled what it was offered: there may be more.
    full_read: bool,
    /// Bytes of the wire core that are encrypted and not all out yet, so not yet `sent`.
    unsent: usize,
    /// A `close_notify` is queued or out.
    closing: bool,
}

impl Session {
    pub(crate) fn new(config: &TlsConfig) -> io::Result<Self> {
        let tls = ServerConnection::new(config.server.clone()).map_err(io::Error::other)?;
        Ok(Self {
            tls,
            full_read: true,
            unsent: 0,
            closing: false,
        })
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    pub(crate) fn info(&self) -> Option<TlsInfo> {
        let version = self.tls.protocol_version().map(u16::from)?;
        let cipher_suite = u16::from(self.tls.negotiated_cipher_suite()?.suite());
        Some(TlsInfo {
            version,
            cipher_suite,
            alpn: self.tls.alpn_protocol().map(<[u8]>::to_vec),
            peer_certs: self
                .tls
                .peer_certificates()
                .map(|certs| certs.iter().map(|cert| cert.clone().into_owned()).collect())
                .unwrap_or_default(),
            server_name: self.tls.server_name().map(str::to_owned),
        })
    }

    /// Plain bytes into `space`. A close without `close_notify` is `UnexpectedEof`: what came so far
    /// may have been cut by anybody (RFC 8446 6.1).
    pub(crate) fn recv(&mut self, socket: &mut dyn Read, space: &mut [u8]) -> io::Result<Recv> {
        loop {
            match self.tls.reader().read(space) {
                Ok(0) => return Ok(Recv::Eof),
                Ok(bytes) => {
                    let drained = bytes < space.len() && !self.full_read;
                    return Ok(Recv::Data { bytes, drained });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let mut wire = Wire {
                socket,
                full: false,
            };
            match self.tls.read_tls(&mut wire) {
                Ok(_) => self.full_read = wire.full,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Recv::WouldBlock);
                }
                Err(error) => return Err(error),
            }
            // The alert that rustls queues for a bad record goes out with the next flush.
            self.tls
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Nothing encrypted waits for the socket, so plain bytes may be offered.
    pub(crate) fn takes_plain(&self) -> bool {
        self.unsent == 0 && !self.tls.wants_write() && !self.tls.is_handshaking() && !self.closing
    }

    /// Encrypts some of `plain`; nothing of it counts as sent before `flush` says so.
    pub(crate) fn encrypt(&mut self, plain: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.tls.writer().write_vectored(plain)?;
        self.unsent += taken;
        Ok(taken)
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Writes records out. `Ok(Some(n))`: n plain bytes more can be called sent. `Ok(None)`: the
    /// socket takes nothing now.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<Option<usize>> {
        let mut out = Out(socket);
        let mut wire_bytes = 0;
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut out) {
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
        // Progress of a slow reader must show before a whole batch is out, or it looks stuck.
        let done = if self.tls.wants_write() {
            wire_bytes.min(self.unsent.saturating_sub(1))
        } else {
            self.unsent
        };
        self.unsent -= done;
        Ok(Some(done))
    }

    /// Says that no more will come from us.
    pub(crate) fn close_notify(&mut self) {
        if !self.closing {
            self.closing = true;
            self.tls.send_close_notify();
        }
    }
}

/// Notices whether a read filled its buffer.
struct Wire<'a> {
    socket: &'a mut dyn Read,
    full: bool,
}

impl Read for Wire<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let n = self.socket.read(space)?;
        self.full = n == space.len();
        Ok(n)
    }
}

/// Writes that never raise SIGPIPE.
struct Out<'a>(&'a Socket);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_with_flags(bytes, libc::MSG_NOSIGNAL)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored_with_flags(slices, libc::MSG_NOSIGNAL)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
