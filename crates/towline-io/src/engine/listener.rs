//! Listening sockets: TCP, Unix, or inherited.

use std::fs;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, Socket, Type};

use crate::conn::addr::PeerAddr;
use crate::sys;

/// Default length of the kernel's queue of connections not yet accepted.
pub const DEFAULT_BACKLOG: u32 = 2048;

/// A listening socket. It is non-blocking, and accepted connections have Nagle's algorithm disabled.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// Path to remove on drop, and the process that may remove it: forked workers share the listener and
    /// must not remove it when they end.
    owned_path: Option<(PathBuf, u32)>,
}

impl Listener {
    /// Opens every listener that `spec` names: `host:port`, `[v6]:port`, `:port`, `unix:PATH` or
    /// `fd://N`. A host name gives one listener per address; `[::]` serves IPv4 too.
    pub fn open(spec: &str, backlog: u32) -> io::Result<Vec<Self>> {
        Self::open_or_bind(spec, backlog, Some(backlog))
    }

    /// Like [`open`](Self::open), but TCP sockets are only bound: connections are refused until a process that
    /// has [inherited](Self::inherited) one listens, so that a connection attempt succeeds only if
    /// a process serves.
    pub fn bind(spec: &str, backlog: u32) -> io::Result<Vec<Self>> {
        Self::open_or_bind(spec, backlog, None)
    }

    fn open_or_bind(spec: &str, backlog: u32, of_tcp: Option<u32>) -> io::Result<Vec<Self>> {
        if let Some(path) = spec.strip_prefix("unix:") {
            return Ok(vec![Self::unix(Path::new(path), None, backlog)?]);
        }
        if let Some(number) = spec.strip_prefix("fd://") {
            let fd = number
                .parse()
                .map_err(|_| invalid(spec, "fd:// needs a number"))?;
            return Ok(vec![Self::inherited(fd, backlog)?]);
        }
        let (host, port) = spec
            .rsplit_once(':')
            .ok_or_else(|| invalid(spec, "no port"))?;
        let port: u16 = port
            .parse()
            .map_err(|_| invalid(spec, "the port is not 0 to 65535"))?;
        let host = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        let host = if host.is_empty() { "0.0.0.0" } else { host };
        let addrs = (host, port)
            .to_socket_addrs()
            .map_err(|error| named(&error, spec))?;
        addrs
            .map(|addr| {
                Self::bind_tcp(addr, of_tcp).map_err(|error| named(&error, &addr.to_string()))
            })
            .collect()
    }

    /// Listens on a TCP address. The unspecified IPv6 address serves both families.
    pub fn tcp(addr: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::bind_tcp(addr, Some(backlog)).map_err(|error| named(&error, &addr.to_string()))
    }

    fn bind_tcp(addr: SocketAddr, backlog: Option<u32>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        if let SocketAddr::V6(v6) = addr {
            socket.set_only_v6(!v6.ip().is_unspecified())?;
        }
        // A restart must not wait for old connections in TIME-WAIT.
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
        Self::prepared(socket, backlog, None)
    }

    /// Listens on a Unix socket. A file left by a dead process is replaced; a file on which a process
    /// listens is `AddrInUse`. `mode` is set before the first connection can arrive.
    pub fn unix(path: &Path, mode: Option<u32>, backlog: u32) -> io::Result<Self> {
        Self::bind_unix(path, mode, backlog)
            .map_err(|error| named(&error, &format!("unix:{}", path.display())))
    }

    fn bind_unix(path: &Path, mode: Option<u32>, backlog: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        let addr = socket2::SockAddr::unix(path)?;
        if let Err(error) = socket.bind(&addr) {
            if error.kind() != io::ErrorKind::AddrInUse || !is_stale(path) {
                return Err(error);
            }
            fs::remove_file(path)?;
            socket.bind(&addr)?;
        }
        if let Some(mode) = mode {
            sys::set_socket_mode(path, mode)?;
        }
        Self::prepared(
            socket,
            Some(backlog),
            Some((path.to_owned(), std::process::id())),
        )
    }

    /// Takes over a stream socket opened by another process (systemd, a supervisor), of any family. The
    /// descriptor belongs to the listener from here on, also when this fails.
    pub fn inherited(fd: RawFd, backlog: u32) -> io::Result<Self> {
        let name = || format!("fd://{fd}");
        // SAFETY: F_GETFD has no effect and accepts any number.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(named(&io::Error::last_os_error(), &name()));
        }
        // SAFETY: the descriptor is open, and by contract the caller gives it away.
        let socket = unsafe { Socket::from_raw_fd(fd) };
        let kind = socket.r#type().map_err(|error| named(&error, &name()))?;
        if kind != Type::STREAM {
            return Err(invalid(&name(), "not a stream socket"));
        }
        Self::prepared(socket, Some(backlog), None).map_err(|error| named(&error, &name()))
    }

    /// Sets the options of the socket; listens if there is a `backlog`.
    fn prepared(
        socket: Socket,
        backlog: Option<u32>,
        owned_path: Option<(PathBuf, u32)>,
    ) -> io::Result<Self> {
        let listener = Self { socket, owned_path };
        if listener.is_tcp()? {
            // Accepted sockets inherit it on Linux, which saves a system call for each of them.
            listener.socket.set_tcp_nodelay(true)?;
        }
        listener.socket.set_cloexec(true)?;
        listener.socket.set_nonblocking(true)?;
        if let Some(backlog) = backlog {
            let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
            listener.socket.listen(backlog)?;
        }
        Ok(listener)
    }

    pub(crate) fn is_tcp(&self) -> io::Result<bool> {
        Ok(matches!(
            self.socket.local_addr()?.domain(),
            Domain::IPV4 | Domain::IPV6
        ))
    }

    /// Address on which it listens, with the actual port when port 0 was requested.
    pub fn local_addr(&self) -> io::Result<PeerAddr> {
        self.socket
            .local_addr()
            .map(|addr| PeerAddr::from_sock_addr(&addr))
    }

    /// Releases the descriptor. The new owner removes the file of a Unix socket.
    pub fn into_raw_fd(mut self) -> RawFd {
        self.owned_path = None;
        let fd = self.socket.as_raw_fd();
        // `Drop` prevents moving the socket out; nothing else is left to drop.
        std::mem::forget(self);
        fd
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((path, pid)) = &self.owned_path
            && *pid == std::process::id()
        {
            // A failure is ignored: the next start replaces a stale file.
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether `path` is a socket file on which no process listens.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn named(error: &io::Error, name: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

fn invalid(name: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: {why}"))
}
