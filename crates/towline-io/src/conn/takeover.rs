//! Connections whose socket the application uses itself: WebSocket libraries for WSGI speak the protocol on the socket.
//!
//! ```text
//! engine ── check_out_unwatched ──► thread ── take_over ──► application: reads and writes its duplicate
//! engine ◄─────── check_in ──────── thread ◄─ end_takeover ── the application is done
//! ```

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::time::Instant;

use socket2::Socket;

use crate::conn::Conn;
use crate::conn::transport::StreamTransport;

/// A socket that the application has taken over.
pub struct TakenSocket {
    /// For the application: in blocking mode, closed in programs that it executes.
    pub socket: OwnedFd,
    pub control: SocketControl,
}

/// Ends a socket that the application uses in another thread.
pub struct SocketControl(Socket);

impl SocketControl {
    /// Ends the input: after the bytes received so far the application reads the end. Output continues.
    pub fn end_input(&self) {
        // An error means that the client has disconnected.
        let _ = self.0.shutdown(Shutdown::Read);
    }

    /// Ends input and output. Bytes in the kernel's buffer are still sent.
    pub fn shut_down(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl<S> Conn<S> {
    /// Whether the application may take the socket over: HTTP/1 without TLS, a complete request with nothing
    /// behind it, and no response yet. Bytes behind the request are in our buffer, and the application would miss
    /// them.
    pub fn can_take_over(&self) -> bool {
        let is_plain = |stream: &StreamTransport| stream.tls.is_none() && stream.proxy.is_none();
        self.io.stream().is_some_and(is_plain)
            && !self.input.over
            && self.proto.is_between_request_and_response()
    }

    /// Duplicates the socket for the application and sets it to blocking mode. From now on only the application
    /// reads and writes, until [`end_takeover`](Self::end_takeover). `None` unless
    /// [`can_take_over`](Self::can_take_over), and if not everything is sent.
    pub fn take_over(&mut self) -> io::Result<Option<TakenSocket>> {
        if !self.can_take_over() || self.proto.pending_bytes() > 0 {
            return Ok(None);
        }
        let Some(own) = self.io.socket() else {
            return Ok(None);
        };
        // Both are close-on-exec.
        let (socket, control) = (own.try_clone()?, own.try_clone()?);
        // The mode belongs to the open file, not to the descriptor.
        own.set_nonblocking(false)?;
        Ok(Some(TakenSocket {
            socket: socket.into(),
            control: SocketControl(control),
        }))
    }

    /// Ends the connection after a takeover; the engine closes it when it is checked in. Reads and writes nothing.
    pub fn end_takeover(&mut self, now: Instant) {
        if let Some(socket) = self.io.socket() {
            let _ = socket.shutdown(Shutdown::Both);
            // The engine must never block. Fails only for a descriptor that is not open.
            let _ = socket.set_nonblocking(true);
        }
        self.on_failure(now, "the application has used the socket");
    }
}
