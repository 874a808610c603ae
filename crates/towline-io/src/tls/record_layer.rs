//! The record layer: rustls, or an external TLS implementation in memory.

use std::io::{self, IoSlice, Read, Write};

use super::external::ExternalTls;
use super::info::TlsInfo;

/// Size of a read for an external TLS: a record with its framing (RFC 8446 5.2).
const INBOX_BYTES: usize = 16 * 1024 + 512;

/// Plain bytes passed to an external TLS at once.
const WRITE_BYTES: usize = 64 * 1024;

#[allow(clippy::large_enum_variant)] // the large one is the usual one, and its owner is boxed
pub(super) enum RecordLayer {
    Rustls(rustls::Connection),
    External(External),
}

impl RecordLayer {
    /// Reads decrypted bytes; `WouldBlock` if there are none.
    pub(super) fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Rustls(tls) => tls.reader().read(space),
            Self::External(tls) => tls.read(space),
        }
    }

    /// Reads records once; `Ok(0)` is the end of input. An alert may be pending, also after an `Err`.
    pub(super) fn read_records(&mut self, wire: &mut dyn Read) -> io::Result<usize> {
        match self {
            Self::Rustls(tls) => {
                let bytes = tls.read_tls(wire)?;
                tls.process_new_packets()
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                Ok(bytes)
            }
            Self::External(tls) => tls.read_records(wire),
        }
    }

    /// Encrypts some of `plain`.
    pub(super) fn encrypt(&mut self, plain: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Rustls(tls) => tls.writer().write_vectored(plain),
            Self::External(tls) => tls.encrypt(plain),
        }
    }

    pub(super) fn wants_write(&self) -> bool {
        match self {
            Self::Rustls(tls) => tls.wants_write(),
            Self::External(tls) => tls.sent < tls.outbox.len(),
        }
    }

    pub(super) fn write_records(&mut self, wire: &mut dyn Write) -> io::Result<usize> {
        match self {
            Self::Rustls(tls) => tls.write_tls(wire),
            Self::External(tls) => tls.write_records(wire),
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match self {
            Self::Rustls(tls) => tls.is_handshaking(),
            Self::External(tls) => tls.tls.is_handshaking(),
        }
    }

    pub(super) fn close_notify(&mut self) {
        match self {
            Self::Rustls(tls) => tls.send_close_notify(),
            Self::External(tls) => {
                tls.tls.close_notify();
                tls.fetch_records();
            }
        }
    }

    pub(super) fn alpn(&self) -> Option<Vec<u8>> {
        match self {
            Self::Rustls(tls) => tls.alpn_protocol().map(<[u8]>::to_vec),
            Self::External(tls) => tls.tls.alpn(),
        }
    }

    pub(super) fn info(&self) -> Option<TlsInfo> {
        let tls = match self {
            Self::Rustls(tls) => tls,
            Self::External(tls) => return tls.tls.info(),
        };
        let version = tls.protocol_version().map(u16::from)?;
        let cipher_suite = u16::from(tls.negotiated_cipher_suite()?.suite());
        let server_name = match tls {
            rustls::Connection::Server(server) => server.server_name().map(str::to_owned),
            rustls::Connection::Client(_) => None,
        };
        Some(TlsInfo {
            version,
            cipher_suite,
            alpn: tls.alpn_protocol().map(<[u8]>::to_vec),
            peer_certs: tls
                .peer_certificates()
                .map(|certs| certs.iter().map(|cert| cert.clone().into_owned()).collect())
                .unwrap_or_default(),
            server_name,
        })
    }
}

/// An external TLS session with its buffers.
pub(super) struct External {
    tls: Box<dyn ExternalTls>,
    inbox: Box<[u8]>,
    outbox: Vec<u8>,
    /// Number of bytes of the outbox that have been written.
    sent: usize,
    over: bool,
}

impl External {
    pub(super) fn new(tls: Box<dyn ExternalTls>) -> Self {
        let mut external = Self {
            tls,
            inbox: vec![0; INBOX_BYTES].into(),
            outbox: Vec::new(),
            sent: 0,
            over: false,
        };
        external.fetch_records();
        external
    }

    fn fetch_records(&mut self) {
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        }
        self.tls.take_records(&mut self.outbox);
    }

    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let result = self.tls.read(space);
        self.fetch_records();
        match result {
            // The input has ended without close_notify (RFC 8446 6.1).
            Err(error) if self.over && error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            other => other,
        }
    }

    fn read_records(&mut self, wire: &mut dyn Read) -> io::Result<usize> {
        let bytes = wire.read(&mut self.inbox)?;
        let result = if bytes == 0 {
            self.over = true;
            self.tls.received_eof();
            Ok(())
        } else {
            self.tls.received(&self.inbox[..bytes])
        };
        self.fetch_records();
        result.map(|()| bytes)
    }

    fn encrypt(&mut self, plain: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for slice in plain {
            let offered = &slice[..slice.len().min(WRITE_BYTES - taken)];
            let bytes = if offered.is_empty() {
                0
            } else {
                self.tls.write(offered)?
            };
            taken += bytes;
            if bytes < slice.len() {
                break;
            }
        }
        self.fetch_records();
        Ok(taken)
    }

    fn write_records(&mut self, wire: &mut dyn Write) -> io::Result<usize> {
        let bytes = wire.write(&self.outbox[self.sent..])?;
        self.sent += bytes;
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        }
        Ok(bytes)
    }
}
