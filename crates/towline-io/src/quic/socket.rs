//! A UDP socket with the kernel's batching: several datagrams with one call in each direction (GSO, GRO, recvmmsg),
//! and ECN marks.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use quinn_proto::{EcnCodepoint, Transmit};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

use crate::quic::key::Key;
#[cfg(test)]
use crate::quic::memory_socket::MemorySocket;
use crate::sys::{self, MAX_BATCH, omit_unused_messages};

/// Messages received with one call. With GRO each has up to 64 KiB of datagrams.
pub(crate) const MESSAGES: usize = 8;

/// Size of a message: GRO never joins more (the length of an IP packet).
const MESSAGE_BYTES: usize = 64 * 1024;

/// A non-blocking UDP socket, shared by the connections of an endpoint for sending.
pub struct UdpSocket {
    inner: Inner,
    /// Connections that wait until the socket is writable.
    blocked: Mutex<Vec<Key>>,
    /// Error number of the last failure; 0: none.
    failure: AtomicI32,
}

/// The kernel's socket, or that of a simulated network.
enum Inner {
    Kernel(KernelSocket),
    #[cfg(test)]
    Memory(MemorySocket),
}

struct KernelSocket {
    socket: Socket,
    state: UdpSocketState,
    /// The socket is bound to all addresses, so each datagram names the one that it is sent from.
    has_any_address: bool,
    /// The peer of a connected socket.
    peer: Option<SocketAddr>,
    /// Datagrams that name no mark have ECT(0), the mark of nearly all of ours.
    is_marked: bool,
    /// The last mark of a connected socket, where datagrams cannot name it.
    mark: AtomicU32,
}

impl KernelSocket {
    fn new(socket: Socket, buffer_bytes: usize) -> io::Result<Self> {
        // A smaller buffer only costs datagrams under load.
        let _ = socket.set_recv_buffer_size(buffer_bytes);
        let _ = socket.set_send_buffer_size(buffer_bytes);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // On some systems the state's options include blocking mode.
        socket.set_nonblocking(true)?;
        let bound = socket.local_addr()?.as_socket();
        let has_any_address = bound.is_none_or(|bound| bound.ip().is_unspecified());
        omit_unused_messages(&socket, has_any_address);
        let is_ipv4 = bound.is_some_and(|bound| bound.is_ipv4());
        let mark = EcnCodepoint::Ect0 as u32;
        let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
        // Not every system lets a socket of IPv6 mark packets of IPv4, and a connected one has no need to.
        let is_marked = (is_ipv4 || socket.set_tclass_v6(mark).is_ok())
            && (socket.set_tos_v4(mark).is_ok() || !is_ipv4 && peer.is_some());
        Ok(Self {
            socket,
            state,
            has_any_address,
            peer,
            is_marked,
            mark: AtomicU32::new(if is_marked { mark } else { u32::MAX }),
        })
    }

    fn send(&self, transmit: &Transmit, contents: &[u8]) -> io::Result<()> {
        // The kernel looks up each address that a datagram names.
        let src_ip = transmit.src_ip.filter(|_| self.has_any_address);
        let is_usual = self.is_marked && transmit.ecn == Some(EcnCodepoint::Ect0);
        if !sys::CONNECTED_TAKE_ADDRESS && self.peer.is_some() {
            self.mark(transmit.ecn);
            return self.socket.send(contents).map(drop);
        }
        if is_usual && transmit.segment_size.is_none() && src_ip.is_none() {
            // The kernel parses no control messages, and a connected socket has its route.
            let sent = if self.peer == Some(transmit.destination) {
                self.socket.send(contents)
            } else {
                self.socket.send_to(contents, &transmit.destination.into())
            };
            return sent.map(drop);
        }
        let transmit = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(to_udp),
            contents,
            segment_size: transmit.segment_size,
            src_ip,
        };
        self.state
            .try_send(UdpSockRef::from(&self.socket), &transmit)
    }

    /// Sets the mark of the datagrams that follow, if it is another one than before.
    fn mark(&self, ecn: Option<EcnCodepoint>) {
        let mark = ecn.map_or(0, |ecn| ecn as u32);
        if self.mark.swap(mark, Ordering::Relaxed) != mark {
            // An error costs marks. A socket of one family has no option of the other.
            let _ = self.socket.set_tclass_v6(mark);
            let _ = self.socket.set_tos_v4(mark);
        }
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UdpSocket")
            .field(&self.local_addr())
            .finish()
    }
}

impl UdpSocket {
    /// Binds a socket. The unspecified IPv6 address serves both families. `buffer_bytes`: see
    /// `QuicLimits::socket_buffer_bytes`.
    pub fn bind(addr: SocketAddr, buffer_bytes: usize) -> io::Result<Self> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{addr} (UDP): {error}"));
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        if let SocketAddr::V6(v6) = addr {
            socket.set_only_v6(!v6.ip().is_unspecified())?;
        }
        socket.bind(&addr.into()).map_err(named)?;
        Self::prepared(socket, buffer_bytes).map_err(named)
    }

    /// A socket of a client for one server. The kernel then reports that nothing listens there, and takes datagrams from
    /// this server only. `local`: the address to send from.
    pub fn connect(
        remote: SocketAddr,
        local: Option<IpAddr>,
        buffer_bytes: usize,
    ) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(remote),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        if let Some(local) = local {
            if local.is_ipv4() != remote.is_ipv4() {
                return Err(io::Error::other("the local address is of the other family"));
            }
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        socket.connect(&remote.into())?;
        Self::prepared(socket, buffer_bytes)
    }

    /// Replaces the socket, whose descriptor keeps its number, by a new one for the same server. The system chooses its
    /// address anew. A poll has to be told.
    pub(crate) fn reconnect(
        &self,
        remote: SocketAddr,
        local: Option<IpAddr>,
        buffer_bytes: usize,
    ) -> io::Result<()> {
        let new = Self::connect(remote, local, buffer_bytes)?;
        // SAFETY: both descriptors are open while their sockets are borrowed.
        let outcome = unsafe { libc::dup2(new.as_raw_fd(), self.as_raw_fd()) };
        if outcome < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open; the flag is that of every socket of this crate.
        unsafe { libc::fcntl(self.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(())
    }

    /// Takes over a bound UDP socket that another process or the supervisor has opened. The descriptor belongs to it
    /// from here on, also when this fails.
    pub fn inherited(fd: OwnedFd, buffer_bytes: usize) -> io::Result<Self> {
        let socket = Socket::from(fd);
        if socket.r#type()? != Type::DGRAM {
            let message = "not a datagram socket";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Self::prepared(socket, buffer_bytes)
    }

    fn prepared(socket: Socket, buffer_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            inner: Inner::Kernel(KernelSocket::new(socket, buffer_bytes)?),
            blocked: Mutex::default(),
            failure: AtomicI32::new(0),
        })
    }

    #[cfg(test)]
    pub(crate) fn in_memory(socket: MemorySocket) -> Self {
        Self {
            inner: Inner::Memory(socket),
            blocked: Mutex::default(),
            failure: AtomicI32::new(0),
        }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.inner {
            Inner::Kernel(kernel) => {
                let addr = kernel.socket.local_addr()?.as_socket();
                addr.ok_or_else(|| io::ErrorKind::Unsupported.into())
            }
            #[cfg(test)]
            Inner::Memory(socket) => Ok(socket.addr()),
        }
    }

    pub fn as_raw_fd(&self) -> RawFd {
        match &self.inner {
            Inner::Kernel(kernel) => kernel.socket.as_raw_fd(),
            #[cfg(test)]
            Inner::Memory(_) => -1,
        }
    }

    #[cfg(test)]
    pub(crate) fn duplicate(&self) -> Self {
        Self::inherited(self.try_clone().unwrap(), 1 << 20).unwrap()
    }

    /// Another descriptor of the socket.
    fn try_clone(&self) -> io::Result<OwnedFd> {
        match &self.inner {
            Inner::Kernel(kernel) => kernel.socket.try_clone().map(OwnedFd::from),
            #[cfg(test)]
            Inner::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Number that processes which share the socket have in common; 0 if the system has none.
    pub(crate) fn inode(&self) -> u64 {
        let file = self.try_clone().map(File::from);
        let metadata = file.and_then(|file| file.metadata());
        metadata.map_or(0, |metadata| metadata.ino())
    }

    /// Whether the system may fragment datagrams, so that the path's MTU cannot be probed.
    pub(crate) fn may_fragment(&self) -> bool {
        match &self.inner {
            Inner::Kernel(kernel) => kernel.state.may_fragment(),
            #[cfg(test)]
            Inner::Memory(_) => false,
        }
    }

    /// Datagrams that one send may have.
    pub(crate) fn batch(&self) -> usize {
        match &self.inner {
            Inner::Kernel(kernel) => kernel.state.max_gso_segments().min(MAX_BATCH),
            #[cfg(test)]
            Inner::Memory(_) => MAX_BATCH,
        }
    }

    /// Sends the datagrams of `transmit`, and returns false if the socket's buffer is full. Other failures are
    /// losses, which the protocol repairs: an unreachable network, a datagram over the MTU.
    pub(crate) fn send(&self, transmit: &Transmit, contents: &[u8]) -> bool {
        let sent = match &self.inner {
            Inner::Kernel(kernel) => kernel.send(transmit, contents),
            #[cfg(test)]
            Inner::Memory(socket) => {
                let segment_bytes = transmit.segment_size.unwrap_or(contents.len());
                return socket.send(transmit.destination, transmit.ecn, contents, segment_bytes);
            }
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => self.note_failure(&error),
            Ok(()) => {}
        }
        true
    }

    fn note_failure(&self, error: &io::Error) {
        if let Some(number) = error.raw_os_error() {
            self.failure.store(number, Ordering::Relaxed);
        }
    }

    /// The last failure of a call, or one that the kernel has reported of an earlier datagram; returned once.
    pub(crate) fn take_failure(&self) -> Option<io::Error> {
        let number = self.failure.swap(0, Ordering::Relaxed);
        (number != 0).then(|| io::Error::from_raw_os_error(number))
    }

    /// Records that a connection waits for room.
    pub(crate) fn block(&self, key: Key) {
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        blocked.push(key);
    }

    /// The connections that have waited, when the socket is writable.
    pub(crate) fn take_blocked(&self) -> Vec<Key> {
        std::mem::take(&mut *self.blocked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_blocked(&self) -> bool {
        !self
            .blocked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Receives up to [`MESSAGES`] messages into `buffers`.
    pub(crate) fn receive(&self, buffers: &mut ReceiveBuffers) -> io::Result<usize> {
        let (socket, state) = match &self.inner {
            Inner::Kernel(kernel) => (&kernel.socket, &kernel.state),
            #[cfg(test)]
            Inner::Memory(socket) => return Ok(buffers.fill_from(socket)),
        };
        let mut slices = buffers
            .bytes
            .chunks_exact_mut(MESSAGE_BYTES)
            .map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; MESSAGES] =
            std::array::from_fn(|_| slices.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let received = state.recv(UdpSockRef::from(socket), &mut slices, &mut buffers.meta);
        received.inspect_err(|error| {
            if error.kind() != io::ErrorKind::WouldBlock {
                self.note_failure(error);
            }
        })
    }
}

/// Space for one receive. The kernel fills, and so the process uses, only as much as arrives at once.
pub(crate) struct ReceiveBuffers {
    bytes: Box<[u8]>,
    meta: [RecvMeta; MESSAGES],
}

impl ReceiveBuffers {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; MESSAGES * MESSAGE_BYTES].into_boxed_slice(),
            meta: [RecvMeta::default(); MESSAGES],
        }
    }

    #[cfg(test)]
    fn fill_from(&mut self, socket: &MemorySocket) -> usize {
        let messages = self.bytes.chunks_exact_mut(MESSAGE_BYTES);
        let mut count = 0;
        for (space, meta) in messages.zip(&mut self.meta) {
            let Some(datagram) = socket.receive() else {
                break;
            };
            let length = datagram.bytes.len();
            space[..length].copy_from_slice(&datagram.bytes);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (datagram.from, length, length);
            meta.ecn = datagram.ecn.and_then(to_udp);
            meta.dst_ip = Some(datagram.to.ip());
            count += 1;
        }
        count
    }

    /// One received message.
    pub(crate) fn message(&self, index: usize) -> Message<'_> {
        let meta = &self.meta[index];
        let start = index * MESSAGE_BYTES;
        Message {
            bytes: &self.bytes[start..start + meta.len.min(MESSAGE_BYTES)],
            datagram_bytes: meta.stride.max(1),
            remote: meta.addr,
            local_ip: meta.dst_ip,
            ecn: meta.ecn.and_then(from_udp),
            origin: Origin::Socket,
        }
    }
}

/// How datagrams have come to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Through our socket.
    Socket,
    /// From another worker, because their ID is ours.
    ForOwner,
    /// From another worker, because it accepts no new connections and we do.
    ForAccepting,
}

/// Datagrams of one sender that have arrived together; all but the last have the same size.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) datagram_bytes: usize,
    pub(crate) remote: SocketAddr,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) origin: Origin,
}

fn to_udp(ecn: EcnCodepoint) -> Option<quinn_udp::EcnCodepoint> {
    quinn_udp::EcnCodepoint::from_bits(ecn as u8)
}

fn from_udp(ecn: quinn_udp::EcnCodepoint) -> Option<EcnCodepoint> {
    EcnCodepoint::from_bits(ecn as u8)
}
