//! The transport below HTTP: a stream socket, optionally with TLS, optionally preceded by a PROXY header; or QUIC.

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsRawFd, RawFd};

use socket2::Socket;

use crate::conn::addr::PeerAddr;
use crate::conn::proxy_header::ProxyHeaderReader;
use crate::conn::quic_transport::QuicTransport;
use crate::serve::limits::ClientCount;
use crate::sys::{self, MORE_FOLLOWS, SEND_FLAGS};
use crate::tls::{RecvOutcome, Session, TlsInfo};

/// The transport of a connection.
pub(crate) enum Transport {
    Stream(StreamTransport),
    Quic(Box<QuicTransport>),
}

impl Transport {
    /// The descriptor to poll. A QUIC connection of a server shares it with the others of its endpoint.
    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Self::Stream(stream) => stream.fd(),
            Self::Quic(quic) => quic.fd(),
        }
    }

    #[inline]
    pub(crate) fn stream(&self) -> Option<&StreamTransport> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Quic(_) => None,
        }
    }

    #[inline]
    pub(crate) fn stream_mut(&mut self) -> Option<&mut StreamTransport> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Quic(_) => None,
        }
    }

    #[inline]
    pub(crate) fn quic(&self) -> Option<&QuicTransport> {
        match self {
            Self::Stream(_) => None,
            Self::Quic(quic) => Some(quic),
        }
    }

    #[inline]
    pub(crate) fn quic_mut(&mut self) -> Option<&mut QuicTransport> {
        match self {
            Self::Stream(_) => None,
            Self::Quic(quic) => Some(quic),
        }
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.stream().map(|stream| &stream.socket)
    }

    /// Addresses from a PROXY header: remote, then local.
    #[inline]
    pub(crate) fn proxied(&self) -> Option<&(PeerAddr, PeerAddr)> {
        self.stream()?.proxied.as_deref()
    }

    pub(crate) fn local_addr(&self) -> PeerAddr {
        match self {
            Self::Stream(stream) => {
                let addr = stream.socket.local_addr();
                addr.map_or(PeerAddr::None, |addr| PeerAddr::from_sock_addr(&addr))
            }
            Self::Quic(quic) => quic.local_addr(),
        }
    }

    /// An error of the socket that no system call has returned yet.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.socket()?.take_error().ok().flatten()
    }

    /// Whether HTTP runs over TLS, also before the end of the handshake.
    pub(crate) fn is_secure(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.tls.is_some(),
            Self::Quic(_) => true,
        }
    }

    /// Result of the handshake, once it is complete.
    pub(crate) fn tls_info(&self) -> Option<TlsInfo> {
        match self {
            Self::Stream(stream) => stream.tls.as_ref()?.info(),
            Self::Quic(quic) => quic.tls_info(),
        }
    }

    /// The layer of TLS on a stream socket; QUIC has its own.
    pub(crate) fn tls(&self) -> Option<&Session> {
        self.stream()?.tls.as_deref()
    }

    /// Whether the handshake or the PROXY header is not complete.
    pub(crate) fn is_before_http(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_handshaking() || stream.proxy.is_some(),
            Self::Quic(quic) => quic.is_handshaking(),
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_handshaking(),
            Self::Quic(quic) => quic.is_handshaking(),
        }
    }
}

/// A stream socket and the layers on it.
pub(crate) struct StreamTransport {
    pub(crate) socket: Socket,
    pub(crate) tls: Option<Box<Session>>,
    /// Present until the PROXY header and the bytes received with it have been read.
    pub(crate) proxy: Option<Box<ProxyHeaderReader>>,
    /// Addresses from the PROXY header, which replace the socket's: remote, then local.
    pub(crate) proxied: Option<Box<(PeerAddr, PeerAddr)>>,
    /// Counts the connection for the client of the PROXY header.
    pub(crate) client: Option<Box<ClientCount>>,
    /// A send has failed because the peer reset the connection. The kernel reports a reset once, so the next receive
    /// finds an end of input.
    pub(crate) reset_seen: bool,
}

impl StreamTransport {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            tls: None,
            proxy: None,
            proxied: None,
            client: None,
            reset_seen: false,
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Reads HTTP bytes into `space`.
    pub(crate) fn recv(&mut self, space: &mut [u8]) -> io::Result<RecvOutcome> {
        if self.proxy.is_some() {
            return self.recv_after_proxy_header(space);
        }
        let received = match &mut self.tls {
            None => recv_plain(&mut RecvWithFlags(&self.socket, 0), space),
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
            self.client = header.client.take();
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
            [one] => sys::send(self.fd(), one, flags),
            many => self.socket.send_vectored_with_flags(many, flags),
        }
    }

    /// Answers a client that has sent HTTP without TLS, in place of an alert.
    #[cold]
    pub(crate) fn answer_plain_http(&mut self) {
        const ANSWER: &[u8] =
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 47\r\n\
            connection: close\r\n\r\nThis address serves HTTPS: use an https:// URL\n";
        self.tls = None;
        send_last(&self.socket, ANSWER);
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }
}

/// Sends the answer to a connection that is about to be closed.
#[cold]
pub(crate) fn send_last(mut socket: &Socket, answer: &[u8]) {
    let _ = socket.send_with_flags(answer, SEND_FLAGS);
    // Unread bytes would turn the close into a reset, which destroys the answer.
    let mut rest = [0; 4096];
    for _ in 0..16 {
        if !matches!(socket.read(&mut rest), Ok(1..)) {
            break;
        }
    }
}

/// A reader that calls `recv(2)` with these flags.
struct RecvWithFlags<'a>(&'a Socket, libc::c_int);

impl Read for RecvWithFlags<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        sys::recv(self.0.as_raw_fd(), space, self.1)
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
