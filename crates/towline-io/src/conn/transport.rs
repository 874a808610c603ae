//! The transport below HTTP: a socket, optionally with TLS, optionally preceded by a PROXY header.

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsRawFd, RawFd};

use socket2::Socket;

use crate::conn::addr::PeerAddr;
use crate::conn::proxy_header::ProxyHeaderReader;
use crate::tls::{RecvOutcome, Session};

/// No SIGPIPE, and no blocking on sockets in blocking mode.
pub(crate) const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

#[cfg(target_os = "linux")]
const MORE_FOLLOWS: libc::c_int = libc::MSG_MORE;
#[cfg(not(target_os = "linux"))]
const MORE_FOLLOWS: libc::c_int = 0;

pub(crate) struct Transport {
    pub(crate) socket: Socket,
    pub(crate) tls: Option<Box<Session>>,
    /// Present until the PROXY header and the bytes received with it have been read.
    pub(crate) proxy: Option<Box<ProxyHeaderReader>>,
    /// Addresses from the PROXY header, which replace the socket's: remote, then local.
    pub(crate) proxied: Option<Box<(PeerAddr, PeerAddr)>>,
    /// A send has failed because the peer reset the connection. The kernel reports a reset once, so the next receive
    /// finds an end of input.
    pub(crate) reset_seen: bool,
}

impl Transport {
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Reads HTTP bytes into `space`.
    pub(crate) fn recv(&mut self, space: &mut [u8]) -> io::Result<RecvOutcome> {
        if self.proxy.is_some() {
            return self.recv_after_proxy_header(space);
        }
        let received = match &mut self.tls {
            None => recv_plain(&mut &self.socket, space),
            Some(tls) => tls.recv(&mut &self.socket, space),
        };
        self.end_or_reset(received)
    }

    /// Reads HTTP bytes into `space` by one `recv(2)` with `flags`. A blocking socket waits unless `flags`
    /// has `MSG_DONTWAIT`; a signal gives `Interrupted`, and the socket's timeout `WouldBlock`.
    pub(crate) fn recv_once(
        &mut self,
        space: &mut [u8],
        flags: libc::c_int,
    ) -> io::Result<RecvOutcome> {
        let mut source = RecvWithFlags(&self.socket, flags);
        let received = match &mut self.tls {
            Some(tls) => tls.recv(&mut source, space),
            None => match source.read(space) {
                Ok(0) => Ok(RecvOutcome::Eof),
                Ok(bytes) => Ok(RecvOutcome::Data {
                    bytes,
                    drained: bytes < space.len(),
                }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    Ok(RecvOutcome::WouldBlock)
                }
                Err(error) => Err(error),
            },
        };
        self.end_or_reset(received)
    }

    /// Turns the end of input after a reset into the error that the receive would have returned without the send.
    fn end_or_reset(&self, received: io::Result<RecvOutcome>) -> io::Result<RecvOutcome> {
        match received {
            Ok(RecvOutcome::Eof) if self.reset_seen => Err(io::ErrorKind::ConnectionReset.into()),
            Err(error) if self.reset_seen && error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            received => received,
        }
    }

    #[cold]
    fn recv_after_proxy_header(&mut self, space: &mut [u8]) -> io::Result<RecvOutcome> {
        let Some(header) = &mut self.proxy else {
            return Ok(RecvOutcome::WouldBlock);
        };
        match header.read_header(&self.socket)? {
            RecvOutcome::Data { .. } => {}
            other => return Ok(other),
        }
        self.proxied = header.addresses().map(Box::new);
        let mut source = header.reader(&self.socket);
        let result = match &mut self.tls {
            None => recv_plain(&mut source, space),
            Some(tls) => tls.recv(&mut source, space),
        };
        if header.is_drained() {
            self.proxy = None;
        }
        // A short read from the buffered bytes does not mean that the socket is drained.
        result.map(|recv| match recv {
            RecvOutcome::Data { bytes, .. } => RecvOutcome::Data {
                bytes,
                drained: false,
            },
            other => other,
        })
    }

    /// Writes as much as the kernel accepts at once, in blocking mode, too. `more_follows`: the next write comes at
    /// once, so the kernel need not send a segment of its own for this one.
    pub(crate) fn send_plain(
        &self,
        slices: &[IoSlice<'_>],
        more_follows: bool,
    ) -> io::Result<usize> {
        let flags = SEND_FLAGS | if more_follows { MORE_FOLLOWS } else { 0 };
        match slices {
            [one] => self.socket.send_with_flags(one, flags),
            many => self.socket.send_vectored_with_flags(many, flags),
        }
    }

    /// Whether the TLS handshake or the PROXY header is not complete.
    pub(crate) fn is_before_http(&self) -> bool {
        self.is_handshaking() || self.proxy.is_some()
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }
}

/// A reader that calls `recv(2)` with flags.
struct RecvWithFlags<'a>(&'a Socket, libc::c_int);

impl Read for RecvWithFlags<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the descriptor is open while the socket is borrowed, and the kernel writes at most
        // `space.len()` bytes.
        let n = unsafe {
            libc::recv(
                self.0.as_raw_fd(),
                space.as_mut_ptr().cast(),
                space.len(),
                self.1,
            )
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

fn recv_plain(socket: &mut dyn Read, space: &mut [u8]) -> io::Result<RecvOutcome> {
    loop {
        return match socket.read(space) {
            Ok(0) => Ok(RecvOutcome::Eof),
            Ok(bytes) => Ok(RecvOutcome::Data {
                bytes,
                drained: bytes < space.len(),
            }),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Ok(RecvOutcome::WouldBlock),
                io::ErrorKind::Interrupted => continue,
                _ => Err(error),
            },
        };
    }
}
