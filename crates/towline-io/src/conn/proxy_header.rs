//! The PROXY header in front of a connection: read, believed, and taken out of the way.

use std::io::{self, Read};

use socket2::Socket;

use crate::conn::addr::PeerAddr;
use crate::serve::proxy_protocol::{self, Header, Parsed};
use crate::tls::RecvOutcome;

/// One read of a header: balancers send it in one segment, and it is rarely longer.
const READ_BYTES: usize = 1024;

#[derive(Default)]
pub(crate) struct ProxyHeaderReader {
    /// Bytes from the socket; before the header is complete all of them, then those behind it.
    bytes: Vec<u8>,
    header: Option<Header>,
}

impl ProxyHeaderReader {
    /// `Data` once the header is known. A broken header is `InvalidData`: the connection is closed
    /// without an answer, since nobody knows who would read it.
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
            }
        }
        Ok(RecvOutcome::Data {
            bytes: 0,
            drained: false,
        })
    }

    /// Where the connection's own bytes come from: what is left here, then the socket.
    pub(crate) fn rest<'a>(&'a mut self, socket: &'a Socket) -> Rest<'a> {
        Rest {
            bytes: &mut self.bytes,
            socket,
        }
    }

    /// The header is read and nothing is left: the stage can go.
    pub(crate) fn is_spent(&self) -> bool {
        self.header.is_some() && self.bytes.is_empty()
    }

    /// The addresses that the header gives in place of the socket's, remote then local.
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

pub(crate) struct Rest<'a> {
    bytes: &'a mut Vec<u8>,
    socket: &'a Socket,
}

impl Read for Rest<'_> {
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
