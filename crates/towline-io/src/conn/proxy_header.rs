//! Reads the PROXY header that precedes a connection.

use std::io::{self, Read};
use std::sync::Arc;

use socket2::Socket;

use crate::conn::addr::PeerAddr;
use crate::serve::limits::{ClientCount, ConnectionLimits};
use crate::serve::proxy_protocol::{self, Header, Parsed};
use crate::tls::RecvOutcome;

/// Size of one read: load balancers send the header in one segment, and it is rarely longer.
const READ_BYTES: usize = 1024;

/// Reader of the header, and of the bytes received with it.
#[derive(Default)]
pub(crate) struct ProxyHeaderReader {
    /// Bytes read so far; once the header is complete, the bytes after it.
    bytes: Vec<u8>,
    header: Option<Header>,
    /// Apply to the client that the header names.
    limits: Option<Arc<ConnectionLimits>>,
    pub(crate) client: Option<Box<ClientCount>>,
}

impl ProxyHeaderReader {
    pub(crate) fn new(limits: Option<Arc<ConnectionLimits>>) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Reads the header; `Data` once it is complete. A malformed header is `InvalidData`: the connection is
    /// closed without a response, because the protocol of the other side is not known. A client over its limit of
    /// connections is `PermissionDenied`, and closed likewise.
    pub(crate) fn read_header(&mut self, mut socket: &Socket) -> io::Result<RecvOutcome> {
        while self.header.is_none() {
            let mut space = [0; READ_BYTES];
            match socket.read(&mut space) {
                Ok(0) => return Ok(RecvOutcome::Eof),
                Ok(n) => self.bytes.extend_from_slice(&space[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(RecvOutcome::WouldBlock);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            let parsed = proxy_protocol::parse(&self.bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Parsed::Complete { header, used } = parsed {
                self.bytes.drain(..used);
                self.header = Some(header);
                if let (Some(limits), Header::Proxied { source, .. }) = (&self.limits, header) {
                    let counted = limits.admit_client(Some(source.ip()));
                    self.client = counted.map_err(|()| io::ErrorKind::PermissionDenied)?;
                }
            }
        }
        Ok(RecvOutcome::Data {
            bytes: 0,
            drained: false,
        })
    }

    /// A reader of the connection's own bytes: first those left here, then the socket.
    pub(crate) fn reader<'a>(&'a mut self, socket: &'a Socket) -> PrefixedReader<'a> {
        PrefixedReader {
            bytes: &mut self.bytes,
            socket,
        }
    }

    /// Whether the header has been read and no bytes are left.
    pub(crate) fn is_drained(&self) -> bool {
        self.header.is_some() && self.bytes.is_empty()
    }

    /// Addresses from the header, which replace the socket's: remote, then local.
    pub(crate) fn addresses(&self) -> Option<(PeerAddr, PeerAddr)> {
        match self.header? {
            Header::Local => None,
            Header::Proxied {
                source,
                destination,
            } => Some((PeerAddr::Inet(source), PeerAddr::Inet(destination))),
            Header::Unix => Some((PeerAddr::None, PeerAddr::None)),
        }
    }
}

/// Reads the buffered bytes, then the socket.
pub(crate) struct PrefixedReader<'a> {
    bytes: &'a mut Vec<u8>,
    socket: &'a Socket,
}

impl Read for PrefixedReader<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return self.socket.read(space);
        }
        let n = self.bytes.len().min(space.len());
        space[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes.drain(..n);
        Ok(n)
    }
}
