//! A connected socket and the layers built on it so far.

use std::io;
use std::os::fd::AsRawFd;

use socket2::Socket;

use super::Watch;
use crate::conn::transport::StreamTransport;
use crate::tls::{RecvOutcome, Session};

pub(super) struct PartialTransport {
    pub(super) transport: StreamTransport,
    serial: u32,
}

impl PartialTransport {
    pub(super) fn new(socket: Socket, serial: u32) -> Self {
        Self {
            transport: StreamTransport::new(socket),
            serial,
        }
    }

    /// Adds a TLS layer. `make` takes the present one, if any, which carries the records of the new one.
    pub(super) fn secure(
        &mut self,
        make: impl FnOnce(Option<Box<Session>>) -> Result<Session, String>,
    ) -> Result<(), String> {
        self.transport.tls = Some(Box::new(make(self.transport.tls.take())?));
        Ok(())
    }

    /// Sends part of `bytes` and returns its length: 0 when the socket would block.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let slices = [io::IoSlice::new(bytes)];
        if let Some(tls) = &mut self.transport.tls {
            let accepted = if tls.accepts_plaintext() {
                tls.encrypt(&slices)?
            } else {
                0
            };
            self.flush()?;
            return Ok(accepted);
        }
        match self.transport.send_plain(&slices, false) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }

    /// Sends pending TLS records. Returns whether all of them have been sent.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.transport.tls else {
            return Ok(true);
        };
        while tls.wants_write() {
            if tls.flush(&self.transport.socket)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn recv(&mut self, space: &mut [u8]) -> io::Result<RecvOutcome> {
        self.transport.recv(space)
    }

    /// Readiness to wait for: input, and output too if `unsent` bytes or TLS records are pending.
    pub(super) fn watch(&self, unsent: bool) -> Watch {
        let tls = self.transport.tls.as_ref();
        Watch {
            fd: self.transport.socket.as_raw_fd(),
            serial: self.serial,
            readable: true,
            writable: unsent || tls.is_some_and(|tls| tls.wants_write()),
        }
    }
}
